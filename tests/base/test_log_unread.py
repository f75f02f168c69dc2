"""A log that nobody reads: the daemon goes on, and ends, as if somebody did."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator

import pytest

from support.stage import TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

PIPE_BYTES = 4096
ENDS_WITHIN_S = 10.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    yield read_end, write_end
    os.close(read_end)
    os.close(write_end)


def events(count: int) -> list[bytes]:
    return [json.dumps({"id": f"e{number}", "timeline": f"t{number % 5}"}).encode() for number in range(count)]


def test_a_daemon_whose_log_nobody_reads_works_on_and_ends(stage: Stage, pipe: tuple[int, int]) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    daemon = stage.daemon()
    read_end, daemon.output = pipe
    daemon.start()
    for _ in range(40):  # each writes several lines, one signal a turn of the loop
        daemon.signal(signal.SIGUSR2)
        assert daemon.get("/livez")[0] == 200
    nsqd.publish_many(TOPIC, events(100))
    wait_until(lambda: len({value["id"] for value in receiver.values()}) == 100, 15, "all events to be delivered")
    assert daemon.get("/metrics")[1].count("nsqdigest_log_lines_dropped_total 0") == 1  # there is room for these
    daemon.term()
    assert daemon.wait(ENDS_WITHIN_S) == 0
    assert len(os.read(read_end, PIPE_BYTES)) > PIPE_BYTES / 2  # it was full
