"""Turns the text of a file into the tree: finds the file, gathers all problems, and builds only where there is none.

`kinds` are the kinds of sink that a file may name: they stand to the right of this room, in `delivery/sinks`.

Invariants:
- It reads the file and the secrets that the file names, writes nothing, and does nothing at import.
- Each problem is reported once, in the line that has to change.
"""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nsqdigest.base.errors import ConfigError, Mistake
from nsqdigest.base.files import LARGEST_BYTES, FileProblem
from nsqdigest.base.words import nearest
from nsqdigest.config import advice, overrides, rules, toml_mistakes
from nsqdigest.config.model import Config
from nsqdigest.config.options import (
    POLICY,
    REQUIRED,
    ROUTE,
    SECTIONS,
    TABLES,
    Kinds,
    Section,
    Tables,
)
from nsqdigest.config.problems import INVALID, Findings, Spot, dotted, show, toml
from nsqdigest.config.readers import Text, take
from nsqdigest.config.texts import name
from nsqdigest.config.toml_lines import locate

VARIABLE = "NSQDIGEST_CONFIG"
PLACES = (Path("nsqdigest.toml"), Path("/etc/nsqdigest/nsqdigest.toml"))

_PARTS_OF_URL = ("host", "hostname", "port", "db", "database", "password", "username", "user")
NAMED = ("policies", "sinks")

Values = dict[str, Any]


def find(explicit: Path | None, environ: Mapping[str, str]) -> Path:
    """The file to use: the one that -c or the environment names, or the first that exists."""
    if explicit is not None:
        return explicit
    if named := environ.get(VARIABLE):
        return Path(named)
    for place in PLACES:
        try:
            if place.exists():
                return place
        except PermissionError:  # of its folder: `load` reports it
            return place
    looked = " and ".join(str(place) for place in PLACES)
    remedy = (
        f"write one with `nsqdigest init`, name one with -c FILE or {VARIABLE}, "
        "or try `nsqdigest demo`, which needs none"
    )
    raise ConfigError([Mistake(f"no configuration: looked for {looked}", remedy)])


def load(path: Path, environ: Mapping[str, str], kinds: Kinds, *, without_secrets: bool = False) -> Config:
    """`without_secrets`: what `env:`, `file:` and the files of [nsq.tls] stand for may be elsewhere."""

    def wrong(problem: str, remedy: str, line: int | None = None) -> ConfigError:
        return ConfigError([Mistake(problem, remedy, file=str(path), line=line)])

    try:
        data = _bytes_of(path)
    except FileProblem as problem:
        raise wrong(problem.what, problem.remedy) from None
    except FileNotFoundError:
        raise wrong("there is no such file", _remedy_of_missing(path)) from None
    except IsADirectoryError:
        raise wrong("is a directory", "name the file in it with -c FILE") from None
    except PermissionError:
        raise wrong("may not be read by this user", "change its owner or its mode (chmod)") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise wrong(f"cannot be read: {why}", "name another with -c FILE") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong(f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8", line) from None
    return parse_text(text, str(path), environ, kinds, without_secrets=without_secrets)


def _bytes_of(path: Path) -> bytes:
    """Reads a plain file, or a pipe that the shell has opened: `-c <(...)`. A named pipe could keep a reload waiting
    for ever. Raises FileProblem and OSError."""
    mode = path.stat().st_mode
    is_of_the_shell = stat.S_ISFIFO(mode) and str(path).startswith(("/dev/", "/proc/self/fd/"))
    if not (is_of_the_shell or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FileProblem("is not a plain file", "name one: no pipe, no device")
    with path.open("rb") as file:
        data = file.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise FileProblem(f"is larger than {LARGEST_BYTES >> 10:,} KiB", "name a smaller file")
    return data


def _remedy_of_missing(path: Path) -> str:
    try:
        there = [each.stem for each in path.parent.iterdir() if each.suffix == path.suffix]
    except OSError:
        there = []
    if guess := nearest(path.stem, there):
        return f"did you mean {path.with_name(guess + path.suffix)}?"
    return f"name another, or write one with `nsqdigest init {path}`"


def parse_text(
    text: str, source: str, environ: Mapping[str, str], kinds: Kinds, *, without_secrets: bool = False
) -> Config:
    """`source`: the path of the file, as messages show it."""
    tree = _parse_toml(text, source)
    findings = Findings(source, environ, locate(text), without_secrets)
    root = Spot(findings)
    _refuse_unknown_tables(tree, root)
    overrides.apply(tree, findings, kinds)
    sections = {key: _read_section(section, tree.get(key, {}), root / key) for key, section in SECTIONS.items()}
    policies = {key: _read_section(POLICY, raw, spot) for key, raw, spot in _named_tables(tree, root / "policies")}
    if "default" not in policies:
        policies["default"] = _read_section(POLICY, {}, root / "policies" / "default")
    types_and_sinks = {key: _read_sink(raw, spot, kinds) for key, raw, spot in _named_tables(tree, root / "sinks")}
    routes = _read_routes(tree, root / "routes")
    sinks = {key: values for key, (_, values) in types_and_sinks.items()}
    rules.lease_and_timeouts(sections["scheduler"], sinks, root)
    rules.routes(routes, tuple(policies), tuple(sinks), root)
    rules.ends(routes, policies, root)
    rules.quiet_hours(rules.per_sink(routes), policies, sinks, root)
    rules.dead_letters(sections["nsq"], routes, root)
    advice.whole_file(sections["nsq"], sections["limits"], routes, policies, root)
    for kind in kinds.values():
        of_kind = {key: values for key, (type_, values) in types_and_sinks.items() if type_ == kind.name}
        for rule in kind.rules_of_file:
            rule(Tables(sections["nsq"], of_kind, rules.per_sink(routes), policies), root)
    rules.waits(sections["nsq"], sections["redis"], root)
    rules.unused(routes, tree, root)
    overrides.advise_on_unknown(findings)
    if findings.problems:
        raise ConfigError(findings.problems)
    findings.fill()
    return Config(
        source=source,
        policies=MappingProxyType({key: POLICY.build(name=key, **values) for key, values in policies.items()}),
        sinks=MappingProxyType(
            {
                key: kinds[type_].settings(name=key, type=type_, **values)
                for key, (type_, values) in types_and_sinks.items()
            }
        ),
        routes=tuple(ROUTE.build(**values) for values in rules.per_sink(routes)),
        warnings=findings.warnings,
        not_at_hand=findings.not_at_hand,
        **{key: section.build(**sections[key]) for key, section in SECTIONS.items()},
    )


def _parse_toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
    except ValueError:
        mistake = Mistake("somewhere a number has too many digits", "write a shorter one", file=source, line=1)
        raise ConfigError([mistake]) from None
    except RecursionError:
        mistake = Mistake("nested too deep to be a configuration", "write it flat", file=source, line=1)
        raise ConfigError([mistake]) from None
    what, _, place = message.rpartition(" (at ")
    numbers = re.findall(r"[0-9]+", place)
    line = int(numbers[0]) if len(numbers) == 2 else text.count("\n") + 1
    line, problem, remedy = toml_mistakes.explain(text, what or message, line)
    raise ConfigError([Mistake(problem, remedy, file=source, line=line)])


def _read_section(section: Section, raw: Any, spot: Spot) -> Values:
    if not isinstance(raw, dict):
        spot.problem("is not a table", f"write [{dotted(spot.path)}]")
        return {}
    values: Values = {}
    misspelt = {nearest(key, section.by_key) for key in raw if key not in section.keys}
    for option in section.options:
        here = spot / option.key
        if option.key not in raw and option.key in misspelt:
            continue  # one mistake, one line: the unknown key's
        if option.key not in raw and option.default is REQUIRED:
            here.problem("missing", f"write one like {option.key} = {toml(option.sample)}")
            continue
        value = take(option.read, raw.get(option.key, option.default), here)
        if value is not INVALID:
            values[option.field] = value
        elif spot.findings.without_secrets:
            stand_in = option.sample if option.default is REQUIRED else option.default
            spot.findings.stand_ins.append((values, option.field, take(option.read, stand_in, here)))
    for key, table in section.tables:
        if key not in raw:
            values[key] = None
            continue
        inner = _read_section(table, raw[key], spot / key)
        spot.findings.fill(inner)
        if len(inner) == len(table.options):
            values[key] = table.build(**inner)
    _refuse_unknown_keys(section, raw, spot)
    for rule in section.rules:
        rule(values, spot)
    return values


def _refuse_unknown_keys(section: Section, raw: dict[str, Any], spot: Spot) -> None:
    served = {*section.by_key, *(key for key, _ in section.tables)}
    if section is SECTIONS["redis"] and (parts := [key for key in raw if key in _PARTS_OF_URL]):
        (spot / parts[0]).problem("stands in the URL", f'write url = "{_redis_url(raw)}"')
        served |= {*parts}
    for key in raw:
        if key not in served:
            (spot / key).problem("unknown key", _remedy_of_unknown(key, section))


def _redis_url(raw: dict[str, Any]) -> str:
    """The URL made of keys that stand apart from it; never with a password."""
    host = str(raw.get("host") or raw.get("hostname") or "127.0.0.1")
    login = "USER:PASSWORD@" if {"password", "username", "user"} & raw.keys() else ""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", host):
        host = "HOST"
    port, database = (str(raw.get(key, usual)) for key, usual in (("port", 6379), ("db", 0)))
    is_plain = port.isdigit() and database.isdigit()
    return f"redis://{login}{host}:{port}/{database}" if is_plain else f"redis://{login}{host}:6379/0"


def _remedy_of_unknown(key: str, section: Section) -> str:
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
        spot.problem("is not a table of tables", f"write [{table}.NAME]")
        return []
    found: list[tuple[str, Any, Spot]] = []
    for key, value in raw.items():
        here = spot / key
        if not isinstance(value, dict):
            here.problem(
                f"belongs to no {'policy' if table == 'policies' else 'sink'}", f"write [{table}.NAME] above it"
            )
        elif take(Text(name), key, here) is not INVALID:
            found.append((key, value, here))
    return found


def _read_sink(raw: dict[str, Any], spot: Spot, kinds: Kinds) -> tuple[str, Values]:
    """Its type and its options; "" and none where there is no such type."""
    here = spot / "type"
    kind = raw.get("type")
    write_one = f"write {_listed(kinds)}"
    misspelt = next((key for key in raw if nearest(key, ("type",))), None)
    if isinstance(kind, str) and kind in kinds:
        return kind, _read_section(kinds[kind].section, {key: raw[key] for key in raw if key != "type"}, spot)
    if kind is None and misspelt:
        (spot / misspelt).problem("unknown key", 'did you mean "type"?')
    elif kind is None:
        here.problem("missing", f"write type = {_listed(kinds)}")
    else:
        guess = nearest(kind, kinds) if isinstance(kind, str) else ""
        here.problem(f"{show(kind)} is not a type of sink", f'did you mean "{guess}"?' if guess else write_one)
    return "", {}


def _listed(kinds: Kinds) -> str:
    return " or ".join(", ".join(f'"{kind}"' for kind in kinds).rsplit(", ", 1))


def _read_routes(tree: dict[str, Any], spot: Spot) -> list[Values]:
    raw = tree.get("routes")
    if raw is None or raw == []:
        spot.problem("missing", 'write at least one [[routes]] with topic = "…", timeline = "…" and sink = "…"')
        return []
    if not isinstance(raw, list):
        spot.problem("is not a list of tables", "write [[routes]], with two brackets")
        return []
    if not all(isinstance(each, dict) for each in raw):
        spot.problem("holds something else than tables", "write [[routes]] above each route")
        return []
    return [_read_section(ROUTE, each, spot / index) for index, each in enumerate(raw)]


def _refuse_unknown_tables(tree: dict[str, Any], root: Spot) -> None:
    """A misspelt table is read under the name that is meant: its own mistakes are reported, and it is not missing."""
    for key, value in [*tree.items()]:
        if key in TABLES:
            continue
        guess = nearest(key, TABLES)
        home = next((section for section, there in SECTIONS.items() if key in there.by_key), "")
        if not isinstance(value, dict | list) and home:
            remedy = f"write it under [{home}]"
        elif guess:
            written = f"[[{guess}]]" if guess == "routes" else f"[{guess}.NAME]" if guess in NAMED else f"[{guess}]"
            remedy = f"did you mean {written}?"
            if guess not in tree and isinstance(value, dict | list):
                tree[guess] = value
                root.findings.rename(key, guess)
        else:
            remedy = f"known are {', '.join(TABLES)}"
        (root / key).problem(f"unknown {'table' if isinstance(value, dict | list) else 'key'}", remedy)
