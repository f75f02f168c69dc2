"""Every answer of a receiver, provoked against the real daemon: for each what becomes of the digest, the log line, the
metric, the ids and bytes of all attempts, and how long it waited.

One daemon has a sink for each answer. Each sink meets its answer twice (or for ever), then a 204.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.backoff import retry_wait_ms
from nsqdigest.base.reasons import Verdict
from support.answers import Answers, Script, bomb, drips, floods, hangs, status, writes
from support.certificates import Certificates
from support.daemon import Daemon
from support.ports import HOST, free_port
from support.raw_server import silent
from support.servers import RedisServer
from support.stage import NAMESPACE, TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

TROUBLE = 2
BASE_MS, CAP_MS, CUT_MS = 1_100, 1_800, 2_500
"""A wait is longer than the period in which the log counts a line that comes again."""
TOLERANCE_S = 0.005
"""Between Redis' clock, ours and the receiver's."""
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
AGAIN, UNAVAILABLE, REFUSED, DELIVERED = Verdict.AGAIN, Verdict.UNAVAILABLE, Verdict.REFUSED, Verdict.DELIVERED


@dataclass(frozen=True)
class Row:
    verdict: Verdict
    script: Script
    detail: str = ""
    """Of the log line, as a pattern."""
    floor_s: float = 0.0
    """Under the wait, by Retry-After."""
    is_late: bool = False
    """It comes to its end by the sink's time-out."""


def later(seconds: int) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def statuses(verdict: Verdict, *codes: int) -> dict[str, Row]:
    return {f"s{code}": Row(verdict, status(code), rf"^{code}\b") for code in codes}


ROWS: dict[str, Row] = {
    **statuses(AGAIN, 300, 301, 304, 399, 403, 404, 405, 408, 425, 500, 501, 505, 507, 511, 599),
    **statuses(UNAVAILABLE, 401, 429, 502, 503, 504),
    **statuses(REFUSED, 400, 402, 406, 409, 411, 412, 413, 414, 415, 418, 422, 423, 428, 431, 451, 499),
    **statuses(DELIVERED, 200, 201, 202, 203, 206, 299),
    # -- delivered, whatever comes behind the status
    "no-content": Row(DELIVERED, writes(b"HTTP/1.1 204 No Content\r\n\r\n")),
    "reset-content": Row(DELIVERED, writes(b"HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n")),
    "old-http": Row(DELIVERED, writes(b"HTTP/1.0 200 OK\r\n\r\nok")),
    "half-a-body": Row(DELIVERED, writes(OK + b"content-length: 100\r\n\r\nhalf")),
    "half-a-body-and-reset": Row(DELIVERED, writes(OK + b"content-length: 100\r\n\r\nhalf", every_s=0.1, resets=True)),
    "body-drips": Row(DELIVERED, drips(OK + b"content-length: 1000000\r\n\r\n", b".")),
    "a-gigabyte": Row(DELIVERED, floods(OK + b"content-length: 1073741824\r\n\r\n", 1 << 30)),
    "no-end": Row(DELIVERED, floods(OK + CHUNKED + b"10000\r\n", 1 << 30)),
    "bad-chunks": Row(DELIVERED, writes(OK + CHUNKED + b"xyz\r\ngarbage\r\n")),
    "gzip-bomb": Row(DELIVERED, status(200, "content-encoding: gzip", body=bomb())),
    "after-100": Row(DELIVERED, writes(b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + OK + b"content-length: 0\r\n\r\n")),
    "after-hints": Row(DELIVERED, writes(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK + b"\r\n")),
    "two-answers": Row(DELIVERED, writes(OK + b"content-length: 0\r\n\r\nHTTP/1.1 500 No\r\n\r\n")),
    # -- an answer that says no
    "500-a-gigabyte": Row(AGAIN, floods(b"HTTP/1.1 500 X\r\ncontent-length: 1073741824\r\n\r\n", 1 << 30), "^500"),
    "500-body-drips": Row(AGAIN, drips(b"HTTP/1.1 500 X\r\ncontent-length: 1000000\r\n\r\n", b"."), "^500"),
    "500-cut-off": Row(AGAIN, writes(b"HTTP/1.1 500 X\r\ncontent-length: 100\r\n\r\nhalf"), "^500"),
    "500-gzip-bomb": Row(AGAIN, status(500, "content-encoding: gzip", body=bomb()), "^500"),
    "302-to-metadata": Row(AGAIN, status(302, "location: http://169.254.169.254/latest/meta-data/"), "^302 Found"),
    "switching": Row(AGAIN, writes(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nboo"), "^101"),
    # -- no HTTP
    "smtp": Row(AGAIN, writes(b"220 mail.example.com ESMTP hunter2\r\n"), "^no HTTP"),
    "http-09": Row(AGAIN, writes(b"<html>hunter2</html>"), "^no HTTP"),
    "binary": Row(AGAIN, writes(b"\xff\x00" * 5_000), "^no HTTP"),
    "status-of-letters": Row(AGAIN, writes(b"HTTP/1.1 OK hunter2\r\n\r\n"), "^no HTTP"),
    "many-headers": Row(AGAIN, writes(OK + b"x: hunter2\r\n" * 200 + b"\r\n"), "^no HTTP: more than 100 headers"),
    "long-headers": Row(AGAIN, writes(OK + b"x: " + b"y" * 70_000 + b"\r\n\r\n"), "^no HTTP: more than 65536 bytes"),
    "100-for-ever": Row(AGAIN, drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000), "^no HTTP: more than 65536"),
    # -- no answer
    "empty": Row(UNAVAILABLE, writes(), "closed the connection before it answered$"),
    "reset": Row(UNAVAILABLE, writes(resets=True), "the connection before it answered$"),
    "half-a-head": Row(UNAVAILABLE, writes(OK + b"content-le"), "within the headers of its answer$"),
    "only-100": Row(UNAVAILABLE, writes(b"HTTP/1.1 100 Continue\r\n\r\n"), "within the headers of its answer$"),
    "head-drips": Row(UNAVAILABLE, drips(OK + b"x: ", b"."), "^no answer within 3 s$", is_late=True),
    "hangs": Row(UNAVAILABLE, hangs, "^no answer within 3 s$", is_late=True),
    # -- Retry-After
    "wait-2": Row(UNAVAILABLE, status(429, "retry-after: 2"), "^429", floor_s=2),
    "wait-2-of-500": Row(AGAIN, status(500, "retry-after: 2"), "^500", floor_s=2),
    "wait-2-of-400": Row(REFUSED, status(400, "retry-after: 2"), "^400", floor_s=2),
    "wait-a-day": Row(UNAVAILABLE, status(503, "retry-after: 86400"), "^503", floor_s=CUT_MS / 1000),
    "wait-huge": Row(UNAVAILABLE, status(429, "retry-after: " + "9" * 400), "^429", floor_s=CUT_MS / 1000),
    "wait-a-date": Row(UNAVAILABLE, status(429, f"retry-after: {later(3600)}"), "^429", floor_s=CUT_MS / 1000),
    "wait-a-past-date": Row(UNAVAILABLE, status(429, f"retry-after: {later(-3600)}"), "^429"),
    "wait-negative": Row(UNAVAILABLE, status(429, "retry-after: -5"), "^429"),
    "wait-garbage": Row(UNAVAILABLE, status(429, "retry-after: soon"), "^429"),
    "wait-empty": Row(UNAVAILABLE, status(429, "retry-after:"), "^429"),
}  # fmt: skip
FOR_EVER = {
    "refused-for-good": status(422, body=b"hunter2"),
    "gone": status(410, body=b"hunter2"),
}
UNREACHABLE = {
    "tls-hangs": "no connection to .* within|no answer within",
    "wrong-certificate": "TLS with .* failed",
    "http-not-tls": "TLS with .* failed",
    "nobody-listens": "Connection refused",
}


@dataclass
class Play:
    """What is there when all of it has ended; what goes on for ever has been tried often enough by then."""

    daemon: Daemon
    answers: Answers
    store: RedisServer
    metrics: dict[tuple[str, str], float]
    """Attempts, by sink and outcome."""
    lines: list[dict[str, Any]]

    def failures(self, sink: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "scheduler.digest.failed" and line["sink"] == sink]


def attempts_of(daemon: Daemon) -> dict[tuple[str, str], float]:
    found = re.findall(r"^nsqdigest_digest_attempts_total\{([^}]*)\} (\S+)$", daemon.get("/metrics")[1], re.MULTILINE)
    labels = [(dict(re.findall(r'(\w+)="([^"]*)"', text)), float(value)) for text, value in found]
    return {(each["sink"], each["outcome"]): value for each, value in labels}


def unfinished(daemon: Daemon) -> list[tuple[str, str]]:
    made = attempts_of(daemon)
    wanted = {(name, "delivered"): 1 for name in ROWS} | {(name, "unavailable"): TROUBLE for name in UNREACHABLE}
    wanted |= {("refused-for-good", "refused"): 3, ("gone", "gone"): 1}
    return [key for key, least in wanted.items() if made.get(key, 0) < least]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    folder = tmp_path_factory.mktemp("answers")
    stage = Stage(folder)
    scripts = {name: row.script for name, row in ROWS.items()} | FOR_EVER
    with Answers(scripts, TROUBLE, FOR_EVER) as answers:
        sinks = {name: sink_of(answers.url(name), is_late=row.is_late) for name, row in ROWS.items()}
        sinks |= {name: sink_of(answers.url(name)) for name in FOR_EVER}
        sinks |= {name: sink_of(url, is_late=name == "tls-hangs") for name, url in unreachable(answers, folder).items()}
        daemon = daemon_of(stage, sinks)
        daemon.start()
        for name in sinks:
            for number in range(3):
                stage.nsqds[0].publish(TOPIC, json.dumps({"id": f"{name}-{number}", "case": name}).encode())
        try:
            wait_until(lambda: not unfinished(daemon), 60, "every answer to have its end")
            yield Play(daemon, answers, stage.store, attempts_of(daemon), daemon.said("scheduler"))
            assert daemon.bugs() == []
        finally:
            stage.end()


def unreachable(answers: Answers, folder: Path) -> dict[str, str]:
    certificates = Certificates(folder / "certificates")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.server.cert_file, certificates.server.key_file)
    ports = {
        "tls-hangs": answers.another(silent).port,
        "wrong-certificate": answers.another(silent, tls).port,
        "http-not-tls": answers.another(writes(b"HTTP/1.1 400 Bad Request\r\n\r\n")).port,
        "nobody-listens": free_port(),
    }
    return {name: f"https://{HOST}:{port}/hook" for name, port in ports.items()}


def sink_of(url: str, *, is_late: bool = False) -> dict[str, Any]:
    return {
        "type": "webhook", "url": url, "timeout": "3s" if is_late else "8s", "concurrency": 1,
        "retry_base": f"{BASE_MS}ms", "retry_cap": f"{CAP_MS}ms", "retry_after_max": f"{CUT_MS}ms",
    }  # fmt: skip


def daemon_of(stage: Stage, sinks: dict[str, dict[str, Any]]) -> Daemon:
    stage.nsqd()
    routes = [
        {"name": name, "topic": TOPIC, "match": {"case": name}, "timeline": "{case}", "key": "{id}", "sink": name}
        for name in sinks
    ]
    tables = {f"sinks.{name}": sink for name, sink in sinks.items()}
    long = {"minimum_delay": "1h", "maximum_delay": "1h"}
    return stage.daemon(
        {**tables, "policies.default": long, "scheduler": {"lease": "20s"}, "backoff": {"max_duration": "200ms"}},
        routes,
    )


# -- what became of each


@pytest.mark.parametrize("name", ROWS)
def test_every_attempt_has_the_same_id_and_the_same_bytes_and_counts_on(play: Play, name: str) -> None:
    posts = play.answers.posts[name]
    attempts = 1 if ROWS[name].verdict is DELIVERED else TROUBLE + 1
    assert [post.attempt for post in posts] == list(range(1, attempts + 1))
    assert len({(post.id, post.body) for post in posts}) == 1
    assert json.loads(posts[0].body)["data"]["id"] == posts[0].id


@pytest.mark.parametrize("name", ROWS)
def test_the_outcome_is_counted_under_its_label(play: Play, name: str) -> None:
    expected = {(name, "delivered"): 1.0}
    if ROWS[name].verdict is not DELIVERED:
        expected[name, ROWS[name].verdict] = TROUBLE
    assert {key: value for key, value in play.metrics.items() if key[0] == name and value} == expected


@pytest.mark.parametrize("name", ROWS)
def test_the_log_has_a_line_for_each_failure_and_quotes_nothing(play: Play, name: str) -> None:
    row, lines = ROWS[name], play.failures(name)
    assert len(lines) == (0 if row.verdict is DELIVERED else TROUBLE)
    for number, line in enumerate(lines, 1):
        assert (line["level"], line["verdict"], line["attempt"]) == ("warning", row.verdict, number)
        assert line["digest"] == play.answers.posts[name][0].id
        assert re.search(row.detail, line["detail"]), line["detail"]


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.verdict is not DELIVERED])
def test_each_wait_is_of_its_window_and_never_shorter_than_retry_after(play: Play, name: str) -> None:
    row, posts = ROWS[name], play.answers.posts[name]
    for number, line in enumerate(play.failures(name), 1):
        longest_s = retry_wait_ms(number, BASE_MS, CAP_MS, max) / 1000
        assert max(BASE_MS / 1000, row.floor_s) <= line["again_s"] <= max(longest_s, row.floor_s)
        assert posts[number].at_s - posts[number - 1].at_s >= line["again_s"] - TOLERANCE_S


@pytest.mark.parametrize("name", UNREACHABLE)
def test_a_receiver_that_is_not_reached_is_unavailable(play: Play, name: str) -> None:
    lines = play.failures(name)
    assert len({line["digest"] for line in lines}) == 1
    assert {line["verdict"] for line in lines} == {UNAVAILABLE}
    for line in lines:
        assert re.search(UNREACHABLE[name], line["detail"]), line["detail"]
    assert play.metrics[name, "unavailable"] >= TROUBLE


def test_what_is_refused_three_times_is_dead_with_what_was_answered(play: Play) -> None:
    posts = play.answers.posts["refused-for-good"]
    assert [post.attempt for post in posts] == [1, 2, 3]
    (line,) = [line for line in play.lines if line["event"] == "scheduler.digest.buried"]
    assert (line["level"], line["reason"], line["digest"]) == ("error", "refused", posts[0].id)
    (details,) = play.store.cli("HVALS", f"{{{NAMESPACE}:0}}:dead:details")
    assert b"422 Unprocessable" in details
    assert b"hunter2" in details


def test_410_stops_the_sink_and_costs_no_attempt(play: Play) -> None:
    assert len(play.answers.posts["gone"]) == 1
    (line,) = [line for line in play.lines if line["event"] == "scheduler.sink.stopped"]
    assert line["level"] == "error"
    ready = play.daemon.get("/readyz?verbose")
    assert ready[0] == 200
    assert "sink gone: stopped since" in ready[1]


def test_no_redirect_was_followed_and_nothing_else_was_asked_for(play: Play) -> None:
    assert play.answers.strays == []


def test_what_a_receiver_wrote_is_in_no_log(play: Play) -> None:
    assert "hunter2" not in play.daemon.log_text()


def test_the_daemon_stayed_small(play: Play) -> None:
    """Beside a gigabyte, an answer without an end and two gzip bombs."""
    assert play.daemon.peak_memory_bytes() < 200 << 20
