"""Explains a text that is not TOML, and how TOML writes what is meant (pure).

The standard parser reports where it stopped, seldom why. Each habit of another language is recognised by the line where
it stopped. A message repeats a value only where its shape shows that it is no secret: true, a duration, an address.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Habit = tuple[re.Pattern[str], Callable[[re.Match[str]], tuple[str, str]]]

_KEY = r"(?P<key>[A-Za-z0-9_.\"'-]+)"
_ASSIGNED = rf"^\s*{_KEY}\s*=\s*"
_SWITCHES = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}
_CURLY = "\u2018-\u201f\u00ab\u00bb"
_BLOCK = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]")
_YAML = re.compile(r"^\s*(?:- )?[A-Za-z_][A-Za-z0-9_.-]*:(?:\s|$)|^\s*- |^---\s*$")
_YAML_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*:")
_TABLE = 'write [nsq], and below it key = "value"'
_NOT_CLOSED = {"string": "a quote", "array": "a [", "inline table": "a {", "table declaration": "a ["}
_HABITS: tuple[Habit, ...] = (
    (
        re.compile(rf"^[^\"'#]*=\s*\[?\s*[{_CURLY}]"),
        lambda m: ("these are curly quotes", f'write straight ones: {_key_of(m.string)} = "…"'),
    ),
    (re.compile(r"^\s*(?://|/\*|;|--)"), lambda _: ("not a comment in TOML", "comments begin with #")),
    (re.compile(r"^[^#]*\s//"), lambda _: ("not a comment in TOML", "comments begin with #")),
    (
        re.compile(rf"{_ASSIGNED}(?P<word>true|yes|on|false|no|off)\s*(?:#|$)", re.IGNORECASE),
        lambda m: ("true and false are lower case in TOML", f"write {m['key']} = {_SWITCHES[m['word'].lower()]}"),
    ),
    (
        re.compile(rf"{_ASSIGNED}(?:null|none|nil|~)?\s*(?:#|$)", re.IGNORECASE),
        lambda m: ("has no value, and TOML has no null", f'leave the line out, or write {m["key"]} = ""'),
    ),
    (
        re.compile(rf"{_ASSIGNED}(?P<value>(?:[0-9]+(?:\.[0-9]+)?\s*[A-Za-z]+)+|[0-9.]+:[0-9]+)\s*(?:#|$)"),
        lambda m: ("durations, sizes and addresses stand in quotes", f'write {m["key"]} = "{_no_blanks(m["value"])}"'),
    ),
    (
        re.compile(rf"{_ASSIGNED}(?P<number>0[0-9]+|[0-9]+(?:,[0-9]+)+)\s*(?:#|$)"),
        lambda m: ("not how TOML writes a number", f"write {m['key']} = {int(m['number'].replace(',', ''))}"),
    ),
    (
        re.compile(r"^[^#]*[\"'\]}0-9a-z][;,]\s*(?:#.*)?$"),
        lambda _: ("the line goes on behind its value", "leave out what follows it"),
    ),
    (
        re.compile(rf"^\s*{_KEY}\s*(?::=|==|=>|->)"),
        lambda m: ("one = stands between a key and its value", f"write {m['key']} = …"),
    ),
    (
        re.compile(r"^\s*(?P<key>[a-z_.]+)\s*\{\s*$"),
        lambda m: ("this is not TOML", f"a table begins with [{m['key']}]"),
    ),
    (
        re.compile(r"^\s*(?P<words>[A-Za-z0-9]+(?: +[A-Za-z0-9]+)+)\s*="),
        lambda m: ("a key has no blanks", f"write {'_'.join(m['words'].split())} = …"),
    ),
    (
        re.compile(rf"{_ASSIGNED}[^\s\"'\[{{#]"),
        lambda m: ("text, durations and sizes stand in quotes", f'write {m["key"]} = "…"'),
    ),
)


def explain(text: str, message: str, line: int) -> tuple[int, str, str]:
    """Line, problem and remedy, from the parser's message about that line."""
    lines = text.split("\n")
    row = lines[line - 1] if line <= len(lines) else ""
    beginning = _first_row(lines)
    if beginning is not None and (found := _another_language(lines, *beginning)):
        return found
    if "twice" in message or "overwrite" in message or "mutate" in message or "redefine" in message:
        return line, *_twice(lines, line, row)
    if _YAML.match(row):
        return line, "this looks like YAML", f"nsqdigest reads TOML: {_as_toml(row)}"
    if "Unescaped" in message or "hex" in message:
        return line, 'a \\ within "…" begins an escape', "write text with a \\ in single quotes: '…'"
    for pattern, say in _HABITS:
        if match := pattern.match(row):
            return line, *say(match)
    for what, opening in _NOT_CLOSED.items():
        if message.endswith(f"at the end of a {what}") or message in (f"Unclosed {what}", f"Unterminated {what}"):
            return line, f"{opening} is not closed", "close it on its line"
    if "Illegal character '\\n'" in message:
        return line, "a quote is not closed", "close it on its line"
    return line, f"not TOML: {message}", "write one key = value on a line"


def _key_of(row: str) -> str:
    return row.split("=", 1)[0].strip()


def _first_row(lines: list[str]) -> tuple[int, str] | None:
    rows = ((number, row.strip()) for number, row in enumerate(lines, 1))
    return next(((number, row) for number, row in rows if row and not row.startswith("#")), None)


def _another_language(lines: list[str], line: int, row: str) -> tuple[int, str, str] | None:
    """Judges the whole file by its first row that is neither blank nor a comment."""
    if row.startswith("{") or re.match(r"\[\s*$|\[\s*\{", row):
        return line, "this is JSON", f"nsqdigest reads TOML: {_TABLE}"
    if row.startswith("<"):
        return line, "this is XML", f"nsqdigest reads TOML: {_TABLE}"
    if _YAML.match(row):
        telling = next((other for other in map(str.strip, lines[line - 1 :]) if _YAML_KEY.match(other)), row)
        return line, "this is YAML", f"nsqdigest reads TOML: {_as_toml(telling)}"
    return None


def _no_blanks(text: str) -> str:
    return "".join(text.split())


def _as_toml(row: str) -> str:
    key, _, value = row.strip().removeprefix("- ").partition(":")
    if not value.strip():
        return f"write [{key}]" if _YAML_KEY.match(row.strip()) else _TABLE
    return f'write {key} = "…"'


def _twice(lines: list[str], line: int, row: str) -> tuple[str, str]:
    if header := _BLOCK.match(row):
        name = header.group(1)
        first = next((n for n, other in enumerate(lines, 1) if (m := _BLOCK.match(other)) and m.group(1) == name), line)
        if name == "routes":
            return (
                f"{lines[first - 1].strip()} stands in line {first} already",
                "write [[routes]], with two brackets, above each route",
            )
        if first < line:
            return f"[{name}] stands in line {first} already", "write it once, with all that belongs to it"
        return f"[{name}] is given a value further up", "leave one of them out"
    key = _key_of(row)
    for number in range(line - 1, 0, -1):
        if _BLOCK.match(lines[number - 1]):
            break
        if _key_of(lines[number - 1]) == key:
            return f"{key} stands in line {number} already", "leave one of them out"
    return f"{key} stands further up already", "leave one of them out"
