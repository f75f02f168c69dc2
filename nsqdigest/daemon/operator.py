"""What an operator may do to a running daemon: pause and resume a topic, a route or a sink.

Comes from `admin.operator` over HTTP; goes to the consumer of the topic or to the scheduler. A pause lasts until
`resume` or the end of the process. `paused_since_s` is what `status` shows of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nsqdigest.admin.operator import Kind
from nsqdigest.base import log
from nsqdigest.daemon.parts import Parts

_log = log.get("daemon")

Act = Callable[[str], bool]
"""Takes the name; returns whether anything changed."""


class Operator:
    """`admin.operator.Operated`, for the parts of one daemon."""

    def __init__(self, parts: Parts) -> None:
        self.paused_since_s: dict[tuple[str, str], float] = {}
        """By kind and name, in Unix time."""
        self.take(parts)

    def take(self, parts: Parts) -> None:
        """From now on they are those of another configuration. A pause of what it does not have is over."""
        routes, scheduler = parts.config.routes, parts.scheduler
        consumers = {consumer.topic: consumer for consumer in parts.consumers}
        self._names: dict[Kind, list[str]] = {
            "topic": list(consumers),
            "route": [route.name for route in routes],
            "sink": list(dict.fromkeys(route.sink for route in routes)),
        }
        self._pause: dict[Kind, Act] = {
            "topic": lambda topic: consumers[topic].pause(),
            "route": scheduler.pause_route,
            "sink": scheduler.pause_sink,
        }
        self._resume: dict[Kind, Act] = {
            "topic": lambda topic: consumers[topic].resume(),
            "route": scheduler.resume_route,
            "sink": scheduler.resume_sink,
        }
        there = {(kind, name) for kind, names in self._names.items() for name in names}
        for place in self.paused_since_s.keys() - there:
            del self.paused_since_s[place]

    def names_of(self, kind: Kind) -> list[str]:
        return self._names[kind]

    def pause(self, kind: Kind, name: str) -> bool:
        self.paused_since_s.setdefault((kind, name), time.time())
        is_new = self._pause[kind](name)
        if is_new:
            _log.info("daemon.operator.paused", kind=kind, name=name)
        return is_new

    def resume(self, kind: Kind, name: str) -> bool:
        self.paused_since_s.pop((kind, name), None)
        is_new = self._resume[kind](name)
        if is_new:
            _log.info("daemon.operator.resumed", kind=kind, name=name)
        return is_new
