"""`NSQDIGEST__SECTION__KEY=value` replaces one value of the file, before anything is read.

Names are compared without case; in the name of a sink or policy, `_` also matches `-` and `.`, which no shell allows in
a variable. A name that fits no option is a problem: a slip must not leave the file's value in force silently.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from nsqdigest.base.words import nearest
from nsqdigest.config.options import POLICY, SECTIONS, Kinds, Option, Section
from nsqdigest.config.problems import Findings
from nsqdigest.config.toml_lines import KeyPath

PREFIX = "NSQDIGEST__"
_OURS = "NSQDIGEST_"
_KNOWN = frozenset(("NSQDIGEST_CONFIG",))
_OF_KUBERNETES = re.compile(r"_SERVICE_(?:HOST|PORT)|_PORT(?:_[0-9]+_(?:TCP|UDP)|$)")
"""Kubernetes sets these in every container where a service has the name "nsqdigest"."""


class _Refused(Exception):
    """`args`: the problem, and the remedy."""


def apply(tree: dict[str, Any], findings: Findings, kinds: Kinds) -> None:
    """Changes the tree, and notes which variable set what."""
    for variable in sorted(findings.environ):
        if not variable.upper().startswith(PREFIX):
            continue
        try:
            path, option = _target(variable[len(PREFIX) :].lower().split("__"), tree, kinds)
            if path in findings.overridden_by:
                raise _Refused(f"sets the same as {findings.overridden_by[path]}", "leave one of them out")
        except _Refused as refused:
            findings.variable_problem(variable, *refused.args)
            continue
        table: Any = tree
        for step in path[:-1]:
            table = table.setdefault(step, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            findings.overridden_by[path] = variable
            table[path[-1]] = _value(findings.environ[variable], option)


def advise_on_unknown(findings: Findings) -> None:
    """Warns of a variable that begins like ours and is none: most likely it is meant to override something."""
    for variable in sorted(findings.environ):
        name = variable.upper()
        if not name.startswith(_OURS) or name.startswith(PREFIX) or _OF_KUBERNETES.search(name):
            continue
        if name not in _KNOWN and variable not in findings.variables_named:
            first, _, rest = name.removeprefix(_OURS).partition("_")
            section = nearest(first.lower(), (*SECTIONS, "policies", "sinks"))
            key = rest.strip("_") or "KEY"
            remedy = (
                f"write {PREFIX}{section.upper()}__{key}" if section else f"write {PREFIX}SECTION__KEY, or unset it"
            )
            findings.variable_warning(variable, "is no variable of nsqdigest, and changes nothing", remedy)


def _target(names: list[str], tree: dict[str, Any], kinds: Kinds) -> tuple[KeyPath, Option | None]:
    section_name, *rest = names
    if section_name == "routes":
        raise _Refused("a route cannot be overridden", "write it in the file")
    if section_name in ("policies", "sinks"):
        return _named_target(section_name, rest, tree, kinds)
    section = SECTIONS.get(section_name)
    if section is None:
        guess = nearest(section_name, (*SECTIONS, "policies", "sinks"))
        known = ", ".join((*SECTIONS, "policies", "sinks")).upper()
        raise _Refused(
            "unknown section", f"did you mean {PREFIX}{guess.upper()}__…?" if guess else f"known are {known}"
        )
    path: KeyPath = (section_name,)
    stem = f"{PREFIX}{section_name.upper()}"
    if rest and (table := dict(section.tables).get(rest[0])) is not None:
        section, path, stem = table, (*path, rest[0]), f"{stem}__{rest[0].upper()}"
        rest = rest[1:]
        if not rest:
            raise _Refused("names no option", f"write {stem}__OPTION")
    key = "__".join(rest)
    return (*path, key), _option(section, key, stem)


def _named_target(table: str, names: list[str], tree: dict[str, Any], kinds: Kinds) -> tuple[KeyPath, Option | None]:
    if len(names) < 2:
        raise _Refused("names no option", f"write {PREFIX}{table.upper()}__NAME__OPTION")
    wanted, key = "__".join(names[:-1]), names[-1]
    in_file = tree.get(table)
    existing = list(in_file) if isinstance(in_file, dict) else []
    if table == "policies" and "default" not in existing:
        existing.append("default")
    fitting = [each for each in existing if _variable_name(each) == wanted]
    what = "policy" if table == "policies" else "sink"
    if not fitting:
        guess = nearest(wanted, existing)
        remedy = f'did you mean "{guess}"?' if guess else f"write [{table}.{wanted}] in the file, or unset it"
        raise _Refused(f'there is no {what} "{wanted}" in the file', remedy)
    if len(fitting) > 1:
        raise _Refused(f"fits {' and '.join(fitting)}", "rename one of them, or write the value in the file")
    name = fitting[0]
    section = POLICY if table == "policies" else _sink_section(tree, name, kinds)
    if table == "sinks" and key == "type":
        return (table, name, key), None
    return (table, name, key), _option(section, key, f"{PREFIX}{table.upper()}__{wanted.upper()}")


def _variable_name(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _sink_section(tree: dict[str, Any], name: str, kinds: Kinds) -> Section:
    """Where the file has no type, or none that exists, that is the problem to report: the first kind stands in."""
    sink = tree["sinks"][name]
    type_ = sink.get("type") if isinstance(sink, dict) else None
    first = next(iter(kinds.values()))
    return (kinds.get(type_, first) if isinstance(type_, str) else first).section


def _option(section: Section, key: str, stem: str) -> Option | None:
    if key not in section.keys:
        guess = nearest(key, section.by_key)
        remedy = f"did you mean {stem}__{guess.upper()}?" if guess else f"known are {', '.join(section.by_key).upper()}"
        raise _Refused("unknown key", remedy)
    return section.by_key.get(key)


def _value(text: str, option: Option | None) -> Any:
    how = "text" if option is None else option.read.override
    if how == "text or list":
        how = "list" if text.startswith("[") else "text"
    if how == "text" and option is not None:
        return text
    # Two values in one text would be two keys here, and a value that only begins like TOML does not parse.
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    if parsed.keys() == {"value"} and (how != "list" or isinstance(parsed["value"], list)):
        return parsed["value"]
    if how == "list":
        return [each.strip() for each in text.split(",")] if text.strip() else []
    return text
