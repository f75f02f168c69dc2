"""The whole path on real parts for one test: nsqd, Redis, receivers and daemons, and what must hold at its end.

`Stage` starts what is asked for and ends all of it. Its settings are those of an impatient operator (short waits and
time-outs), so that a test sees recovery within seconds; a test overrides what it is about.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from nsqdigest.audit.ledger import balances
from support.daemon import Daemon
from support.publishing import Publisher
from support.receiver import Receiver
from support.servers import Nsqd, RedisServer
from support.waiting import wait_until

TOPIC = "events"
CHANNEL = "nsqdigest"
NAMESPACE = "nsqdigest"
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")

PROVE = os.environ.get("NSQDIGEST_PROVE", "") not in {"", "0"}

QUIET: Mapping[str, Mapping[str, Any]] = {"sinks.hook": {"timeout": "5s"}, "scheduler": {"lease": "20s"}}
"""For a test that ends with `check(quiet=True)`: an answer that a busy machine delays is no reason to post again."""


class Store(Protocol):
    """Redis, as far as a stage needs it: one server, or a set of them."""

    partitions: int

    @property
    def url(self) -> str: ...

    def cli(self, *words: str | bytes | int | float) -> Any: ...


class Stage:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ending = ExitStack()
        self._publishers: list[Publisher] = []
        self.nsqds: list[Nsqd] = []
        self.receivers: list[Receiver] = []
        self.daemons: list[Daemon] = []
        self._redis: RedisServer | None = None
        self._servers: Store | None = None

    def end(self) -> None:
        self._ending.close()

    # -- parts

    def nsqd(self, *options: str, topic: str = TOPIC) -> Nsqd:
        # Made early: of a new channel nsqd looks for time-outs and delayed messages only after up to five seconds.
        server = Nsqd(self._folder / f"nsqd-{len(self.nsqds) + 1}", *options)
        self.nsqds.append(self._ending.enter_context(server))
        server.create_channel(topic, CHANNEL)
        return server

    def redis(self, *options: str) -> RedisServer:
        self._redis = self._ending.enter_context(RedisServer(self._folder / "redis", *options))
        return self._redis

    @property
    def store(self) -> RedisServer:
        return self._redis or self.redis()

    def use(self, servers: Store) -> None:
        """Instead of a Redis of its own. Whoever started them ends them."""
        self._servers = servers

    @property
    def servers(self) -> Store:
        return self._servers or self.store

    def receiver(self) -> Receiver:
        receiver = self._ending.enter_context(Receiver())
        self.receivers.append(receiver)
        return receiver

    def publisher(self, nsqd: Nsqd, **options: Any) -> Publisher:
        publisher = Publisher(nsqd, TOPIC, **{"timelines": 200, **options})
        self._publishers.append(publisher)
        return publisher

    def daemon(
        self, settings: Mapping[str, Mapping[str, Any]] | None = None, routes: list[dict[str, Any]] | None = None
    ) -> Daemon:
        """One that is not started yet. A table of `settings` is laid over the one of that name here."""
        merged = {name: dict(table) for name, table in self.settings().items()}
        for name, table in (settings or {}).items():
            merged.setdefault(name, {}).update(table)
        daemon = Daemon(
            self._folder / f"daemon-{len(self.daemons) + 1}",
            merged,
            routes or [{"name": "events", "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": "hook"}],
        )
        self.daemons.append(daemon)
        self._ending.callback(daemon.forget)
        self._ending.callback(daemon.kill)
        return daemon

    def settings(self) -> dict[str, dict[str, Any]]:
        sinks = {
            f"sinks.{name}": {
                "type": "webhook",
                "url": receiver.url,
                "timeout": "1s",
                "retry_base": "50ms",
                "retry_cap": "500ms",
                "concurrency": 16,
                "max_body": "4MiB",
            }
            for name, receiver in zip(("hook", "second", "third"), self.receivers, strict=False)
        }
        return {
            "nsq": {
                "nsqd_tcp_addresses": [f"{host}:{port}" for host, port in (nsqd.tcp_address for nsqd in self.nsqds)],
                "heartbeat_interval": "2s",
                "requeue_delay": "200ms",
                "drain_timeout": "8s",
            },
            "backoff": {"base": "50ms", "max_duration": "500ms"},
            "redis": {"url": self.servers.url, "namespace": NAMESPACE, "timeout": "1s"},
            "scheduler": {"interval": "200ms", "lease": "2s"},
            "policies.default": {
                "minimum_delay": "500ms",
                "increment_delay": "10ms",
                "maximum_delay": "1s",
                "capacity": 5_000,
            },
            **sinks,
        }

    # -- a store that is slow

    def hold_writes(self) -> None:
        """Redis answers no write until `let_writes_go`; then it does and answers them all."""
        self.store.cli("CLIENT", "PAUSE", 60_000, "WRITE")

    def let_writes_go(self) -> None:
        self.store.cli("CLIENT", "UNPAUSE")

    # -- what is there

    def owed(self) -> set[str]:
        return {identity for publisher in self._publishers for identity in publisher.acknowledged}

    def ledger(self, route: str = "events") -> Counter[str]:
        """The counters of a route. One that no script has counted yet is 0."""
        total: Counter[str] = Counter()
        for partition in range(self.servers.partitions):
            flat = self.servers.cli("HGETALL", f"{{{NAMESPACE}:{partition}}}:ledger:{route}")
            pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
            for field, value in pairs:
                total[field.decode()] += int(value)
        return total

    def in_flight(self) -> int:
        return sum(int(nsqd.channel_stats(TOPIC, CHANNEL)["in_flight_count"]) for nsqd in self.nsqds)

    def unfinished(self) -> int:
        """Messages that nsqd still has."""
        return sum(nsqd.unfinished(TOPIC, CHANNEL) for nsqd in self.nsqds)

    # -- one digest, then another

    def wait_until_shown(self, events: int, route: str = "events") -> None:
        """Waits until this many events of the route are in digests that are opened or delivered.

        An event that is published while an earlier one only *waits* may be in the same digest, or in the next one: that
        is decided by which process gets the processor first. A test that needs two digests waits for this in between.
        """

        def shown() -> bool:
            ledger = self.ledger(route)
            return ledger["snapshots"] + ledger["delivered"] + ledger["buried"] >= events

        wait_until(shown, what=f"{events} events of {route} to be in digests")

    # -- what must hold

    def wait_until_all_is_delivered(self, timeout_s: float = 0.0) -> None:
        owed = self.owed()

        def still_owed() -> int:
            # Counting records first is cheap; the ids decide.
            return len(owed - {value["id"] for receiver in self.receivers for value in receiver.values()})

        def all_done() -> bool:
            if self.unfinished():
                return False
            ledger = self.ledger()
            return not ledger["open"] and not ledger["snapshots"] and not still_owed()

        try:
            wait_until(all_done, timeout_s, "every message to be finished and every digest to be closed")
        finally:
            missing = still_owed()
            assert not missing, f"{missing} of {len(owed)} events are in no accepted digest; ledger: {self.ledger()}"

    def shown_twice(self) -> list[str]:
        """Events in two accepted digests, of two ids."""
        times = Counter(value["id"] for receiver in self.receivers for value in receiver.values())
        return [identity for identity, count in times.items() if count > 1]

    def check(self, *, quiet: bool = False) -> None:
        """At the end: nothing lost, no id with two bodies, a balanced ledger, no mistakes of the program; `quiet`:
        nothing came twice either."""
        values = [value["id"] for receiver in self.receivers for value in receiver.values()]
        owed = self.owed()
        assert set(values) == owed
        for receiver in self.receivers:
            assert receiver.ids_with_two_bodies() == []
            if quiet:
                assert receiver.accepted_more_than_once() == {}
        if quiet:
            assert self.shown_twice() == []
        ledger = self.ledger()
        assert balances(ledger), ledger
        assert (ledger["open"], ledger["snapshots"], ledger["buried"]) == (0, 0, 0)
        dropped = {field: count for field, count in ledger.items() if field.startswith("dropped:") and count}
        assert set(dropped) <= {"dropped:duplicate"}, dropped
        self.check_logs()

    def check_logs(self) -> None:
        found = [line for daemon in self.daemons for line in daemon.bugs()]
        assert found == [], found


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.end()
