"""Templates of a mail over {route}, {timeline} and the fields of its newest record (pure)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from nsqdigest.base.templates import Template
from nsqdigest.delivery.bodies import values
from nsqdigest.delivery.bodies.document import Data

NAMES = ("route", "timeline")


class NoField(ValueError):
    """The message names the field as the template does, and quotes nothing of an event."""


class Fields:
    def __init__(self, data: Data, *, is_sample: bool = False) -> None:
        """`is_sample`: its events have every field; where one is not there, its name stands for it."""
        self._data = data
        self._is_sample = is_sample

    def fill(self, template: Template, change: Callable[[str], str] = str) -> str:
        """`change` is applied to what comes from the digest, not to the template's own text."""
        return "".join(part if isinstance(part, str) else change(self._found(part)) for part in template.parts)

    def _found(self, path: tuple[str, ...]) -> str:
        if len(path) == 1 and path[0] in NAMES:
            return str(getattr(self._data, path[0]))
        name = ".".join(path)
        try:
            found = self._event
            for step in path:
                found = found[step]
        except (KeyError, TypeError, IndexError):
            if self._is_sample:
                return path[-1]
            raise NoField(f'the newest record has no field "{name}"') from None
        if isinstance(found, bool):
            return "true" if found else "false"
        if isinstance(found, values.Number):
            return found.text
        if not isinstance(found, str | int):
            raise NoField(f'the field "{name}" of the newest record is no text, number, true or false')
        return str(found)

    @cached_property
    def _event(self) -> Any:
        newest = self._data.newest
        return values.parse(bytes(newest[0].value)) if newest else {}
