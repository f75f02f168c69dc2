"""What an operator may do to a running daemon: pause and resume a topic, a route or a sink, flush a timeline, send
dead digests again.

Comes from `admin.operator` over HTTP; goes to the consumer of the topic, the scheduler or the store. A pause lasts
until `resume` or the end of the process. `paused_since_s` is what `status` shows of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from nsqdigest.admin.operator import Kind
from nsqdigest.base import log
from nsqdigest.base.errors import NsqdigestError
from nsqdigest.daemon.parts import Parts
from nsqdigest.store.dead_work import DeadWork, Result
from nsqdigest.store.inspection import Inspector, Place
from nsqdigest.store.keys import own_timeline
from nsqdigest.store.listing import State
from nsqdigest.store.operations import Flushed
from nsqdigest.store.schedule import quiet_of

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
        self._store, self._scheduler = parts.store, scheduler
        self._policies = {route.name: parts.config.policies[route.policy] for route in routes}
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

    async def flush(self, route: str, timeline: str, digest: str) -> str:
        """As `nsqdigest flush`: an idle timeline has nothing to deliver, and flushed it would be forgotten."""
        store, policy = self._store, self._policies[route]
        partition = store.namespace.partition_of(timeline.encode())
        name = own_timeline(digest, timeline) if digest else timeline
        quiet = quiet_of(policy)
        known = await Inspector(store.namespace).look(Place(partition, route, name), policy.increment_delay_ms, quiet)
        if known is None or known.state is State.IDLE:
            return "" if known is None else State.IDLE
        await store.holds.read()
        if store.holds.put_off_ms(route, name) is not None:
            raise NsqdigestError("this timeline is snoozed: `nsqdigest wake` with its name ends that")
        flushed = await store.operations.flush(route, name, has_quiet_hours=quiet is not None)
        if flushed is Flushed.UNKNOWN:
            return ""
        self._scheduler.on_due([(route, partition)])
        return flushed

    async def replay(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        work = DeadWork(self._store.dead, self._names["route"])
        done = [handled async for handled in work.named(ids, replays=True)]
        replayed = [each.dead for each in done if each.dead is not None and each.result is Result.REPLAYED]
        self._scheduler.on_due((dead.route, dead.partition) for dead in replayed)
        return [(handled.id, str(handled.result)) for handled in done]
