"""The lanes: which consumer, over which kind of connection. All read the same events from a fresh nsqd each round."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import trustme

from bench.servers import HOST, BenchError, nsqd, process
from bench.throughput.meter import CHANNEL, TOPIC, evaluate, peak_rss_bytes, publish_backlog, watch
from bench.throughput.report import Round

MAX_IN_FLIGHT = 2500
EVENT_BYTES = 250
HERE = Path(__file__).resolve().parent
OURS = ("plain", "tls", "snappy", "deflate", "tls+snappy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    key: str
    title: str
    events: int
    event_bytes: int = EVENT_BYTES
    program: str = "our_consumer.py"
    tls: bool = False
    compression: str = "none"


def all_lanes(scale: float) -> list[Lane]:
    """As many events as keep each lane busy for some seconds."""

    def scaled(events: int) -> int:
        return max(1000, round(events * scale))

    most = scaled(1_000_000)
    return [
        Lane(key="reader", title="pynsq Reader", events=scaled(100_000), program="pynsq_reader.py"),
        Lane(key="plain", title="NsqConnection", events=most),
        Lane(key="tls", title="TLS 1.3", events=most, tls=True),
        Lane(key="snappy", title="snappy", events=most, compression="snappy"),
        Lane(key="deflate", title="deflate, level 6", events=scaled(500_000), compression="deflate"),
        Lane(key="tls+snappy", title="TLS and snappy", events=most, tls=True, compression="snappy"),
    ]


def run_round(lane: Lane) -> Round:
    with tempfile.TemporaryDirectory(prefix="nsqdigest-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        flags, words = _tls(folder) if lane.tls else ([], [])
        with nsqd(folder, lane.events, *flags) as queue:
            publish_backlog(queue, lane.events, lane.event_bytes)
            command = [
                *(sys.executable, str(HERE / lane.program), f"--nsqd={queue.tcp_address}"),
                *(f"--topic={TOPIC}", f"--channel={CHANNEL}", f"--max-in-flight={MAX_IN_FLIGHT}"),
                *words,
                *([f"--compression={lane.compression}"] if lane.compression != "none" else []),
            ]
            log_name = "consumer.log"
            with process(command, folder, log_name) as consumer:
                looks = watch(queue, None, consumer, folder / log_name, lane.events)
                rss_bytes = peak_rss_bytes(consumer.pid)
            if consumer.returncode != 0:
                raise BenchError(f"lane {lane.key}: the consumer answered TERM with exit code {consumer.returncode}")
            after = queue.channel(TOPIC, CHANNEL)
            if after.requeued or after.timed_out:
                raise BenchError(f"lane {lane.key}: messages came more than once: {after}")
            return evaluate(looks, lane.events, rss_bytes=rss_bytes, counts={"finished": after.finished})


def _tls(folder: Path) -> tuple[list[str], list[str]]:
    """A certificate for nsqd; its flags, and the consumer's."""
    authority = trustme.CA(organization_name="the authority of the measurement")
    certificate = authority.issue_cert(HOST)
    paths = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(str(paths["ca"]))
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(paths["cert"]), append=True)
    certificate.private_key_pem.write_to_path(str(paths["key"]))
    return [f"--tls-cert={paths['cert']}", f"--tls-key={paths['key']}"], [f"--ca-file={paths['ca']}"]
