"""One hostile text in every place that others write: Redis, dead letters, events, answers of a receiver, arguments. No
command lets a control character, or one that reorders text, through to a pipe or to a terminal.

A daemon makes the data with a word in each place; the word then becomes the text, in keys, fields and values alike.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from support.cli import Operated, operated, route
from support.daemon import installed_command
from support.receiver import Answer
from support.stage import TOPIC, stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

__all__ = ["operated", "stage"]

WORD = "mallory"
HOSTILE = "m\x1b]52;c;ZXZpbA==\x07\r\n\x9b31m\x7f\x08\u061c\u200f\u2028\u2029\u202eevil\u2066"
DEAD_TOPIC = "nsqdigest.dead"
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
HALF = b"half \xff of it"
"""No UTF-8."""

READING = [
    ("timelines",), ("timelines", "--json"), ("timelines", "--name", HOSTILE), ("timelines", "--route", HOSTILE),
    ("show", HOSTILE), ("show", HOSTILE, "--route", "events"), ("show", HOSTILE, "--route", HOSTILE),
    ("show", HOSTILE, "--route", "events", "--json"), ("show", f"{HOSTILE}?"), ("show", "--digest", HOSTILE),
    ("explain", HOSTILE), ("explain", HOSTILE, "--route", "events"), ("explain", HOSTILE, "--route", HOSTILE),
    ("holds",), ("holds", "--json"), ("audit",), ("audit", "--json"), ("audit", "--deep"),
    ("audit", "--deep", "--json"),
    ("dead", "list"), ("dead", "list", "--json"), ("dead", "list", "--route", HOSTILE),
    ("dead", "list", "--sink", HOSTILE),
    ("dead", "show", HOSTILE), ("dead", "show", HOSTILE, "--json"),
    ("dead", "events", "--dry-run"), ("dead", "events", "--dry-run", "--json"),
    ("dead", "events", "--channel", HOSTILE),
    ("doctor",), ("doctor", "--json"), ("status",), ("status", "--json"),
    ("preview", HOSTILE), ("preview", HOSTILE, "--route", "events"), ("preview", HOSTILE, "--route", HOSTILE),
    ("test-sink", "hook"), ("test-sink", "hook", "--json"), ("test-sink", HOSTILE),
    ("check",), (HOSTILE,), ("dead", HOSTILE), ("status", f"--{HOSTILE}"), ("help", HOSTILE),
]  # fmt: skip
CHANGING = [
    ("pause", "topic", HOSTILE), ("pause", HOSTILE), ("resume", "sink", HOSTILE),
    ("snooze", HOSTILE, "--route", "events", "--for", "1h", "--by", HOSTILE), ("mute", HOSTILE, "--for", HOSTILE),
    ("mute", HOSTILE, "--route", "events", "--for", "1h"), ("wake", HOSTILE), ("wake", HOSTILE, "--route", "events"),
    ("flush", HOSTILE), ("flush", HOSTILE, "--route", "events", "--wait", "--timeout", "1s"),
    ("adopt", HOSTILE, "--to", "events", "--yes"), ("adopt", "events", "--to", HOSTILE, "--yes"),
    ("delete", HOSTILE), ("delete", HOSTILE, "--yes"), ("delete", HOSTILE, "--route", "events", "--yes"),
    ("delete", "--route", HOSTILE, "--yes"),
    ("dead", "replay", "--all"), ("dead", "replay", HOSTILE), ("dead", "drop", HOSTILE, "--yes"),
    ("dead", "drop", "--all", "--yes"), ("dead", "events"), ("audit",),
]  # fmt: skip


def in_a_pipe(words: tuple[str, ...], file: Path) -> str:
    done = subprocess.run(
        [installed_command(), *words, "-c", str(file)], capture_output=True, timeout=PATIENCE_S, check=False
    )
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def on_a_terminal(words: tuple[str, ...], file: Path) -> str:
    """Without the colours, and the line ends that a terminal makes."""
    ours, its = pty.openpty()
    with subprocess.Popen(
        [installed_command(), *words, "-c", str(file)], stdin=subprocess.DEVNULL, stdout=its, stderr=its
    ) as process:
        os.close(its)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # it has ended
                break
            shown += piece
        process.wait(PATIENCE_S)
    os.close(ours)
    return COLOUR.sub("", shown.decode("utf-8", "replace").replace("\r\n", "\n"))


def unsafe(words: tuple[str, ...], file: Path) -> list[str]:
    found = []
    for shows in (in_a_pipe, on_a_terminal):
        text = shows(words, file)
        assert "Traceback" not in text, (words, text[-3000:])
        found += [f"{shows.__name__} {words}: {text[:400]!r}"] if UNSAFE.search(text) else []
    return found


def hostile(text: bytes) -> bytes:
    """In JSON as JSON has it; C1 and the marks stand there as they are."""
    told = json.dumps(HOSTILE, ensure_ascii=False)[1:-1] if text.startswith(b"{") or b" {" in text[:32] else HOSTILE
    return text.replace(WORD.encode(), told.encode())


def replace_all(client: Any) -> int:
    """The word by the text, in whatever Redis holds. Returns in how many places."""
    places = 0
    for key in list(client.scan_iter(b"*")):
        is_hash = (kind := client.type(key)) == b"hash"
        if kind == b"string":  # a count
            continue
        held = client.hgetall(key) if is_hash else dict(client.zrange(key, 0, -1, withscores=True))
        texts = [key, *held, *(held.values() if is_hash else ())]
        places += sum(WORD.encode() in text for text in texts)
        client.delete(key)
        if is_hash:
            client.hset(hostile(key), mapping={hostile(field): hostile(value) for field, value in held.items()})
        else:
            client.zadd(hostile(key), {hostile(member): score for member, score in held.items()})
    return places


def fill(operated: Operated) -> None:
    """Timelines, digests that failed, dead ones, holds, an orphan, daemons, policies; then the text in all of them."""
    routes = [route("events", cancel={"done": True}), route(WORD), route(f"{WORD}-other", "second")]
    operated.hook.answer(Answer(500, text=HOSTILE))
    operated.start(*routes)
    operated.publish(f"{WORD}", f"{WORD}", f"{WORD}-two", zone=WORD, word=WORD)
    for name in ("events", WORD):
        operated.run("flush", f"{WORD}-two", "--route", name)
    operated.hook.answer(Answer(422, text=HOSTILE))
    operated.run("flush", WORD, "--route", WORD)
    wait_until(lambda: operated.stage.ledger(WORD).get("buried", 0) > 0, PATIENCE_S, "a burial")
    operated.run("snooze", WORD, "--route", "events", "--for", "1h", "--by", WORD)
    operated.run("mute", f"{WORD}-two", "--route", WORD, "--for", "1h", "--by", WORD)
    letter = {"reason": WORD, "detail": WORD, "topic": WORD, "body": WORD, "timeline": WORD}
    for body in (
        json.dumps(letter).encode(),
        json.dumps(letter).encode().replace(WORD.encode(), HOSTILE.encode()),
        HALF,
    ):
        operated.nsqd.publish_many(DEAD_TOPIC, [hostile(body)])
    operated.daemon.stop()
    now_ms = int(time.time() * 1000)
    tag = "{nsqdigest:0}:"
    with redis.Redis.from_url(operated.stage.store.url) as connected:
        client: Any = connected  # its own types are those of the asynchronous client, too
        told = {"host": WORD, "pid": 1, "version": WORD, "config_hash": WORD, "started_ms": now_ms}
        client.hset(f"{tag}daemons", WORD, f"{now_ms} {json.dumps(told)}")
        client.hset(f"{tag}ledger:{WORD}", mapping={f"dropped:{WORD}": 1, f"unfinished:{WORD}": 1, WORD: -1})
        client.hset(f"{tag}ledger:events", mapping={f"dropped:{WORD}": 1})
        client.hset(f"{tag}policies", WORD, WORD)
        client.zadd(f"{tag}exempt", {f"events:{WORD}": now_ms})
        dead, *_ = client.zrange(f"{tag}dead", 0, -1)
        details = json.loads(client.hget(f"{tag}dead:details", dead))
        details |= {"timeline": WORD, "sink": WORD, "reason": WORD, "cause": WORD, "answer": WORD}
        details["head"]["id"] = WORD
        client.zadd(f"{tag}dead", {WORD: now_ms})
        client.hset(f"{tag}dead:details", WORD, json.dumps(details))
        client.copy(f"{tag}dead-set:".encode() + dead, f"{tag}dead-set:{WORD}")
        client.copy(f"{tag}dead-values:".encode() + dead, f"{tag}dead-values:{WORD}")
        assert replace_all(client) > 40
    operated.daemon.routes = routes[:1]
    operated.hook.answer(Answer(500, text=HOSTILE))
    operated.daemon.start()


def test_no_command_says_it_to_a_terminal_or_a_pipe(operated: Operated) -> None:
    operated.daemon.admin = {"token": "a-long-enough-token"}
    fill(operated)
    file = operated.daemon.config_path
    shown = {words: in_a_pipe(words, file) for words in (("timelines",), ("dead", "list"), ("holds",), ("audit",))}
    assert [words for words, text in shown.items() if "\\u001b]52;c;" not in text] == []
    assert [line for words in (*READING, *CHANGING) for line in unsafe(words, file)] == []
    log_lines = operated.daemon.log_text().replace("\n", "")
    assert not UNSAFE.search(log_lines)


def test_no_command_without_a_store_does(operated: Operated, tmp_path: Path) -> None:
    """An event, a stream of them, a file, and what its secrets are called."""
    operated.daemon.write_file() if operated.daemon.ports else operated.start()
    good = operated.daemon.config_path
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"timeline": HOSTILE, "id": HOSTILE}, ensure_ascii=False), encoding="utf-8")
    words = [
        ("try", "--topic", TOPIC, str(event)), ("try", "--topic", HOSTILE, str(event)),
        ("try", "--topic", TOPIC, str(event), "--json"), ("simulate", str(event)), ("simulate", HOSTILE),
        ("preview", "--sample", HOSTILE), ("init", HOSTILE), ("completion", HOSTILE),
    ]  # fmt: skip
    assert [line for each in words for line in unsafe(each, good)] == []
    bad = tmp_path / "bad.toml"
    text = good.read_text(encoding="utf-8")
    for written in (
        text.replace('"{timeline}"', json.dumps(f"{{{HOSTILE}}}")),
        text.replace('name = "events"', f"name = {json.dumps(HOSTILE)}"),
        text + f"\n[{json.dumps(HOSTILE)}]\n{json.dumps(HOSTILE)} = {json.dumps(HOSTILE)}\n",
        text + f"\n[sinks.{json.dumps(HOSTILE)}]\ntype = {json.dumps(HOSTILE)}\n",
        text + f"\n[log]\nlevel = {json.dumps(HOSTILE)}\nformat = {json.dumps(f'file:{HOSTILE}')}\n",
        text + f"\nraw = '{HOSTILE}'\n",
    ):
        bad.write_text(written, encoding="utf-8")
        assert [line for each in (("check",), ("check", "--json"), ("doctor",)) for line in unsafe(each, bad)] == []
    assert unsafe(("check",), tmp_path / HOSTILE) == []
