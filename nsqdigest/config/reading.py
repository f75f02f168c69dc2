"""From the text of a file to the tree: finds the file, gathers every problem of it, and builds only when there is none.

Nothing is read but the file and the secrets that it names, nothing is written, and nothing happens at import.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nsqdigest.config import overrides, rules
from nsqdigest.config.model import Config
from nsqdigest.config.options import LATER_SINKS, POLICY, REQUIRED, ROUTE, SECTIONS, SINKS, TABLES, Section
from nsqdigest.config.problems import INVALID, Findings, Spot, dotted, nearest, show, toml
from nsqdigest.config.readers import Text, take
from nsqdigest.config.texts import name
from nsqdigest.config.toml_lines import locate
from nsqdigest.errors import ConfigError

VARIABLE = "NSQDIGEST_CONFIG"
PLACES = (Path("nsqdigest.toml"), Path("/etc/nsqdigest/nsqdigest.toml"))

_UNQUOTED = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=\s*[^\s\"'\[{#]")
_SINK_TYPES = " or ".join(", ".join(f'"{kind}"' for kind in SINKS).rsplit(", ", 1))

Values = dict[str, Any]


def find(explicit: Path | None, environ: Mapping[str, str]) -> Path:
    """The file to use: the one that was named, by -c or by the environment, or the first that is there."""
    if explicit is not None:
        return explicit
    if named := environ.get(VARIABLE):
        return Path(named)
    for place in PLACES:
        if place.exists():
            return place
    looked = " and ".join(str(place) for place in PLACES)
    raise ConfigError(
        [
            f"no configuration: looked for {looked}; name a file with -c FILE or {VARIABLE}, "
            "or try `nsqdigest demo`, which needs none"
        ]
    )


def load(path: Path, environ: Mapping[str, str]) -> Config:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        way = "name another with -c FILE, or try `nsqdigest demo`, which needs none"
        raise ConfigError([f"{path}: there is no such file; {way}"]) from None
    except IsADirectoryError:
        raise ConfigError([f"{path}: is a directory; name the file in it with -c FILE"]) from None
    except PermissionError:
        raise ConfigError([f"{path}: may not be read by this user; change its owner or its mode (chmod)"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: can not be read: {error.strerror}; name another with -c FILE"]) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{data[error.start]:02x}"
        raise ConfigError([f"{path}:{line}: {byte} is not UTF-8; save the file as UTF-8"]) from None
    return parse_text(text, str(path), environ)


def parse_text(text: str, source: str, environ: Mapping[str, str]) -> Config:
    """The tree that a file's text and the environment say. `source`: the file's path, as it is shown."""
    tree = _parse_toml(text, source)
    findings = Findings(source, environ, locate(text))
    overrides.apply(tree, findings)
    root = Spot(findings)
    sections = {key: _read_section(section, tree.get(key, {}), root / key) for key, section in SECTIONS.items()}
    policies = {"default": _read_section(POLICY, {}, root / "policies" / "default")}
    policies |= {key: _read_section(POLICY, raw, spot) for key, raw, spot in _named_tables(tree, root / "policies")}
    kinds_and_sinks = {key: _read_sink(raw, spot) for key, raw, spot in _named_tables(tree, root / "sinks")}
    routes = _read_routes(tree, root / "routes")
    _refuse_unknown_tables(tree, root)
    sinks = {key: values for key, (_, values) in kinds_and_sinks.items()}
    rules.lease_and_timeouts(sections["scheduler"], sinks, root)
    rules.store_timeout(sections["redis"], sections["nsq"], root)
    rules.routes(routes, tuple(policies), tuple(sinks), root)
    rules.dead_letters(sections["nsq"], routes, root)
    rules.nsq_topics(sections["nsq"], sinks, routes, root)
    rules.secret_to_sinks(sections["nsq"], sinks, root)
    if findings.problems:
        raise ConfigError(findings.problems)
    # On a single server, the only kind there is, one partition is best: a batch is then one script call.
    sections["redis"]["partitions"] = sections["redis"]["partitions"] or 1
    return Config(
        source=source,
        policies=MappingProxyType({key: POLICY.build(name=key, **values) for key, values in policies.items()}),
        sinks=MappingProxyType(
            {key: SINKS[kind].build(name=key, type=kind, **values) for key, (kind, values) in kinds_and_sinks.items()}
        ),
        routes=tuple(ROUTE.build(**values) for values in routes),
        warnings=findings.warnings,
        **{key: section.build(**sections[key]) for key, section in SECTIONS.items()},
    )


def _parse_toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
    except ValueError:
        raise ConfigError([f"{source}:1: somewhere a number has too many digits; write a shorter one"]) from None
    except RecursionError:
        raise ConfigError([f"{source}:1: nested too deep to be a configuration; write it flat"]) from None
    what, _, place = message.rpartition(" (at ")
    numbers = re.findall(r"[0-9]+", place)
    lines = text.split("\n")
    line, column = (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (len(lines), len(lines[-1]) + 1)
    way = "correct it there"
    if unquoted := _UNQUOTED.match(lines[line - 1] if line <= len(lines) else ""):
        # The value itself is not repeated: it may be a secret.
        way = f'text, durations and sizes stand in quotes: {unquoted.group(1)} = "…"'
    if "overwrite" in what or "twice" in what:
        way = "the same key or table stands further up; leave one of them out"
    raise ConfigError([f"{source}:{line}:{column}: not TOML: {what or message}; {way}"])


def _read_section(section: Section, raw: Any, spot: Spot) -> Values:
    if not isinstance(raw, dict):
        spot.problem(f"is not a table; write [{dotted(spot.path)}]")
        return {}
    values: Values = {}
    misspelt = {nearest(key, section.by_key) for key in raw if key not in section.keys}
    for option in section.options:
        here = spot / option.key
        if option.key not in raw and option.key in misspelt:
            continue  # one mistake, one line: the unknown key's
        if option.key not in raw and option.default is REQUIRED:
            here.problem(f"missing; write one like {option.key} = {toml(option.sample)}")
            continue
        value = take(option.read, raw.get(option.key, option.default), here)
        if value is not INVALID:
            values[option.field] = value
    for key, table in section.tables:
        if key not in raw:
            values[key] = None
        elif len(inner := _read_section(table, raw[key], spot / key)) == len(table.options):
            values[key] = table.build(**inner)
    _refuse_unknown_keys(section, raw, spot)
    for rule in section.rules:
        rule(values, spot)
    return values


def _refuse_unknown_keys(section: Section, raw: dict[str, Any], spot: Spot) -> None:
    absent = dict(section.absent)
    served = {*section.by_key, *(key for key, _ in section.tables)}
    for key, value in raw.items():
        if key in served:
            continue
        if key in absent and not _says(value, absent[key]):
            (spot / key).problem("is not available in this version; leave it out")
        elif key not in absent:
            (spot / key).problem(f"unknown key; {_unknown_way(key, section)}")


def _says(value: Any, default: Any) -> bool:
    """Whether an option that is not served asks for nothing. (True is 1 to Python.)"""
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


def _unknown_way(key: str, section: Section) -> str:
    if guess := nearest(key, section.by_key):
        return f'did you mean "{guess}"?'
    for other, there in (*SECTIONS.items(), ("policies.default", POLICY)):
        if there is not section and key in there.by_key:
            return f"there is one in [{other}]"
    return f"known are {', '.join(section.by_key)}"


def _named_tables(tree: dict[str, Any], spot: Spot) -> list[tuple[str, Any, Spot]]:
    """The tables of [policies.NAME] or [sinks.NAME]."""
    table = str(spot.path[0])
    raw = tree.get(table, {})
    if not isinstance(raw, dict):
        spot.problem(f"is not a table of tables; write [{table}.NAME]")
        return []
    found: list[tuple[str, Any, Spot]] = []
    for key, value in raw.items():
        here = spot / key
        if not isinstance(value, dict):
            here.problem(f"stands in no {'policy' if table == 'policies' else 'sink'}; write [{table}.NAME] above it")
        elif take(Text(name), key, here) is not INVALID:
            found.append((key, value, here))
    return found


def _read_sink(raw: dict[str, Any], spot: Spot) -> tuple[str, Values]:
    here = spot / "type"
    kind = raw.get("type")
    misspelt = next((key for key in raw if nearest(key, ("type",))), None)
    if kind is None and misspelt:
        (spot / misspelt).problem('unknown key; did you mean "type"?')
    elif kind is None:
        here.problem(f"missing; write type = {_SINK_TYPES}")
    elif kind in LATER_SINKS:
        here.problem(f"a sink of type {show(kind)} is not available in this version; write {_SINK_TYPES}")
    elif not isinstance(kind, str) or kind not in SINKS:
        guess = nearest(kind, SINKS) if isinstance(kind, str) else ""
        way = f'did you mean "{guess}"?' if guess else f"write {_SINK_TYPES}"
        here.problem(f"{show(kind)} is no type of sink; {way}")
    else:
        return kind, _read_section(SINKS[kind], {key: value for key, value in raw.items() if key != "type"}, spot)
    return "", {}


def _read_routes(tree: dict[str, Any], spot: Spot) -> list[Values]:
    raw = tree.get("routes")
    if raw is None or raw == []:
        spot.problem('missing; write at least one [[routes]] with topic = "…", timeline = "…" and sink = "…"')
        return []
    if not isinstance(raw, list):
        spot.problem("is not a list of tables; write [[routes]], with two brackets")
        return []
    if not all(isinstance(each, dict) for each in raw):
        spot.problem("holds something else than tables; write [[routes]] above each route")
        return []
    return [_read_section(ROUTE, each, spot / index) for index, each in enumerate(raw)]


def _refuse_unknown_tables(tree: dict[str, Any], root: Spot) -> None:
    for key, value in tree.items():
        if key in TABLES:
            continue
        guess = nearest(key, TABLES)
        home = next((section for section, there in SECTIONS.items() if key in there.by_key), "")
        if not isinstance(value, dict | list) and home:
            way = f"write it under [{home}]"
        elif guess:
            way = f'did you mean "{guess}"?'
        else:
            way = f"known are {', '.join(TABLES)}"
        (root / key).problem(f"unknown {'table' if isinstance(value, dict | list) else 'key'}; {way}")
