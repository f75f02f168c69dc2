"""The operator's own body: a Jinja2 template over the digest, compiled once and bounded each time (pure).

The template sees the digest as docs/receivers.md has it: `type`, `timestamp` and `data`. Beside what the JSON has,
`data` always has both `records` (all that are shown, the newest first) and `groups` (empty where the route has no
group), and `not_shown`.

Invariants:
- The same digest makes the same bytes.
- A body larger than the sink's `max_body` is rendered again with half of the records, until it fits.
- A message about a failure quotes nothing of an event: it goes into the log.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import jinja2
import msgspec
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from nsqdigest.base.words import nearest
from nsqdigest.delivery.bodies import document, values
from nsqdigest.delivery.bodies.base import BodyFailed
from nsqdigest.delivery.bodies.encoding import encode_html, encode_json, encode_not
from nsqdigest.delivery.bodies.sandbox import NotThere, Sandbox
from nsqdigest.delivery.bodies.work import TooLong, Work

LONGEST_S = 2.0
"""Of one rendering."""
_WORK_PER_BODY = 4
"""So many times the largest body may become text on the way: macros and blocks make it more than once."""
_FILE = "<template>"
_VARIABLES = ("data", "timestamp", "type")
_METHODS = {
    "get": "x.name | default('')", "items": "x | items", "keys": "x | items", "values": "x | items",
    "lower": "x | lower", "upper": "x | upper", "strip": "x | trim", "replace": "x | replace('a', 'b')",
    "split": "x | split", "join": "list | join(', ')", "format": "a ~ b", "append": "list + [x]",
}  # fmt: skip


class _Record(values.Written):
    """Its event is parsed when the template asks for it."""

    __slots__ = ("_record", "_value")
    fields = ("key", "timestamp", "value")

    def __init__(self, record: document.Record) -> None:
        self._record = record

    @property
    def key(self) -> str:
        return self._record.key

    @property
    def timestamp(self) -> int:
        return self._record.timestamp

    @property
    def value(self) -> Any:
        try:
            return self._value
        except AttributeError:
            self._value: Any = values.parse(bytes(self._record.value))
            return self._value

    def as_json(self) -> bytes:
        return msgspec.json.encode(self._record)


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _is_markup(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind in ("text/html", "text/xml", "application/xml") or kind.endswith("+xml")


class Template:
    """A `Body`. Not for two threads at a time."""

    def __init__(self, text: str, content_type: str, max_body_bytes: int, now_s: Callable[[], float]) -> None:
        """Raises `BodyFailed` where it is no template."""
        self._text = text
        self._is_json = is_json(content_type)
        self._max_body_bytes = max_body_bytes
        self._now_s = now_s
        self.sandbox = Sandbox(
            encode_json if self._is_json else encode_html if _is_markup(content_type) else encode_not
        )
        try:
            code = self.sandbox.compile(text, filename=_FILE)
        except TemplateSyntaxError as error:
            raise self._syntax(error) from None
        except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise BodyFailed("is nested too deep to be compiled", "write it flatter") from error
        self._template = jinja2.Template.from_code(self.sandbox, code, self.sandbox.make_globals(None))

    def __call__(self, digest_json: bytes) -> bytes:
        digest = document.read(digest_json)
        records = [_Record(each) for each in digest.data.newest]
        until_s = self._now_s() + LONGEST_S
        most = len(records)
        while True:
            try:
                body = self._render(_variables(digest, records[:most]), until_s)
                if len(body) > self._max_body_bytes:
                    raise TooLong
            except TooLong as error:
                if not most:
                    raise BodyFailed(
                        "is larger than the sink's max_body without a record", "show less", error.line
                    ) from None
                most //= 2
                continue
            if self._is_json:
                _check_json(body)
            return body

    def _render(self, variables: dict[str, Any], until_s: float) -> bytes:
        self.sandbox.work = Work(_WORK_PER_BODY * self._max_body_bytes, lambda: self._now_s() > until_s)
        try:
            return "".join(self._template.generate(variables)).encode()
        except BodyFailed as error:
            error.line = error.line or _line_of(error.__traceback__)
            raise
        except Exception as error:
            raise self._failed(error) from None

    # -- what went wrong, in words that quote no event

    def _failed(self, error: Exception) -> BodyFailed:
        line, quoting = _line_of(error.__traceback__), f"{type(error).__name__}: {error}"
        if isinstance(error, NotThere):
            (problem, remedy), quoting = self._not_there(error), ""
        elif isinstance(error, RecursionError):
            problem, remedy = "calls itself too deep", "see that the macro, or the loop, ends"
        elif isinstance(error, SecurityError):
            problem, remedy = "uses what a template may not", "leave it out"
        elif isinstance(error, TypeError):
            problem, remedy = "does what these values cannot", "test them before (`is number`, `is mapping`)"
        else:
            problem, remedy = f"fails with {type(error).__name__}", "test the values before"
        return BodyFailed(problem, remedy, line, quoting)

    def _not_there(self, error: NotThere) -> tuple[str, str]:
        name = error.name if isinstance(error.name, str) and error.name in self._text else ""
        if error.is_variable:
            close = nearest(name, _VARIABLES)
            return (
                f'"{name}" is not there',
                f'did you mean "{close}"?' if close else "there are data, timestamp, type",
            )
        if name in _METHODS:
            return f'"{name}" is not there: data has fields and no methods', f"write {{{{ {_METHODS[name]} }}}}"
        shown = f'"{name}"' if name else f"element {error.name}" if isinstance(error.name, int) else "a field"
        remedy = 'write {{ … | default("") }}, or test it with `is defined`'
        close = nearest(name, _FIELDS)
        return f"{shown} is not there", f'did you mean "{close}"? Else {remedy}' if close else remedy

    def _syntax(self, error: TemplateSyntaxError) -> BodyFailed:
        message = (error.message or "is no template").rstrip(".")
        remedy = "correct it there"
        for what, known in (("filter", self.sandbox.filters), ("test", self.sandbox.tests)):
            if message.startswith(f"No {what} named"):
                names = sorted(name for name in known if name.isidentifier() and name != "for")
                close = nearest(message.split("'")[1], names)
                remedy = f'did you mean "{close}"?' if close else f"there are {', '.join(names)}"
        return BodyFailed(message[0].lower() + message[1:], remedy, error.lineno)


_FIELDS = (
    *document.Data.__struct_fields__, *document.Group.__struct_fields__, *_Record.fields, "not_shown",
)  # fmt: skip


def _variables(digest: document.Digest, records: list[_Record]) -> dict[str, Any]:
    data = {name: getattr(digest.data, name) for name in digest.data.__struct_fields__}
    shown = {id(each._record) for each in records}
    by_record = {id(each._record): each for each in records}
    data["groups"] = [
        {
            "group": group.group,
            "count": group.count,
            "records": [by_record[id(each)] for each in group.records if id(each) in shown],
        }
        for group in digest.data.groups or ()
    ]
    data["records"] = records
    dropped = digest.data.dropped
    data["dropped"] = {"capacity": dropped.capacity, "cancelled": dropped.cancelled}
    data["shown"], data["not_shown"] = len(records), digest.data.total - len(records)
    return {"type": digest.type, "timestamp": digest.timestamp, "data": data}


def _line_of(traceback: TracebackType | None) -> int | None:
    """Of the template: the innermost."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _FILE:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _check_json(body: bytes) -> None:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        byte = str(error).rpartition("(byte ")[2].rstrip(")")
        at = int(byte) if byte.isdigit() else len(body)
        line = body.count(b"\n", 0, at) + 1
        near = body[max(0, at - 40) : at + 20].decode("utf-8", "replace")
        problem = f"makes what is no JSON, in line {line} of the body"
        remedy = 'text stands in quotes, "{{ x }}", or is {{ x | tojson }}; behind the last element stands no comma'
        raise BodyFailed(problem, remedy, quoting=f"{error}, near {near}") from None
