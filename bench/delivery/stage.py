"""The servers of one round, and the daemon's config files: all that is known of the product.

A round has a fresh nsqd, a fresh Redis (which loads a backlog's dump, where there is one) and a fresh receiver.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from bench.servers import (
    HOST,
    BenchError,
    Nsqd,
    free_port,
    installed_daemon,
    nsqd,
    process,
    redis_server,
    tail,
    wait_until_up,
)

HERE = Path(__file__).resolve().parent
EVENTS, MORE, DIGESTS, CHANNEL = "events", "more", "digests", "bench"
NSQD_MESSAGES = 2_000_000

FILE_SINK = 'type = "log"\npath = "{path}"'
NSQ_SINK = 'type = "nsq"\nnsqd_tcp_addresses = ["{nsqd}"]\ntopic = "' + DIGESTS + '"'
WEBHOOK_SINK = 'type = "webhook"\nurl = "{url}"'

# What is not named here has its default: this is the daemon as a user runs it.
CONFIG = """\
[nsq]
nsqd_tcp_addresses = ["{nsqd}"]
channel = "{channel}"

[redis]
url = "redis://127.0.0.1:{redis_port}/0"

[limits]
timelines = 2000000

[policies.first]
{first}

[policies.later]
immediate = false
minimum_delay = "1d"
maximum_delay = "2d"

[sinks.out]
{sink}

[[routes]]
topic = "{events}"
timeline = "user:{{user.id}}"
policy = "first"
sink = "out"

[[routes]]
topic = "{more}"
timeline = "user:{{user.id}}"
policy = "later"
sink = "out"

[admin]
listen = "{admin}"

[log]
format = "json"
"""


def daemon_config(nsqd: str, redis_port: int, sink: str, delay: str = "", admin: str = "") -> str:
    """`delay`: of a timeline's first digest; "": it is due at once."""
    first = f'immediate = false\nminimum_delay = "{delay}"\nmaximum_delay = "{delay}"' if delay else "immediate = true"
    return CONFIG.format(
        nsqd=nsqd, channel=CHANNEL, redis_port=redis_port, first=first, sink=sink, events=EVENTS, more=MORE, admin=admin
    )


@contextmanager
def daemon(folder: Path, text: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """The installed daemon with this config. One that does not end with 0 after TERM is an error."""
    file = folder / f"{name}.toml"
    file.write_text(text, "utf-8")
    with process([installed_daemon(), "run", "-c", str(file)], folder, f"{name}.log") as child:
        yield child
    if child.returncode != 0:
        raise BenchError(f"{name} answered TERM with exit code {child.returncode}:\n{tail(folder / f'{name}.log')}")


class Receiver:
    """The process of receiver.py, and its counts over one kept connection."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.url = f"http://{HOST}:{port}/hook"
        self._http = http.client.HTTPConnection(HOST, port, timeout=30)

    def is_up(self) -> bool:
        try:
            return bool(self.ask("/stats"))
        except OSError:
            self._http.close()
            return False

    def ask(self, path: str) -> Any:
        self._http.request("GET", path)
        return json.loads(self._http.getresponse().read())

    def posts(self) -> int:
        return int(self.ask("/stats")["posts"])

    def close(self) -> None:
        self._http.close()


@contextmanager
def receiver(folder: Path) -> Iterator[Receiver]:
    port = free_port()
    with process([sys.executable, str(HERE / "receiver.py"), "--port", str(port)], folder, "receiver.log") as child:
        server = Receiver(child.pid, port)
        wait_until_up(server.is_up, child, folder / "receiver.log")
        try:
            yield server
        finally:
            server.close()


@dataclass(frozen=True, slots=True)
class Stage:
    folder: Path
    nsqd: Nsqd
    redis_port: int
    client: redis.Redis
    receiver: Receiver

    def config(self, sink: str, *, delay: str = "1h", admin: str = "") -> str:
        return daemon_config(self.nsqd.tcp_address, self.redis_port, sink, delay, admin)

    @property
    def webhook(self) -> str:
        return WEBHOOK_SINK.format(url=self.receiver.url)


@contextmanager
def stage(dump: Path | None = None) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="nsqdigest-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if dump:
            shutil.copy(dump, folder / "dump.rdb")
        with (
            nsqd(folder, NSQD_MESSAGES) as queue,
            redis_server(folder) as (redis_port, client),
            receiver(folder) as posted,
        ):
            yield Stage(folder, queue, redis_port, client, posted)
