"""How a value becomes text of a body (pure): the inside of a JSON string, HTML, or as it is."""

from __future__ import annotations

from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

from jinja2.runtime import Undefined
from markupsafe import escape as escape_html

from nsqdigest.delivery.bodies import values
from nsqdigest.delivery.bodies.base import BodyFailed

Encode = Callable[[str], str]


def encode_json(text: str) -> str:
    """As the inside of a JSON string."""
    return encode_basestring(text)[1:-1]


def encode_html(text: str) -> str:
    return str(escape_html(str(text)))


def encode_not(text: str) -> str:
    return text


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, values.Number):
        return value.text
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if value - value != 0:
            raise BodyFailed("shows a number that is infinite, or none", "check what it divides by")
        return repr(value)
    if isinstance(value, Undefined):
        return str(value)  # raises
    is_list = isinstance(value, list | tuple)
    what = "an object" if isinstance(value, dict) else "a list" if is_list else "something that is no text"
    raise BodyFailed(f"shows {what}", "write {{ … | tojson }}, or {{ … | join(', ') }} for a list")
