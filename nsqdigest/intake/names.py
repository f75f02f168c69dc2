"""Names of timelines and keys of records (pure): templates rendered from an event, checked, encoded for Redis."""

from __future__ import annotations

import re
from collections.abc import Callable
from sys import getsizeof
from typing import TYPE_CHECKING, Any

import msgspec

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.intake.bodies import TYPE_NAMES, Rejected

if TYPE_CHECKING:
    from nsqdigest.base.templates import Template
    from nsqdigest.intake.shapes import Path, Shape

NAMES_BYTES = 16 << 20
"""The names of timelines that a topic remembers take up no more."""
_ENTRY_BYTES = 110
"""Of a dict, for each entry."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Renderer = Callable[[Any, bytes], str]
KeyRenderer = Callable[[Any, bytes], bytes]
"""From a decoded event and its body."""


def renderer(template: Template, shape: Shape) -> Renderer:
    """The renderer raises Rejected where a field is missing, or is no text, number or boolean."""
    if len(template.paths) == 1:
        return _renderer_of_one_field(template, shape)
    readers = {path: shape.reader(path) for path in template.paths}
    pieces = [part if isinstance(part, str) else (part, readers[part]) for part in template.parts]

    def render(event: Any, body: bytes) -> str:
        return "".join(
            piece if isinstance(piece, str) else _as_text(piece[1](event), piece[0], body) for piece in pieces
        )

    return render


def _renderer_of_one_field(template: Template, shape: Shape) -> Renderer:
    """The common template, "prefix:{field}": one read and one concatenation."""
    [path] = template.paths
    place = template.parts.index(path)
    before = "".join(part for part in template.parts[:place] if isinstance(part, str))
    behind = "".join(part for part in template.parts[place + 1 :] if isinstance(part, str))
    (get, rest), unset = shape.getter(path), msgspec.UNSET
    read_field = shape.reader(path) if rest else get

    def render_field(event: Any, body: bytes) -> str:
        try:
            value = read_field(event)
        except AttributeError:
            value = unset
        return before + (value if value.__class__ is str else _as_text(value, path, body)) + behind

    return render_field


def _as_text(value: Any, path: Path, body: bytes) -> str:
    kind = value.__class__
    if kind is str:
        return value  # type: ignore[no-any-return]
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is float:
        return _as_written(body, path)
    name = ".".join(path)
    if value is msgspec.UNSET or value is None:
        raise Rejected(
            DeadLetterReason.MISSING_FIELD, f'the field "{name}" is {"null" if value is None else "not there"}'
        )
    raise Rejected(
        DeadLetterReason.BAD_FIELD,
        f'the field "{name}" is {TYPE_NAMES[kind]}; only text, numbers and true or false can be used',
    )


def _as_written(body: bytes, path: Path) -> str:
    """A number with a fraction or an exponent as it stands in the body: 1.50 and 1.5 are two names."""
    value = body
    for name in path:
        value = bytes(_decode_fields(value)[name])
    return value.decode()


def encoded_name(text: str, what: str, limit_bytes: int) -> bytes:
    """Raises Rejected for a name that Redis, a log or a receiver should not get."""
    if not text:
        raise Rejected(DeadLetterReason.BAD_FIELD, f"the {what} would be empty")
    if control := _CONTROL.search(text):
        raise Rejected(DeadLetterReason.BAD_FIELD, f"the {what} has the control character U+{ord(control.group()):04X}")
    encoded = text.encode()
    if len(encoded) > limit_bytes:
        raise Rejected(
            DeadLetterReason.BAD_FIELD, f"the {what} has {len(encoded)} bytes; limits.key allows {limit_bytes}"
        )
    return encoded


def key_renderer(template: Template, shape: Shape, limit_bytes: int) -> KeyRenderer:
    """Of records' keys, checked and encoded."""
    render = renderer(template, shape)
    return lambda event, body: encoded_name(render(event, body), "record's key", limit_bytes)


class TimelineNames:
    """Names of timelines that were checked and encoded before: they recur. (Keys of records do not.) All are forgotten
    when they would take up more than NAMES_BYTES."""

    def __init__(self, limit_bytes: int) -> None:
        self.known: dict[str, bytes] = {}
        self._limit_bytes = limit_bytes
        self._held_bytes = 0

    def encode(self, text: str) -> bytes:
        encoded = encoded_name(text, "timeline's name", self._limit_bytes)
        size_bytes = getsizeof(text) + getsizeof(encoded) + _ENTRY_BYTES
        if self._held_bytes + size_bytes > NAMES_BYTES:
            self.known.clear()
            self._held_bytes = 0
        self._held_bytes += size_bytes
        self.known[text] = encoded
        return encoded
