"""The lanes: how each consumer is started, how its progress is counted, and what must have arrived.

The product's lanes deliver the same backlog. BullMQ and the bare clients post a body of the same size, to the same
receiver.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from bench.delivery import floor
from bench.delivery.backlog import RECORDS, Backlog, event
from bench.delivery.meter import Watched, evaluate, watch
from bench.delivery.observers import watching
from bench.delivery.stage import CHANNEL, DIGESTS, FILE_SINK, HERE, NSQ_SINK, Stage, daemon, stage
from bench.servers import HOST, ROOT, BenchError, find_binary, free_port, process
from bench.throughput.meter import peak_rss_bytes
from bench.throughput.report import Round

AT_A_TIME = 8
"""Of every client; it is the default of the product's sinks."""
BULLMQ_BEST = 32
"""Of 8, 32 and 100, when it posts; a null job is as quick with 8."""
METRICS_EVERY_S = 0.3
"""Reading the metrics is work for the daemon, too."""
BULLMQ = ROOT / ".servers" / "bullmq"
TEMPLATE_FILE = "message.json.j2"
TEMPLATE = """{
  "title": "{{ data.total }} events in {{ data.timeline }}",
  "newest": [
    {% for record in data.records %}
    {{ record.value | tojson }},
    {% endfor %}
    "next not before {{ data.next_earliest }}"
  ]
}
"""
Counts = Callable[[], dict[str, int]]
Started = tuple[Watched, Counts]
Start = Callable[[Stage, int], AbstractContextManager[Started]]


@dataclass(frozen=True, slots=True)
class Lane:
    """`start` runs the consumer and gives what to watch and what must be counted when it is done. A fast one delivers
    `times` as many, so that it is busy for some seconds, past the warming up of its compiler."""

    key: str
    title: str
    start: Start
    uses_backlog: bool = False
    times: int = 1


def body() -> bytes:
    """As long as the product's own of five records."""
    records = [
        {"key": f"{number:016x}", "timestamp": 1_700_000_000_000, "value": json.loads(event(number, number))}
        for number in range(RECORDS)
    ]
    data = {"id": "0" * 36, "route": "events", "timeline": "user:u00000000", "sink": "out", "iteration": 1, "first": 0}
    return json.dumps({"type": "digest", "timestamp": "2026-01-01T00:00:00.000Z", "data": {**data, "records": records}},
                      separators=(",", ":")).encode()  # fmt: skip


# -- the product


class Lines:
    """Those of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_bytes, self._lines = path, 0, 0

    def count(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                while block := file.read(1 << 20):
                    self._read_bytes += len(block)
                    self._lines += block.count(b"\n")
        return self._lines

    def counts(self) -> dict[str, int]:
        with self._path.open("rb") as file:
            return {"lines": self.count(), "ids": len({json.loads(line)["data"]["id"] for line in file})}


@contextmanager
def to_file(on: Stage, digests: int) -> Iterator[Started]:
    lines = Lines(on.folder / "digests.jsonl")
    with daemon(on.folder, on.config(FILE_SINK.format(path=on.folder / "digests.jsonl")), "daemon") as child:
        yield Watched(child, on.folder / "daemon.log", on.client, lines.count), lines.counts


@contextmanager
def to_null(on: Stage, digests: int) -> Iterator[Started]:
    """Nobody can count what went to /dev/null: the daemon's metric does."""
    admin = f"{HOST}:{free_port()}"

    def count() -> int:
        try:
            with urlopen(f"http://{admin}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0  # it still starts
        found = (line.rpartition(" ")[2] for line in lines if line.startswith("nsqdigest_digests_delivered_total{"))
        return int(sum(map(float, found)))

    with daemon(on.folder, on.config(FILE_SINK.format(path="/dev/null"), admin=admin), "daemon") as child:
        watched = Watched(child, on.folder / "daemon.log", on.client, count, look_every_s=METRICS_EVERY_S)
        yield watched, lambda: {"delivered": count()}


@contextmanager
def to_file_watched(on: Stage, digests: int) -> Iterator[Started]:
    """While somebody looks: metrics are scraped, the page is open, `status --watch` runs."""
    admin, lines = f"{HOST}:{free_port()}", Lines(on.folder / "digests.jsonl")
    text = on.config(FILE_SINK.format(path=on.folder / "digests.jsonl"), admin=admin)
    with daemon(on.folder, text, "daemon") as child, watching(on.folder, admin):
        yield Watched(child, on.folder / "daemon.log", on.client, lines.count), lines.counts


def to_webhook(options: str = "", template: str = "") -> Start:
    @contextmanager
    def start(on: Stage, digests: int) -> Iterator[Started]:
        (on.folder / TEMPLATE_FILE).write_text(template, "utf-8")
        with daemon(on.folder, on.config(f"{on.webhook}\n{options}"), "daemon") as child:
            yield _posting(on, child, "daemon.log")

    return start


@contextmanager
def to_nsq(on: Stage, digests: int) -> Iterator[Started]:
    on.nsqd.create(DIGESTS, CHANNEL)
    with daemon(on.folder, on.config(NSQ_SINK.format(nsqd=on.nsqd.tcp_address)), "daemon") as child:

        def count() -> int:
            return on.nsqd.channel(DIGESTS, CHANNEL).depth

        watched = Watched(child, on.folder / "daemon.log", on.client, count, on.nsqd.pid)
        yield watched, lambda: {"messages": count()}


def _posting(on: Stage, child: subprocess.Popen[bytes], log: str) -> Started:
    posted = on.receiver
    return Watched(child, on.folder / log, on.client, posted.posts, posted.pid), lambda: dict(posted.ask("/stats"))


# -- the others


def bullmq(*, posts: bool, at_a_time: int = AT_A_TIME) -> Start:
    @contextmanager
    def start(on: Stage, digests: int) -> Iterator[Started]:
        node, jobs, port = find_binary("node"), str(BULLMQ / "jobs.mjs"), str(on.redis_port)
        filled = subprocess.run([node, jobs, "fill", port, str(digests), _body_file(on)], check=False)
        if filled.returncode != 0:
            raise BenchError("BullMQ's jobs could not be added (above is why)")
        command = [node, jobs, "work", port, str(at_a_time), *([on.receiver.url] if posts else [])]

        def done() -> int:
            return digests - int(on.client.llen("bull:bench:wait")) - int(on.client.llen("bull:bench:active"))

        with process(command, on.folder, "bullmq.log") as child:
            if posts:
                yield _posting(on, child, "bullmq.log")
            else:
                yield Watched(child, on.folder / "bullmq.log", on.client, done), lambda: {"jobs": done()}

    return start


def bare(client: str) -> Start:
    @contextmanager
    def start(on: Stage, digests: int) -> Iterator[Started]:
        program = [sys.executable, str(HERE / "bare.py"), client, "--url", on.receiver.url, "--body", _body_file(on)]
        command = [*program, "--count", str(digests), "--concurrency", str(AT_A_TIME)]
        with process(command, on.folder, "bare.log") as child:
            yield _posting(on, child, "bare.log")

    return start


@contextmanager
def least_of_redis(on: Stage, digests: int) -> Iterator[Started]:
    floor.fill(on.client, digests)
    command = [sys.executable, str(HERE / "floor.py"), "--port", str(on.redis_port), "--count", str(digests)]

    def done() -> int:
        return int(on.client.info("commandstats").get("cmdstat_unlink", {}).get("calls", 0))

    with process(command, on.folder, "floor.log") as child:
        yield Watched(child, on.folder / "floor.log", on.client, done), lambda: {"digests": done()}


def _body_file(on: Stage) -> str:
    (on.folder / "body").write_bytes(body())
    return str(on.folder / "body")


LANES = [
    Lane("null", "nsqdigest, log to /dev/null", to_null, uses_backlog=True),
    Lane("log", "nsqdigest, log to a file", to_file, uses_backlog=True),
    Lane("watched", "nsqdigest, log to a file, watched", to_file_watched, uses_backlog=True),
    Lane("webhook", "nsqdigest, webhook", to_webhook(), uses_backlog=True),
    Lane("slack", "nsqdigest, webhook, for Slack", to_webhook('format = "slack"\nrate = "none"'), uses_backlog=True),
    Lane(
        "template",
        "nsqdigest, webhook, template",
        to_webhook(f'body = "file:{TEMPLATE_FILE}"', TEMPLATE),
        uses_backlog=True,
    ),
    Lane("nsq", "nsqdigest, nsq", to_nsq, uses_backlog=True),
    Lane("bull", "BullMQ, null jobs", bullmq(posts=False), times=3),
    Lane("bullpost", "BullMQ, posting", bullmq(posts=True), times=2),
    Lane("bull32", f"BullMQ, {BULLMQ_BEST} posts at a time", bullmq(posts=True, at_a_time=BULLMQ_BEST), times=2),
    Lane("aiohttp", "bare aiohttp", bare("aiohttp"), times=2),
    Lane("protocol", "bare asyncio.Protocol", bare("protocol"), times=5),
    Lane("floor", "bare Redis commands", least_of_redis, times=5),
]


def install_bullmq() -> None:
    made = subprocess.run([ROOT / "scripts" / "node-install", "bench/delivery/bullmq", BULLMQ.name], check=False)
    if made.returncode != 0:
        raise BenchError(
            "BullMQ was not installed (above is why); --lanes without bull, bullpost and bull32 does without it"
        )


def run_round(lane: Lane, digests: int, backlog: Backlog | None) -> Round:
    dump = None
    if lane.uses_backlog:
        assert backlog is not None
        backlog.wait_until_due()
        dump = backlog.dump
    with stage(dump) as on, lane.start(on, digests) as (watched, counts):
        looks = watch(watched, digests)
        rss_bytes = peak_rss_bytes(watched.consumer.pid)
        return evaluate(looks, digests, rss_bytes=rss_bytes, counts=counts())
