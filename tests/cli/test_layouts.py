"""What commands print on narrow, usual and wide terminals, word for word (support.looks): with an empty, a busy and a
broken system. The files in golden/ were read by somebody; after a change that is meant read them again."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest

from nsqdigest.base.errors import EXIT_UNREACHABLE
from nsqdigest.base.findings import Finding, State
from nsqdigest.doctor.findings import Part
from nsqdigest.doctor.report import lines
from nsqdigest.store import access
from nsqdigest.store.namespace import Namespace
from support.cli import Operated, operated, route
from support.files import SMALLEST
from support.looks import WIDTHS, compare_sections, look, widest
from support.receiver import HANG, Answer
from support.stage import stage
from support.waiting import PATIENCE_S, wait_until

__all__ = ["operated", "stage"]

LONG = "customer:" + "quite-long" * 6
HOSTILE = "\u202eevil"
FITS = 120
"""From this width on no line of a busy system is wider than its terminal."""

GOLDEN = Path(__file__).parent / "golden"
LISTS = (("timelines",), ("holds",), ("audit",), ("dead", "list"))
ALL_OF_STORE = (
    *LISTS, ("show", "ada"), ("dead", "show", "x"), ("flush", "ada"), ("snooze", "ada", "--for", "1h"),
    ("mute", "ada", "--for", "1h", "--yes"), ("wake", "ada"), ("delete", "ada", "--yes"),
    ("adopt", "old", "--to", "events", "--yes"), ("dead", "replay", "--all"),
    ("dead", "drop", "--all", "--yes"),
)  # fmt: skip


def at_each_width(monkeypatch: pytest.MonkeyPatch, *words: str, stdin: bytes = b"") -> Iterable[tuple[str, str]]:
    for width in WIDTHS:
        shown = look(monkeypatch, width, *words, stdin=stdin)
        yield f"nsqdigest {' '.join(words)} · {width} columns", shown


def sections(monkeypatch: pytest.MonkeyPatch, width: int, commands: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    return [(f"nsqdigest {' '.join(words)}", look(monkeypatch, width, *words)) for words in commands]


# -- the file alone

ROUTES = (
    SMALLEST
    + """match = {severity = ["error", "fatal"]}
timestamp = "at"
group = "service"

[[routes]]
name = "archive-of-every-event-of-all-services"
topic = "events"
timeline = "all"
sink = "out"
"""
)
WRONG = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:4150"]
max_inflight = 10

[policies.default]
minimum_delay = "5min"

[sinks.out]
type = "log"

[[routes]]
topic = "events"
timeline = "{{ user }}"
sink = "uot"
"""
EVENTS = b"""\
{"user": "ada", "severity": "error", "service": "payments", "at": 1795000000, "message": "card declined"}
{"user": "bob", "severity": "info", "service": "mail", "at": 1795000000}
{"severity": "error", "at": 1795000000}
{"user": "ada",
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("NSQDIGEST_CONFIG", "NSQDIGEST__NSQ__MAX_IN_FLIGHT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.unit
def test_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nsqdigest.toml").write_text(ROUTES)
    (folder / "wrong.toml").write_text(WRONG)
    # A line per mistake, never broken: editors and CI read them.
    compare_sections(
        GOLDEN / "check.txt",
        sections(monkeypatch, 80, [("check",), ("check", "wrong.toml"), ("check", "nowhere.toml")]),
    )


@pytest.mark.unit
def test_try(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nsqdigest.toml").write_text(ROUTES)
    one, _, broken, _ = EVENTS.splitlines(keepends=True)
    compare_sections(GOLDEN / "try.txt", [
        *at_each_width(monkeypatch, "try", stdin=one), *at_each_width(monkeypatch, "try", stdin=broken),
        *at_each_width(monkeypatch, "try", stdin=EVENTS),
    ])  # fmt: skip


@pytest.mark.unit
def test_simulate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nsqdigest.toml").write_text(SMALLEST)
    drawn = ("simulate", "--for", "2d", "--from", "2026-11-18T00:00:00Z", "--limit", "5", "--timelines", "3")
    compare_sections(GOLDEN / "simulate.txt", [
        *at_each_width(monkeypatch, *drawn, "--rate", "2/h", "--burst", "200@9h"),
        *at_each_width(monkeypatch, *drawn, "--rate", "40/h"),
        *at_each_width(monkeypatch, "simulate", "-", stdin=b"yesterday\n"),
    ])  # fmt: skip


@pytest.mark.unit
def test_doctor() -> None:
    """Its report alone: what it finds depends on versions of servers."""
    parts = (
        Part("file", (
            Finding("nsqdigest.toml", State.OK, "2 routes over 1 topic to 1 sink"),
            Finding("nsqdigest.toml", State.WARN, "nsqdigest.toml:27: sinks.hook.secret: digests are not signed, so a "
                    "receiver cannot know who sent them", 'write secret = "env:NAME"'),
        )),
        Part("redis", (
            Finding("redis://10.20.30.40:6379/0", State.FAIL, "Connection refused",
                    "see that it runs, and redis.url in nsqdigest.toml"),
            Finding("clock", State.NOTE, "not looked at"),
        )),
        Part("nothing of this", ()),
    )  # fmt: skip
    found = [(f"{width} columns", "\n".join(lines(parts, width=width)) + "\n") for width in WIDTHS]
    compare_sections(GOLDEN / "doctor.txt", found)
    assert all(widest(shown) <= width for width, (_, shown) in zip(WIDTHS, found, strict=True))


# -- a busy system


def make_busy(operated: Operated, command: Callable[..., str]) -> str:
    """A timeline in each state, with times that have the same length in each run. Returns the id of a dead digest."""
    operated.patient(lease="60s", timeout="30s")
    operated.start(route("events", match={"to": "hook"}), route("hanging", "second", match={"to": "second"}))
    operated.publish("refused", to="hook")
    operated.hook.answer(Answer(400, text="no_text"))
    command("flush", "refused")
    wait_until(lambda: json.loads(command("dead", "list", "--json")), PATIENCE_S, "a dead digest")
    operated.hook.answer(Answer(503, {"retry-after": "3585"}))
    operated.second.answer(HANG)
    operated.publish("late", to="hook")
    operated.nsqd.publish("events", b'{"timeline": "slow", "id": "slow/0", "to": "second"}')
    wait_until(lambda: operated.stage.ledger("hanging").get("added"), PATIENCE_S, "the slow one")
    for name, state in (("late", "retrying"), ("slow", "leased")):
        command("flush", name)
        wait_until(lambda: json.loads(command("show", name, "--json"))["state"] == state, PATIENCE_S, state)  # noqa: B023
    for what in ("a", "b", "x" * 60):
        operated.publish("ada", to="hook", what=what)
    for name in (LONG, HOSTILE, "snoozed", "muted"):  # one after another: those due first are listed first
        operated.publish(name, to="hook")
    command("snooze", "snoozed", "--for", "3h", "--by", "ops")
    command("mute", "muted", "--for", "7d", "--by", "somebody@example.com", "--yes")
    return str(json.loads(command("dead", "list", "--json"))[0]["id"])


@pytest.mark.integration
def test_a_busy_system(operated: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    operated.daemon.folder.mkdir(parents=True)
    monkeypatch.chdir(operated.daemon.folder)
    dead = make_busy(operated, partial(look, monkeypatch, FITS))
    shown = [
        section
        for words in (("timelines",), ("holds",), ("audit",), ("show", "ada"), ("show", "late"), ("show", "snoozed"))
        for section in at_each_width(monkeypatch, *words)
    ]
    with monkeypatch.context() as later:
        later.setattr(access, "now_ms", later_by_an_hour(access.now_ms))
        for words in (("dead", "list"), ("dead", "show", dead)):
            shown += at_each_width(later, *words)
    compare_sections(GOLDEN / "busy.txt", [(heading.replace(dead, "ID"), text) for heading, text in shown])
    for heading, text in shown:
        assert all(line.isprintable() for line in text.splitlines()), heading
        if heading.endswith(f"{FITS} columns"):
            assert widest(text) <= FITS, heading


def later_by_an_hour(now_ms: Callable[[Namespace], Awaitable[int]]) -> Callable[[Namespace], Awaitable[int]]:
    """A clock by which what died some seconds ago died "1h30m ago"."""

    async def later_ms(namespace: Namespace) -> int:
        return await now_ms(namespace) + 5_400_000

    return later_ms


# -- an empty and a broken one


@pytest.mark.integration
def test_an_empty_system_and_one_whose_redis_is_away(operated: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    operated.start()
    monkeypatch.chdir(operated.daemon.config_path.parent)
    compare_sections(GOLDEN / "empty.txt", sections(monkeypatch, 80, ALL_OF_STORE))
    operated.stage.store.stop()
    away = sections(monkeypatch, 80, ALL_OF_STORE)
    compare_sections(GOLDEN / "redis-away.txt", away)
    for heading, text in away:
        assert text.endswith(f"(exit code {EXIT_UNREACHABLE})\n"), heading
        assert " ".join(text.split()).count("see that it runs, and redis.url in nsqdigest.toml") == 1, heading
    operated.daemon.kill()
