"""Which fields of an event are decoded (pure): the paths that templates and conditions name, as nested types.

The decoder makes attributes of the named fields; whatever else stands in an event is validated and skipped.

Comes from `routing`, which builds one shape for all routes of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import msgspec

Path = tuple[str, ...]
Reader = Callable[[Any], Any]


class Shape:
    def __init__(self, some_paths: Iterable[Path]) -> None:
        paths = set(some_paths)
        self._is_leaf = False
        self._fields: dict[str, tuple[str, Shape]] = {}
        for path in sorted(paths):
            if not path:
                self._is_leaf = True
            elif path[0] not in self._fields:
                below = Shape(other[1:] for other in paths if other[:1] == path[:1])
                self._fields[path[0]] = (f"field_{len(self._fields)}", below)
        self.type: Any = Any
        if not self._is_leaf:
            self.type = msgspec.defstruct(
                "Event",
                [(attribute, below.type, msgspec.UNSET) for attribute, below in self._fields.values()],
                rename={attribute: name for name, (attribute, _) in self._fields.items()},
                gc=False,
            )

    @property
    def names(self) -> list[tuple[str, str]]:
        """The fields of the first level, each with its attribute."""
        return [(name, attribute) for name, (attribute, _) in self._fields.items()]

    def build(self, value: Any) -> Any:
        """The same event from a value that was decoded whole. A value that is no object, where a path goes on below
        it, has none of the fields."""
        if self._is_leaf:
            return value
        if not isinstance(value, dict):
            return msgspec.UNSET
        found = ((name, place) for name, place in self._fields.items() if name in value)
        return self.type(**{attribute: below.build(value[name]) for name, (attribute, below) in found})

    def getter(self, path: Path) -> tuple[Reader, Path]:
        """Reads the part of a path that is decoded to attributes; raises AttributeError where a step of it is missing.
        With it the names that are left, below a field that a shorter path names."""
        attributes: list[str] = []
        shape = self
        while path and not shape._is_leaf:
            attribute, shape = shape._fields[path[0]]
            attributes.append(attribute)
            path = path[1:]
        return attrgetter(".".join(attributes)), path

    def reader(self, path: Path) -> Reader:
        """Reads a path from a decoded event; UNSET where a step of it is missing."""
        (get, rest), unset = self.getter(path), msgspec.UNSET
        if len(path) == 1:
            return get

        def read(event: Any) -> Any:
            try:
                value = get(event)
            except AttributeError:
                return unset
            for name in rest:
                value = value.get(name, unset) if value.__class__ is dict else unset
            return value

        return read
