"""The lanes: how each consumer is started, and what must stand in Redis after it.

All of them read the same backlog with the same max_in_flight from a fresh nsqd, and write to a fresh Redis.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import redis

from bench.servers import ROOT, BenchError, Nsqd, find_binary, installed_daemon, nsqd, process, redis_server
from bench.throughput.meter import CHANNEL, TOPIC, evaluate, peak_rss_bytes, publish_backlog, watch
from bench.throughput.report import Round

MAX_IN_FLIGHT = 2500
GO_CONSUMER = "throughput-consumer"
BENTHOS = "throughput-benthos"
HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "add.lua"

# What is not named here has its default: this is the daemon as a user runs it. No digest falls due while the clock
# runs, since lanes a and b only take in, too.
CONFIG = """\
[nsq]
nsqd_tcp_addresses = ["{nsqd}"]
channel = "{channel}"
max_in_flight = {max_in_flight}

[redis]
url = "redis://127.0.0.1:{redis_port}/0"

[policies.later]
immediate = false
minimum_delay = "1d"
maximum_delay = "2d"

[sinks.file]
type = "log"
path = "{folder}/digests.jsonl"

[[routes]]
topic = "{topic}"
timeline = "user:{{user.id}}"
policy = "later"
sink = "file"

[admin]
listen = ""

[log]
format = "json"
"""

# Lane d: what a user of Benthos configures. Its input gives one message to each thread of the pipeline at a time.
BENTHOS_CONFIG = """\
http: {{enabled: false}}
logger: {{level: warn}}
input:
  nsq:
    nsqd_tcp_addresses: ["{nsqd}"]
    lookupd_http_addresses: []
    topic: {topic}
    channel: {channel}
    user_agent: bench
    max_in_flight: {max_in_flight}
pipeline:
  threads: {threads}
  processors:
    - redis_script:
        url: redis://127.0.0.1:{redis_port}
        script: {script}
        keys_mapping: |
          let name = "user:" + this.user.id
          root = ["r:" + $name + ":" + @nsq_id, "t:" + $name, "waiting", "ready", "l:" + $name]
        args_mapping: |
          root = [@nsq_id, content().string(), @nsq_timestamp.number() / 1000000000, 3600, "user:" + this.user.id]
output: {{drop: {{}}}}
"""
BENTHOS_THREADS = 16
"""The fastest of 2, 16, 64 and 256."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a consumer finds its servers, and a folder of its own."""

    nsqd: str
    redis_port: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """`command` may write files into the folder. `counts` says what stands in Redis: each must be `events`."""

    key: str
    title: str
    events: int
    event_bytes: int
    command: Callable[[Place], list[str]]
    counts: Callable[[redis.Redis], dict[str, int]]


def pynsq_command(place: Place) -> list[str]:
    program = [sys.executable, str(HERE / "pynsq_consumer.py"), "--redis-port", str(place.redis_port)]
    return [*program, *_common_options("--", place)]


def go_command(place: Place) -> list[str]:
    return [find_binary(GO_CONSUMER), f"-redis=127.0.0.1:{place.redis_port}", *_common_options("-", place)]


def benthos_command(place: Place) -> list[str]:
    file = place.folder / "benthos.yaml"
    text = BENTHOS_CONFIG.format(
        nsqd=place.nsqd,
        channel=CHANNEL,
        topic=TOPIC,
        max_in_flight=MAX_IN_FLIGHT,
        threads=BENTHOS_THREADS,
        redis_port=place.redis_port,
        script=json.dumps(SCRIPT.read_text("utf-8")),
    )
    file.write_text(text, "utf-8")
    return [find_binary(BENTHOS), "-c", str(file)]


def _common_options(dash: str, place: Place) -> list[str]:
    values = {
        "nsqd": place.nsqd,
        "topic": TOPIC,
        "channel": CHANNEL,
        "script": SCRIPT,
        "max-in-flight": MAX_IN_FLIGHT,
    }
    return [f"{dash}{name}={value}" for name, value in values.items()]


def daemon_command(place: Place) -> list[str]:
    file = place.folder / "nsqdigest.toml"
    text = CONFIG.format(
        nsqd=place.nsqd,
        channel=CHANNEL,
        topic=TOPIC,
        max_in_flight=MAX_IN_FLIGHT,
        redis_port=place.redis_port,
        folder=place.folder,
    )
    file.write_text(text, "utf-8")
    return [installed_daemon(), "run", "-c", str(file)]


def script_counts(client: redis.Redis) -> dict[str, int]:
    """Lanes a, b and d have one key a record, one index a timeline, and the waiting schedule."""
    timelines = int(client.zcard("waiting"))
    return {"records": int(client.dbsize()) - timelines - (1 if timelines else 0)}


def ledger_counts(client: redis.Redis) -> dict[str, int]:
    """Of nsqdigest: its own ledgers, one hash a route and partition."""
    totals = {"added": 0, "open": 0}
    for key in client.scan_iter(match="{*}:ledger:*", count=1000):
        for field, value in zip(totals, client.hmget(key, list(totals)), strict=True):
            totals[field] += int(value or 0)
    return totals


def all_lanes(scale: float) -> list[Lane]:
    """Sizes that keep each lane busy for some seconds. The pass with large events has to fill what is in flight."""

    def scaled(events: int) -> int:
        return max(1000, round(events * scale))

    return [
        Lane(
            key="a",
            title="pynsq Reader + redis-py",
            events=scaled(25_000),
            event_bytes=250,
            command=pynsq_command,
            counts=script_counts,
        ),
        Lane(
            key="b",
            title="go-nsq + go-redis",
            events=scaled(200_000),
            event_bytes=250,
            command=go_command,
            counts=script_counts,
        ),
        Lane(
            key="c",
            title="nsqdigest run",
            events=scaled(600_000),
            event_bytes=250,
            command=daemon_command,
            counts=ledger_counts,
        ),
        Lane(
            key="d",
            title="Benthos nsq + redis_script",
            events=scaled(120_000),
            event_bytes=250,
            command=benthos_command,
            counts=script_counts,
        ),
        Lane(
            key="c64",
            title="nsqdigest run, 64 KiB events",
            events=2 * MAX_IN_FLIGHT,
            event_bytes=64 * 1024,
            command=daemon_command,
            counts=ledger_counts,
        ),
    ]


def build_go_consumers(lanes: Iterable[Lane]) -> None:
    """Those of lanes b and d, as far as they are run."""
    keys = {lane.key for lane in lanes}
    for key, module, name in (("b", "bench/go", GO_CONSUMER), ("d", "bench/benthos", BENTHOS)):
        if key in keys and subprocess.run([ROOT / "scripts" / "go-build", module, name], check=False).returncode != 0:
            raise BenchError(f"{name} of lane {key} was not built (above is why); --lanes a,c does without it")


def run_round(lane: Lane) -> Round:
    with (
        tempfile.TemporaryDirectory(prefix="nsqdigest-bench-", ignore_cleanup_errors=True) as name,
        nsqd(Path(name), lane.events) as queue,
        redis_server(Path(name)) as (redis_port, client),
    ):
        publish_backlog(queue, lane.events, lane.event_bytes)
        return _consume(lane, queue, client, Place(queue.tcp_address, redis_port, Path(name)))


def _consume(lane: Lane, queue: Nsqd, client: redis.Redis, place: Place) -> Round:
    log_name = "consumer.log"
    log = place.folder / log_name
    with process(lane.command(place), place.folder, log_name) as consumer:
        looks = watch(queue, client, consumer, log, lane.events)
        rss_bytes = peak_rss_bytes(consumer.pid)
        counts = lane.counts(client)
    if consumer.returncode != 0:
        raise BenchError(f"lane {lane.key}: the consumer answered TERM with exit code {consumer.returncode}")
    return evaluate(looks, lane.events, rss_bytes=rss_bytes, counts=counts)
