"""docs/receivers/receiver.py is run: each digest is handled once, whatever comes; and the table of headers is what
arrives."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Secret
from nsqdigest.delivery.bodies.sample import digest_json
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.webhook import Webhook, WebhookSinkSettings
from support.ports import HOST, free_port
from support.receiver import Receiver
from support.settings import SINK
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[2] / "docs" / "receivers"
SECRET, STRANGE = ("whsec_" + base64.b64encode(letter * 32).decode() for letter in (b"n", b"s"))
ID = "01a1ede2-66fb-7c42-8d0e-3f1f1c9f7a10"
BODY = digest_json([{"n": 1}, {"n": 2}], Names("events", "user:42", "hook"))


def post(url: str, secret: str = SECRET, body: bytes = BODY, identity: str = ID) -> Outcome:
    """One attempt of the real sink."""
    common = {name: getattr(SINK, name) for name in SINK.__dataclass_fields__ if name not in ("type", "path")}
    settings = WebhookSinkSettings(
        **common, type="webhook", url=url, allow_http=True, headers={"x-team": "shop"}, secrets=(Secret(secret),)
    )

    async def deliver() -> Outcome:
        sink = Webhook(settings)
        try:
            return await sink.deliver(OutgoingDigest(identity, "events", "user:42", 1, 2, body))
        finally:
            await sink.close()

    return asyncio.run(deliver())


class Program:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}/hook"
        for name in ("receiver.py", "verify.py"):
            shutil.copy(FOLDER / name, folder)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "receiver.py"],
            cwd=self.folder, stderr=subprocess.PIPE, env={**os.environ, "HOOK_SECRET": SECRET, "PORT": str(self.port)},
        )  # fmt: skip
        wait_until(self._listens, 20, "the receiver to listen")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def kill(self) -> str:
        """Returns what it wrote."""
        assert self.process is not None
        self.process.kill()
        return self.process.communicate()[1].decode()

    def digests(self) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "digests.db")) as store:
            return store.execute("SELECT * FROM digests").fetchall()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    program.start()
    yield program
    assert "Traceback" not in program.kill()


def test_a_digest_is_handled_once(program: Program) -> None:
    assert [post(program.url).verdict for _ in range(3)] == [Verdict.DELIVERED] * 3
    assert program.digests() == [(ID, "user:42", 2)]


def test_also_where_its_posts_come_at_the_same_time(program: Program) -> None:
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda _: post(program.url).verdict, range(8)))
    assert Verdict.DELIVERED in outcomes
    assert program.digests() == [(ID, "user:42", 2)]


def test_and_after_it_was_killed(program: Program) -> None:
    post(program.url)
    program.kill()
    assert post(program.url).verdict is Verdict.UNAVAILABLE
    program.start()
    assert post(program.url).verdict is Verdict.DELIVERED
    assert len(program.digests()) == 1


def test_who_does_not_know_the_secret_changes_nothing(program: Program) -> None:
    outcome = post(program.url, STRANGE)
    assert (outcome.verdict, outcome.cause) == (Verdict.UNAVAILABLE, "401 Unauthorized")
    assert program.digests() == []
    assert post(program.url).verdict is Verdict.DELIVERED


def test_a_digest_that_could_not_be_handled_comes_again_and_is(program: Program) -> None:
    broken = BODY.replace(b'"total"', b'"tatol"')
    assert [post(program.url, body=broken).cause for _ in range(2)] == ["500 Internal Server Error"] * 2
    assert program.digests() == []
    assert post(program.url).verdict is Verdict.DELIVERED
    assert len(program.digests()) == 1


@pytest.mark.parametrize("length", ["-1", "1073741824", "x"])
def test_a_length_that_is_none_of_a_digest_is_refused(program: Program, length: str) -> None:
    connection = http.client.HTTPConnection(HOST, program.port, timeout=PATIENCE_S)
    connection.putrequest("POST", "/hook")
    connection.putheader("content-length", length)
    connection.endheaders()
    assert connection.getresponse().status in (401, 500)
    connection.close()


def test_two_digests_are_two(program: Program) -> None:
    other = json.loads(BODY)
    other["data"]["id"] = ID[:-1] + "1"
    post(program.url)
    post(program.url, body=json.dumps(other).encode(), identity=other["data"]["id"])
    assert len(program.digests()) == 2


def test_the_table_of_headers_is_what_arrives() -> None:
    page = (FOLDER.parent / "receivers.md").read_text("utf-8")
    rows = page.partition("<!-- headers -->\n")[2].partition("\n\n")[0].splitlines()[2:]
    told = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    with Receiver() as receiver:
        post(receiver.url)
        (came,) = receiver.posts
    assert set(came.headers) == told | {"x-team"}
