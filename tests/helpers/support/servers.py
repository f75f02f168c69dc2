"""Real servers for tests: each a process of its own, on free ports of 127.0.0.1, with its data and log in a folder.

- A server keeps its ports and its data over stop, kill and start: to its clients it is the same server that comes back.
- `start` returns when the server answers, and it is this process that answers: not another that took the port.
- A process is ended by its pid, never by name: when its object goes and at exit (`weakref.finalize`), and by the keeper
  (`support.keeper`) when the test run itself is killed. It stays in the process group of the test run, so that whatever
  ends the run as a group (Ctrl-C, `timeout`, a CI job) ends the servers too.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import struct
import subprocess
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support import keeper
from support.ports import HOST, free_port
from support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
OWN_BINARIES = ROOT / ".servers" / "bin"

START_TIMEOUT_S = 2 * PATIENCE_S
STOP_TIMEOUT_S = PATIENCE_S
REQUEST_TIMEOUT_S = PATIENCE_S
PORT_RACES = 5
LOG_TAIL_LINES = 40
# nsqd's own limit for a whole body (--max-body-size) is 5 MiB.
MPUB_BYTES = 4 << 20

# Each behaves in its own way where it matters here: 6.2 wraps the errors of scripts, and since 7.2 WAIT looks at what
# its own connection wrote, which Valkey inherited.
REDIS_BINARIES = ("redis-server-6.2", "redis-server", "valkey-server")

_started: weakref.WeakSet[Server] = weakref.WeakSet()


class ServerError(Exception):
    """A server did not start, or refused a request of a test."""


class MissingServer(ServerError):
    """There is no such binary on this machine."""


def find_binary(name: str) -> Path:
    """The one that `make setup` built, else the one on PATH."""
    own = OWN_BINARIES / name
    if os.access(own, os.X_OK):
        return own
    if found := shutil.which(name):
        return Path(found)
    raise MissingServer(f"there is no {name} in .servers/bin or on PATH; run `make setup`")


def started_servers() -> list[Server]:
    """Those that were started and not forgotten since, for the report of a failed test."""
    return sorted(_started, key=str)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    keeper.ended(process)


def http_get(port: int, path: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Server(ABC):
    """What nsqd and Redis have in common: one process, its ports, folder and log."""

    binary: str
    port_count: ClassVar[int]

    def __init__(self, folder: Path, *options: str) -> None:
        self.executable = self._find()
        self.folder = folder
        self.options = options
        self.log_path = folder / f"{self.binary}.log"
        self.output: int | None = None
        """A descriptor that takes its output, instead of the log."""
        self.ports: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None

    def __str__(self) -> str:
        return f"{self.binary} on {', '.join(map(str, self.ports)) or 'no port yet'}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.forget()

    # -- what differs

    def _find(self) -> Path:
        return find_binary(self.binary)

    @abstractmethod
    def _arguments(self) -> list[str]:
        """All of the command line but the binary and the test's own options."""

    @abstractmethod
    def _answers(self, pid: int) -> bool:
        """Is it ready, and is it this process that says so? Does not raise for one that is not there yet."""

    # -- the process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self} is not running")
        return self._process.pid

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        if self.running:
            raise ServerError(f"{self} is running already")
        self.folder.mkdir(parents=True, exist_ok=True)
        deadline_s = time.monotonic() + timeout_s
        first_start = not self.ports
        races = 0
        while True:
            if first_start:
                self.ports = tuple(free_port() for _ in range(self.port_count))
            log_from = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._spawn()
            if self._ready(deadline_s - time.monotonic()):
                return
            self.kill()
            races += 1
            lost_a_race = b"address already in use" in self._log_since(log_from).lower()
            # The first time there are other ports; later somebody has ours, and may go away.
            if not lost_a_race or (first_start and races == PORT_RACES) or time.monotonic() > deadline_s:
                raise ServerError(f"{self} did not start\n{self.log_tail()}")
            if not first_start:
                time.sleep(0.05)

    def _spawn(self) -> None:
        command = [str(self.executable), *self._arguments(), *self.options]
        with self.log_path.open("ab") as log:
            process = keeper.kept(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log if self.output is None else self.output,
                    stderr=subprocess.STDOUT,
                )
            )
        self._process = process
        self._finalizer = weakref.finalize(self, _end_process, process)
        _started.add(self)

    def _ready(self, timeout_s: float) -> bool:
        """False when the process has ended; raises when it neither ended nor answered in time."""
        pid = self.pid
        wait_until(
            lambda: not self.running or self._answers(pid), timeout_s, f"{self} to answer; its log: {self.log_path}"
        )
        return self.running

    def stop(self) -> None:
        """As an operator would (SIGTERM): it may save what it has. Does nothing when it does not run."""
        if self.running:
            assert self._process is not None
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a paused one would not hear it
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise ServerError(f"{self} did not stop within {STOP_TIMEOUT_S:g} s\n{self.log_tail()}") from None
        self._reap()

    def kill(self) -> None:
        """As a power cut would, as far as the process is concerned (SIGKILL). Does nothing when it does not run."""
        self._reap()

    def _reap(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._finalizer = self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Holds the process (SIGSTOP): its sockets stay open and nobody answers. Returns when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: self._state() == "T", what=f"{self} to stand still")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _state(self) -> str:
        # The name, in brackets, may itself hold brackets and spaces.
        return Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]

    # -- its log

    def forget(self) -> None:
        """Leaves this server out of the reports of later tests."""
        _started.discard(self)

    def _log_since(self, position_bytes: int) -> bytes:
        return self.log_path.read_bytes()[position_bytes:]

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])


class NsqServer(Server):
    """What nsqd and nsqlookupd have in common: a port for TCP, one for HTTP, and /info."""

    port_count = 2

    def __init__(self, folder: Path, *options: str, host: str = HOST) -> None:
        super().__init__(folder, *options)
        self.host = host

    @property
    def tcp_address(self) -> tuple[str, int]:
        return self.host, self.ports[0]

    @property
    def http_address(self) -> tuple[str, int]:
        return self.host, self.ports[1]

    def _arguments(self) -> list[str]:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return [
            f"--tcp-address={host}:{self.ports[0]}",
            f"--http-address={host}:{self.ports[1]}",
            f"--broadcast-address={self.host}",
        ]

    def request(self, method: str, path: str, body: bytes | None = None, **query: str) -> bytes:
        """One request to its HTTP API, with no proxy in between."""
        connection = http.client.HTTPConnection(*self.http_address, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, f"{path}?{urlencode(query)}", body)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ServerError(f"{self}: {method} {path} {query}: {response.status} {answer.decode(errors='replace')}")
        return answer


class Nsqlookupd(NsqServer):
    """nsqlookupd. It keeps nothing: after a restart it knows what nsqds tell it anew."""

    binary = "nsqlookupd"

    def _answers(self, pid: int) -> bool:
        try:
            return bool(json.loads(self.request("GET", "/info")))
        except (OSError, http.client.HTTPException, ServerError, ValueError):
            return False

    def nsqds_of(self, topic: str) -> set[tuple[str, int]]:
        """What it names to those who look a topic up."""
        try:
            answer = json.loads(self.request("GET", "/lookup", topic=topic))
        except ServerError:
            return set()
        return {(producer["broadcast_address"], producer["tcp_port"]) for producer in answer["producers"]}


class Nsqd(NsqServer):
    """nsqd. Options are its own flags: `Nsqd(folder, "--msg-timeout=2s")`."""

    binary = "nsqd"

    def _arguments(self) -> list[str]:
        # With a certificate it would serve HTTPS, too, on a fixed port that another nsqd may have.
        return [*super()._arguments(), f"--data-path={self.folder}", "--https-address="]

    def move(self) -> None:
        """Comes back on other ports, with its data."""
        self.stop()
        self.ports = ()
        self.start()

    def _answers(self, pid: int) -> bool:
        try:
            info = json.loads(self.request("GET", "/info"))
        except (OSError, http.client.HTTPException, ServerError, ValueError):
            return False
        # /info has no pid; the pair of ports is as good, and a process that lost a port ends.
        return bool(info.get("tcp_port") == self.ports[0] and info.get("http_port") == self.ports[1])

    def create_topic(self, topic: str) -> None:
        self.request("POST", "/topic/create", topic=topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """Creates the topic, too. What is published before a channel exists goes to the first one that does."""
        self.create_topic(topic)
        self.request("POST", "/channel/create", topic=topic, channel=channel)

    def publish(self, topic: str, body: bytes) -> None:
        self.request("POST", "/pub", body, topic=topic)

    def publish_many(self, topic: str, bodies: Iterable[bytes]) -> int:
        """Returns how many."""
        published = 0
        for chunk in _chunks(bodies):
            framed = b"".join(struct.pack(">I", len(body)) + body for body in chunk)
            self.request("POST", "/mpub", struct.pack(">I", len(chunk)) + framed, topic=topic, binary="true")
            published += len(chunk)
        return published

    def stats(self, topic: str | None = None) -> dict[str, Any]:
        # An empty name asks for all of them.
        answer: dict[str, Any] = json.loads(self.request("GET", "/stats", format="json", topic=topic or ""))
        return answer

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """`depth`, `in_flight_count`, `requeue_count`, `message_count` … of one channel, which must exist."""
        return self._channel_of(self.topic_stats(topic), channel)

    def topic_stats(self, topic: str) -> dict[str, Any]:
        """`depth`, `message_count` … of one topic, which must exist: what waits for its channels, what it ever got."""
        for entry in self.stats(topic)["topics"]:
            if entry["topic_name"] == topic:
                found: dict[str, Any] = entry
                return found
        raise LookupError(f"{self} has no topic {topic}")

    def _channel_of(self, topic_entry: dict[str, Any], channel: str) -> dict[str, Any]:
        for entry in topic_entry["channels"]:
            if entry["channel_name"] == channel:
                found: dict[str, Any] = entry
                return found
        raise LookupError(f"{self} has no channel {channel} of topic {topic_entry['topic_name']}")

    def unfinished(self, topic: str, channel: str) -> int:
        """Messages that it still has for a channel that was there before them: waiting, delayed, in flight, or on their
        way from the topic to the channel."""
        # nsqd counts one after the other: what moves meanwhile may be in no count, but hardly twice.
        return self._counted_unfinished(topic, channel) or self._counted_unfinished(topic, channel)

    def _counted_unfinished(self, topic: str, channel: str) -> int:
        of_topic = self.topic_stats(topic)
        of_channel = self._channel_of(of_topic, channel)
        # What is in nobody's depth on the way shows as a difference of what both ever got, since the last restart.
        on_the_way = max(int(of_topic["depth"]), int(of_topic["message_count"]) - int(of_channel["message_count"]))
        return on_the_way + sum(int(of_channel[count]) for count in ("depth", "in_flight_count", "deferred_count"))


def _chunks(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Runs of bodies that fit one MPUB; one that is too large for it goes alone, for nsqd to judge."""
    chunk: list[bytes] = []
    chunk_bytes = 0
    for body in bodies:
        if chunk and chunk_bytes + len(body) > MPUB_BYTES:
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(body)
        chunk_bytes += 4 + len(body)
    if chunk:
        yield chunk


class RedisServer(Server):
    """Redis that keeps nothing on disk unless told: `RedisServer(folder, "--appendonly", "yes")`."""

    binary = "redis-server"
    port_count = 1
    partitions = 1
    """What nsqdigest makes of it by default."""

    def __init__(self, folder: Path, *options: str, binary: str = binary) -> None:
        self.binary = binary
        super().__init__(folder, *options)

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def url(self) -> str:
        return f"redis://{self._credentials()}{HOST}:{self.port}/0"

    def _credentials(self) -> str:
        if "--requirepass" not in self.options:
            return ""
        return f":{self.options[self.options.index('--requirepass') + 1]}@"

    def _arguments(self) -> list[str]:
        own = {"bind": HOST, "port": str(self.port), "dir": str(self.folder), "save": "", "appendonly": "no"}
        return [word for name, value in own.items() for word in (f"--{name}", value)]

    def _answers(self, pid: int) -> bool:
        try:
            with self.client() as client:
                client.ping()  # refused while it loads its data
                return bool(client.info("server")["process_id"] == pid)
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def client(self, **options: Any) -> redis.Redis:
        """A blocking client that tries everything once; whoever asked for it closes it (`with`)."""
        settings: dict[str, Any] = {
            "socket_timeout": REQUEST_TIMEOUT_S,
            "socket_connect_timeout": REQUEST_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
        }
        return redis.Redis.from_url(self.url, **(settings | options))

    def cli(self, *words: str | bytes | int | float) -> Any:
        """One command, like redis-cli: `server.cli("CONFIG", "SET", "maxmemory", "4mb")`. Strings come as bytes."""
        with self.client() as client:
            return client.execute_command(*words)
