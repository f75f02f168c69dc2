"""A daemon whose admin address is abused while it takes in events: all of it is refused or closed, and none is lost."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqdigest.base.errors import EXIT_UNREACHABLE
from support.daemon import Daemon, run_command
from support.ports import HOST
from support.publishing import Background
from support.stage import QUIET, TOPIC, Stage, stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers]

__all__ = ["stage"]

CONNECTIONS = 10_000
HELD_AT_MOST = 128
TOKEN = "a-long-enough-token"
JSON = {"content-type": "application/json"}
ALLOWED = {**JSON, "authorization": f"Bearer {TOKEN}"}
CHUNKED = b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
PAUSE = b'{"kind": "topic", "name": "events"}'
REFUSED = [
    ("POST", "/api/pause", JSON, PAUSE, 401),
    ("POST", "/api/pause", {**JSON, "authorization": "Bearer wrong"}, PAUSE, 401),
    (
        "POST",
        "/api/pause",
        {**ALLOWED, "origin": "https://attacker.example"},
        PAUSE,
        403,
    ),
    ("POST", "/api/pause", {**ALLOWED, "content-type": "text/plain"}, PAUSE, 415),
    ("POST", "/api/pause", {**ALLOWED, "host": "attacker.example"}, PAUSE, 403),
    ("GET", "/api/pause", ALLOWED, None, 405),
    ("GET", "/api/status", {"host": "attacker.example"}, None, 403),
    ("GET", "/api/status", {"sec-fetch-site": "cross-site"}, None, 403),
    ("GET", "/api/status", {"origin": "null"}, None, 403),
    ("GET", "/api/status", {"x-forwarded-for": "203.0.113.7"}, None, 401),
    ("GET", "/metrics", {"host": "attacker.example"}, None, 403),
    ("GET", "/page/../../etc/passwd", {}, None, 404),
    ("OPTIONS", "/api/pause", {"origin": "https://attacker.example"}, None, 403),
    ("TRACE", "/", {}, None, 405),
    ("GET", "/livez", {"x": "x" * 20_000}, None, 400),
    ("GET", "/api/status", {}, b"{}", 400),
    ("POST", "/api/pause", {**ALLOWED, "content-encoding": "gzip"}, b"\x1f\x8b", 415),
]


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 1000:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (CONNECTIONS + 1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def daemon(stage: Stage) -> Daemon:
    stage.nsqd()
    stage.receiver()
    daemon = stage.daemon(QUIET)
    token = daemon.config_path.parent / "token"
    token.parent.mkdir(parents=True)
    token.write_text(TOKEN, encoding="utf-8")
    token.chmod(0o600)
    daemon.admin = {"token": f"file:{token}"}
    daemon.start()
    return daemon


def asked(daemon: Daemon, method: str, path: str, headers: dict[str, str], body: bytes | None) -> int:
    connection = http.client.HTTPConnection(HOST, daemon.ports[0], timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def opened(daemon: Daemon, sends: bytes = b"") -> socket.socket:
    connection = socket.create_connection((HOST, daemon.ports[0]), timeout=PATIENCE_S)
    with contextlib.suppress(OSError):
        connection.sendall(sends)
    return connection


def begun(daemon: Daemon) -> socket.socket:
    """Does not wait until the kernel lets it in."""
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex((HOST, daemon.ports[0]))
    return connection


def descriptors(daemon: Daemon) -> int:
    return len(os.listdir(Path("/proc") / str(daemon.pid) / "fd"))


@pytest.mark.usefixtures("many_files")
def test_whatever_is_done_to_its_address_intake_goes_on(stage: Stage, daemon: Daemon) -> None:
    before = descriptors(daemon)
    publisher = stage.publisher(stage.nsqds[0])
    with Background(publisher, 3_000, per_s=1_000):
        for method, path, headers, body, status in REFUSED:
            assert asked(daemon, method, path, headers, body) == status, (method, path, headers)
        for sends in (
            b"POST /api/pause HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * (1 << 20),
            b"POST /livez HTTP/1.1\r\nhost: localhost\r\n" + CHUNKED,
            b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20_000,
            os.urandom(1 << 20),
        ):
            opened(daemon, sends).close()
        knocking = [begun(daemon) for _ in range(CONNECTIONS)]
        held = [opened(daemon, b"GET /livez HTTP/1.1\r\nx:") for _ in range(2 * HELD_AT_MOST)]
        assert descriptors(daemon) <= before + 1_000  # those that its loop is just accepting among them
        assert asked(daemon, "GET", "/readyz", {}, None) == 200
        assert daemon.metric("http_refusals_total", reason="too-many-connections") >= HELD_AT_MOST
        for connection in (*knocking, *held):
            connection.close()
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)
    wait_until(lambda: descriptors(daemon) <= before + 20, 20, "its connections to be closed")
    lines = daemon.log_text().splitlines()
    assert len([line for line in lines if '"admin.' in line]) < 40, "garbage does not fill the log"
    assert TOKEN not in daemon.log_text()


UNSENT = b"HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /api/status " + UNSENT + b"\r\n",
        b"POST /api/pause " + UNSENT + b"authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n",
    ],
)
def test_bodies_that_never_come_blind_no_monitoring(daemon: Daemon, head: bytes) -> None:
    held = [opened(daemon, head) for _ in range(2 * HELD_AT_MOST)]
    for path in ("/livez", "/readyz", "/metrics", "/"):
        assert asked(daemon, "GET", path, {}, None) == 200
    assert asked(daemon, "POST", "/api/pause", ALLOWED, PAUSE) == 200
    for connection in held:
        connection.close()


def test_wrong_tokens_do_not_lock_the_operator_out(daemon: Daemon) -> None:
    """Far more of them than there are of the operator's, from the same address."""
    wrong = {**ALLOWED, "authorization": "Bearer wrong"}
    seen = []
    for _ in range(10):
        seen += [asked(daemon, "POST", "/api/pause", wrong, PAUSE) for _ in range(20)]
        done = run_command("pause", "topic", TOPIC, "-c", str(daemon.config_path))
        assert done.returncode == 0, done.stderr
        assert asked(daemon, "POST", "/api/resume", ALLOWED, PAUSE) == 200
    assert set(seen) == {401, 429}
    assert seen.count(401) < 30


def test_who_takes_the_port_of_a_daemon_that_is_down_gets_no_token(daemon: Daemon) -> None:
    daemon.kill()
    got = []
    with socket.create_server((HOST, daemon.ports[0])) as squatter:

        def answers() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = squatter.accept()
                    with connection:
                        got.append(connection.recv(64 * 1024))
                        told = b'{"nonce": "1.%s.%s", "changed": true}' % (b"0" * 32, b"0" * 64)
                        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(told), told))
                        got.append(connection.recv(64 * 1024))
                        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(told), told))

        thread = threading.Thread(target=answers, daemon=True)
        thread.start()
        done = run_command("pause", "topic", TOPIC, "-c", str(daemon.config_path))
        squatter.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert (done.returncode, "does not prove that it has the token" in done.stderr) == (EXIT_UNREACHABLE, True)
    assert len(got) == 2
    assert TOKEN.encode() not in b"".join(got)
