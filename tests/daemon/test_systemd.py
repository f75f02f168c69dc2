"""What systemd is told, over a real socket: ready, status, signs of life, the end."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqdigest.daemon.systemd import Notifier, address_of, watchdog_s
from support.simulated import simulated
from support.stage import Stage
from support.waiting import wait_until

PID = 4711


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def messages(self) -> list[str]:
        """Those that are there."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(8192).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(str(tmp_path / "notify"))
    yield made
    made.close()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(tmp_path / "notify")}


@pytest.mark.unit
@simulated
async def test_it_is_told_when_the_daemon_is_ready_how_it_is_and_that_it_ends(
    systemd: Systemd, environ: dict[str, str]
) -> None:
    notifier = Notifier(lambda: "well; 5 events in", lambda: True, environ)
    notifier.start()
    await asyncio.sleep(9)
    notifier.ready()
    await asyncio.sleep(2)
    notifier.stopping("drains")
    await notifier.stop()
    assert systemd.messages() == [
        "STATUS=well; 5 events in", "STATUS=well; 5 events in", "READY=1\nSTATUS=well; 5 events in",
        "STATUS=well; 5 events in", "STOPPING=1\nSTATUS=drains",
    ]  # fmt: skip


@pytest.mark.unit
@simulated
async def test_the_watchdog_is_fed_three_times_within_its_time_while_there_is_progress(
    systemd: Systemd, environ: dict[str, str]
) -> None:
    progress = [True, True, False, True]
    notifier = Notifier(lambda: "", lambda: progress.pop(0), {**environ, "WATCHDOG_USEC": "3000000"})
    notifier.start()
    await asyncio.sleep(3.5)
    await notifier.stop()
    assert [message.startswith("WATCHDOG=1") for message in systemd.messages()] == [True, True, False, True]


@pytest.mark.unit
async def test_a_socket_that_is_gone_or_full_is_no_trouble(tmp_path: Path, environ: dict[str, str]) -> None:
    Notifier(lambda: "", lambda: True, environ).stopping("")
    full = Systemd(environ["NOTIFY_SOCKET"])
    notifier = Notifier(lambda: "x" * 100_000, lambda: True, environ)
    for _ in range(2000):
        notifier.stopping("two\nlines")
    assert set(full.messages()) == {"STOPPING=1\nSTATUS=two lines"}
    full.close()


@pytest.mark.unit
async def test_without_systemd_nothing_is_sent_and_nothing_runs() -> None:
    notifier = Notifier(lambda: "", lambda: True, {})
    notifier.start()
    notifier.ready()
    notifier.stopping("")
    assert list(notifier.tasks) == []


@pytest.mark.integration
def test_a_real_daemon_tells_of_its_life(
    systemd: Systemd, environ: dict[str, str], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", environ["NOTIFY_SOCKET"])
    monkeypatch.setenv("WATCHDOG_USEC", "900000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    stage.nsqd()
    stage.receiver()
    daemon = stage.daemon()
    daemon.start()
    messages: list[str] = []

    def is_told(beginning: str) -> bool:
        messages.extend(systemd.messages())
        return any(message.startswith(beginning) for message in messages)

    wait_until(lambda: is_told("WATCHDOG=1\nSTATUS=well; 0 events in"), 20, "a sign of life")
    assert messages[0].startswith("STATUS=store: not reached yet")
    assert is_told("READY=1\nSTATUS=")
    before_us = time.monotonic_ns() // 1000
    messages.clear()
    daemon.reload("unchanged")
    wait_until(lambda: is_told("READY=1\nSTATUS=well"), 20, "the end of the reload")
    [reloading] = [message for message in messages if message.startswith("RELOADING=1")]
    found = re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=(\d+)\nSTATUS=reads its file again", reloading)
    assert found is not None
    assert before_us <= int(found[1]) <= time.monotonic_ns() // 1000
    messages.clear()
    daemon.routes = []
    daemon.reload("refused")
    wait_until(lambda: is_told("READY=1\nSTATUS=config: the reload of "), 20, "the end of the refused one")
    assert [message.partition("\n")[0] for message in messages if not message.startswith(("WATCHDOG", "STATUS"))] == [
        "RELOADING=1", "READY=1",
    ]  # fmt: skip
    daemon.term()
    assert daemon.wait() == 0
    assert is_told("STOPPING=1\nSTATUS=drains")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "address"), [("/run/x", "/run/x"), ("@abc", "\0abc"), ("", ""), ("vsock:2:1234", ""), ("relative", "")]
)
def test_addresses_of_notify_socket(name: str, address: str) -> None:
    assert address_of(name) == address


@pytest.mark.unit
@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0), ({"WATCHDOG_USEC": "30000000"}, 30), ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(PID)}, 30),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0), ({"WATCHDOG_USEC": "soon"}, 0),
        ({"WATCHDOG_USEC": "-5"}, 0),
    ],
)  # fmt: skip
def test_the_time_of_the_watchdog(environ: dict[str, str], seconds: float) -> None:
    assert watchdog_s(environ, PID) == seconds
