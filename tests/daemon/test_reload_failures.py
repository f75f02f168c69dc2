"""A reload whose steps fail: before the parts are taken nothing has changed; should taking them fail, the
daemon ends in order, with all that it held given back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.backoff import Controller
from nsqdigest.base.errors import NsqdigestError
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import load
from nsqdigest.consumer import Consumer
from nsqdigest.daemon import life, parts, reload, succession
from nsqdigest.daemon.life import Daemon
from nsqdigest.daemon.operator import Operator
from nsqdigest.daemon.status import Status
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.intake.routing import Router
from nsqdigest.store.store import Store
from support.daemon import toml
from support.stage import CHANNEL, TOPIC, Stage, stage
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

__all__ = ["stage"]


BEFORE = [
    (parts, "plans_of"), (parts, "outlet_of"), (Router, "__init__"), (parts, "Consumer"), (parts, "Discovery"),
    (parts, "Depths"), (parts, "Rescoring"), (life, "rebuild"),
]  # fmt: skip
"""Steps before the parts are taken."""
TAKING = [
    (Metrics, "know"), (Store, "change"), (Controller, "change"), (Scheduler, "change"), (Consumer, "change"),
    (succession, "looks_every_s"), (succession, "wakes_of"), (Operator, "take"), (Status, "take"),
    (succession.Replaced, "end_replaced"),
]  # fmt: skip


class File:
    def __init__(self, stage: Stage, folder: Path) -> None:
        self.path = folder / "nsqdigest.toml"
        self._settings = {**stage.settings(), "admin": {"listen": ""}}
        self._route = {"name": "events", "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": "hook"}
        self.write()

    def write(self) -> None:
        self.path.write_text(toml(self._settings, [self._route]), encoding="utf-8")

    def write_another(self) -> None:
        """Every kind of change at once."""
        settings = {
            **self._settings,
            "nsq": {**self._settings["nsq"], "max_in_flight": 5, "lookupd_http_addresses": ["127.0.0.1:1"]},
            "sinks.hook": {**self._settings["sinks.hook"], "concurrency": 3},
        }
        alerts = {"name": "alerts", "topic": "alerts", "timeline": "x", "sink": "hook"}
        self.path.write_text(toml(settings, [self._route, alerts]), encoding="utf-8")


@pytest.fixture
def file(stage: Stage, tmp_path: Path) -> File:
    stage.nsqd()
    stage.receiver()
    return File(stage, tmp_path)


@asynccontextmanager
async def running(file: File) -> AsyncIterator[Daemon]:
    """In this process, so that a step can be made to fail."""
    daemon = Daemon(load(file.path, {}, KINDS))
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()


def breaking(*_: Any, **__: Any) -> Any:
    raise ValueError("odd")


async def reloaded(daemon: Daemon) -> None:
    before = daemon.parts.metrics.total("config_reloads_total")
    daemon.reloads.ask()
    await until(lambda: daemon.parts.metrics.total("config_reloads_total") > before, 10.0, "the reload")


def is_connected(stage: Stage) -> bool:
    return bool(stage.nsqds[0].channel_stats(TOPIC, CHANNEL)["clients"])


async def test_a_step_that_fails_before_the_parts_are_taken_changes_nothing(
    stage: Stage, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(file) as daemon:
        await until(lambda: is_connected(stage), 5.0)
        in_force, metrics = daemon.parts, daemon.parts.metrics
        file.write_another()
        for number, (owner, step) in enumerate(BEFORE, 1):
            with monkeypatch.context() as broken:
                broken.setattr(owner, step, breaking)
                await reloaded(daemon)
            assert daemon.parts is in_force, step
            assert metrics.value("config_reloads_total", outcome="failed") == number, step
            assert daemon.reloads.trouble == "ValueError: odd"
        assert metrics.value("config_last_reload_successful") == 0
        assert is_connected(stage)
        await reloaded(daemon)
        assert (daemon.config.nsq.max_in_flight, daemon.reloads.trouble) == (5, "")
        assert [consumer.topic for consumer in daemon.parts.consumers] == [TOPIC, "alerts"]
        assert metrics.value("config_last_reload_successful") == 1


async def test_a_step_that_cannot_fail_and_does_ends_the_daemon_in_order(
    stage: Stage, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, step in TAKING:
        file.write()
        async with running(file) as daemon:
            await until(lambda: is_connected(stage), 5.0)
            file.write_another()
            watching = asyncio.create_task(daemon.watch())
            with monkeypatch.context() as broken:
                broken.setattr(owner, step, breaking)
                daemon.reloads.ask()
                with pytest.raises(NsqdigestError, match=r"a part of the daemon ended: reload: ValueError: odd"):
                    async with asyncio.timeout(PATIENCE_S):
                        await watching
        await until(lambda: not is_connected(stage), 5.0, step)
        assert stage.in_flight() == 0


async def test_a_file_that_cannot_be_read_in_time_is_refused(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "READ_WITHIN_S", 0.0)
    async with running(file) as daemon:
        await reloaded(daemon)
        assert daemon.reloads.trouble == "it could not be read within 0 s"


async def test_reloads_leave_nothing_behind(stage: Stage, file: File) -> None:
    async with running(file) as daemon:
        await until(lambda: is_connected(stage), 5.0)

        def running_tasks() -> Counter[str]:
            return Counter(task.get_name() for task in asyncio.all_tasks() if not task.get_name().startswith("Task-"))

        async def there_and_back() -> None:
            for write in (file.write_another, file.write):
                write()
                await reloaded(daemon)
            await until(lambda: not daemon.parts.scheduler._leaving.outlets, 5.0, "the sinks of before to be closed")

        await there_and_back()
        before = running_tasks()
        for _ in range(4):
            await there_and_back()
        await until(lambda: not running_tasks() - before, 5.0, "what the last one replaced to end")
        assert (daemon._replaced.consumers, daemon._replaced._ends) == ([], [])
