"""A bug in any part of the daemon ends the daemon, and the log says which part, with the error and where it was."""

from __future__ import annotations

import asyncio
import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base import log, tasks
from support.daemon import toml
from support.keeper import kept
from support.ports import HOST
from support.servers import Nsqd, RedisServer
from support.waiting import PATIENCE_S, until, wait_until

pytestmark = pytest.mark.integration

TOPIC, CHANNEL = "events", "nsqdigest"
PARTS = {
    "store.watch.StoreWatch._look": "store watch",
    "base.loop_lag.LoopLag._run": "event loop lag",
    "delivery.timer.Scheduler._turn_once": "scheduler of partition 0",
    "delivery.outlet.Outlet._next_batch": "sender 0 of out",
    "consumer.Consumer._notice_standstill": "events clock",
    "nsq.connections.Connections.run": "events links",
    "consumer.Consumer.on_closed": "nsqd {nsqd} reader",
    "nsq.lookups.Discovery._poll": "nsqlookupd {lookupd}",
}
"""By what raises."""
_DAEMON = """
import importlib, inspect, sys
from nsqdigest.cli import main
module, name, method = sys.argv[1].rsplit(".", 2)
kind = getattr(importlib.import_module(f"nsqdigest.{module}"), name)
def failing(*_):
    raise ValueError("odd")
async def failing_later(*_):
    failing()
is_coroutine = inspect.iscoroutinefunction(getattr(kind, method))
setattr(kind, method, failing_later if is_coroutine else failing)
sys.argv = ["nsqdigest", "run", "-c", sys.argv[2]]
main()
"""


@pytest.mark.parametrize("raising", PARTS)
def test_the_end_of_a_part_ends_the_daemon_and_is_logged(
    raising: str, nsqd: Nsqd, redis_server: RedisServer, tmp_path: Path
) -> None:
    """What raises is as deep as the parts go; each is given reason to run."""
    nsqd.create_channel(TOPIC, CHANNEL)
    for number in range(3):
        nsqd.publish(TOPIC, b'{"x":"%d"}' % number)
    addresses = {name: f"{host}:{port}" for name, (host, port) in (("nsqd", nsqd.tcp_address), ("lookupd", (HOST, 1)))}
    settings: dict[str, dict[str, Any]] = {
        "nsq": {
            "nsqd_tcp_addresses": [addresses["nsqd"]],
            "lookupd_http_addresses": [addresses["lookupd"]],
            "max_in_flight": 1,
        },
        "redis": {"url": redis_server.url},
        "scheduler": {"lease": "1s"},
        "sinks.out": {"type": "log", "path": str(tmp_path / "out"), "timeout": "200ms"},
        "admin": {"listen": ""},
    }
    file = tmp_path / "nsqdigest.toml"
    file.write_text(toml(settings, [{"topic": TOPIC, "timeline": "{x}", "sink": "out"}]), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-c", _DAEMON, raising, str(file)], stderr=subprocess.PIPE, text=True
    ) as daemon:
        kept(daemon)
        try:
            if raising == "consumer.Consumer.on_closed":
                wait_until(lambda: nsqd.channel_stats(TOPIC, CHANNEL)["clients"], 10, "its connection")
                nsqd.kill()
            _, stderr = daemon.communicate(timeout=PATIENCE_S)
        finally:
            daemon.kill()
    assert daemon.returncode == 1, stderr
    lines = [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]
    said = next(line for line in lines if line["event"] == "daemon.part.ended")
    part = PARTS[raising].format(**addresses)
    assert said["part"] == part
    assert "ValueError: odd" in json.dumps(said)
    assert "in failing" in json.dumps(said)
    assert f"a part of the daemon ended: {part}: ValueError: odd" in stderr
    assert "never retrieved" not in stderr


async def test_a_part_that_returns_has_ended_too() -> None:
    async def returns() -> None:
        await asyncio.sleep(0)

    failures = tasks.Failures()
    failures.listen()
    failure = await failures.first_of(lambda: [tasks.start(returns(), "a part")])
    assert str(failure) == "a part of the daemon ended: a part: it returned"


async def test_the_tasks_of_a_part_end_together_and_a_second_time_nothing_happens() -> None:
    own = tasks.Tasks()
    for number in range(2):
        own.start(asyncio.sleep(3600), f"task {number}")
    assert [task.get_name() for task in own] == ["task 0", "task 1"]
    await own.stop()
    await own.stop()
    assert all(task.cancelled() for task in own)


async def test_what_a_group_holds_alone_is_what_is_reported() -> None:
    async def in_a_group() -> None:
        async def fails() -> None:
            raise ValueError("odd")

        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    failures = tasks.Failures()
    failures.listen()
    failure = await failures.first_of(lambda: [tasks.start(in_a_group(), "a part")])
    assert str(failure) == "a part of the daemon ended: a part: ValueError: odd"


async def test_a_timer_that_fails_is_the_end_of_a_part() -> None:
    def fails() -> None:
        raise ValueError("odd")

    failures = tasks.Failures()
    failures.listen()
    asyncio.get_running_loop().call_soon(tasks.guarded(fails, "a timer"))
    assert str(await failures.first_of(lambda: [])) == "a part of the daemon ended: a timer: ValueError: odd"


async def test_a_part_that_is_cancelled_has_not_failed() -> None:
    failures = tasks.Failures()
    failures.listen()
    endless = tasks.start(asyncio.sleep(3600), "endless")
    watching = asyncio.create_task(failures.first_of(lambda: []))
    endless.cancel()
    await until(endless.done, what="its end")
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()


async def test_what_a_library_leaves_unhandled_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    failures = tasks.Failures()
    failures.listen()
    watching = asyncio.create_task(failures.first_of(lambda: []))
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": "a socket is odd", "exception": OSError("odd")})
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()
    assert "daemon.loop.error" in caplog.text


async def test_an_error_of_the_loop_that_repeats_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    tasks.Failures().listen()
    loop = asyncio.get_running_loop()
    for number in range(1000):
        error = OSError(errno.EMFILE, "Too many open files")
        loop.call_exception_handler({"message": f"accept failed on socket {number}", "exception": error})
    log.end()
    lines = [record for record in caplog.records if record.msg == "daemon.loop.error"]
    fields = [vars(line)["fields"] for line in lines]
    assert sum(each.get("times", 1) for each in fields) == 1000
    assert len(lines) < 100
    assert len([line for line in lines if line.exc_info]) == 1
