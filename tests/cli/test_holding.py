"""`snooze`, `mute`, `wake`, `holds` beside a running daemon: what they do, and what they say."""

from __future__ import annotations

from functools import partial

import pytest

from nsqdigest.audit.ledger import balances
from nsqdigest.base.errors import EXIT_NO, EXIT_OK, EXIT_USAGE
from nsqdigest.cli.operating import typed
from support.cli import HOURS, Operated, operated, route
from support.stage import stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

__all__ = ["operated", "stage"]


@pytest.mark.parametrize(
    ("name", "argument"),
    [("user:42", "user:42"), ("$(reboot)", "'$(reboot)'"), ("`x`", "'`x`'"), ("-x", "-- -x"), ("a\u202eb", "NAME")],
)
def test_a_command_that_is_copied_runs_nothing_of_a_name(name: str, argument: str) -> None:
    assert typed(name) == argument


def test_a_snoozed_timeline_waits_and_is_told_of_everywhere(operated: Operated) -> None:
    operated.start()
    operated.publish("ada")
    done = operated.run("snooze", "ada", "--for", "2h", "--by", "grace h")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert done.stdout.startswith('route events, timeline "ada": snoozed until ')
    assert done.stdout.endswith("; all daemons know it within 5s\n")
    (hold,) = operated.json("holds")
    assert (hold["route"], hold["timeline"], hold["kind"], hold["by"]) == ("events", "ada", "snooze", "grace h")
    (listed,) = operated.json("timelines")
    assert (listed["held"], listed["state"]) == ("snoozed", "waiting")
    assert 7000 < listed["due_in_s"] <= 7200
    assert "(snoozed)" in operated.run("timelines").stdout
    rows = operated.run("holds").stdout.splitlines()
    assert rows[0].split() == ["timeline", "route", "is", "until", "since", "by"]
    assert rows[1].split()[:3] == ["ada", "events", "snoozed"]
    assert rows[1].endswith("grace h")
    assert rows[2] == "1 timeline"
    assert "held      snoozed until" in operated.run("show", "ada").stdout
    assert operated.json("show", "ada")["hold"]["by"] == "grace h"

    refused = operated.run("flush", "ada")
    assert (refused.returncode, refused.stdout) == (EXIT_NO, "")
    assert "is snoozed until" in refused.stderr
    assert "nsqdigest wake ada ends that" in refused.stderr

    done = operated.run("wake", "ada")
    assert done.stdout == 'route events, timeline "ada": not snoozed any more\n'
    assert operated.json("timelines")[0]["due_in_s"] <= 3600
    assert operated.run("holds").stdout == "nothing is snoozed or muted\n"
    assert operated.json("holds") == []
    again = operated.run("wake", "ada")
    assert (again.returncode, again.stdout) == (EXIT_NO, "")
    assert 'the timeline "ada" is neither snoozed nor muted; see `nsqdigest holds`' in again.stderr


def test_of_a_timeline_that_is_yet_to_come_nothing_goes_out(operated: Operated) -> None:
    """Also where its first event is due at once, and urgent: it is claimed and put off."""
    operated.daemon.settings = {**operated.daemon.settings, "policies.default": {**HOURS, "immediate": True}}
    operated.start(route("events", urgent={"level": "fatal"}))
    assert operated.run("snooze", "bob", "--for", "1h").returncode == EXIT_OK
    wait_until(lambda: operated.daemon.metric("timelines_held", route="events", kind="snooze") == 1, PATIENCE_S)
    operated.publish("bob", "bob")
    operated.publish("bob", level="fatal")

    def is_put_off() -> bool:
        (bob,) = operated.json("timelines", "--name", "bob")
        return bool(bob["state"] == "waiting" and bob["due_in_s"] > 3000 and bob["held"] == "snoozed")

    wait_until(is_put_off, PATIENCE_S, "it to be put off")
    assert operated.hook.posts == []
    assert operated.stage.ledger().get("snapshots", 0) == 0
    operated.run("wake", "bob")
    wait_until(operated.hook.accepted, PATIENCE_S, "its digest")
    assert {value["id"] for value in operated.hook.values()} == {"bob/0", "bob/1"}


def test_of_a_muted_timeline_nothing_is_kept_and_all_is_counted(operated: Operated) -> None:
    operated.start()
    operated.publish("ada")
    asked = operated.run("mute", "ada", "--for", "1d")
    assert asked.returncode == EXIT_USAGE
    assert "There is no terminal to ask at: add --yes" in asked.stderr
    assert operated.run("mute", "ada", "--for", "1d", "--yes").returncode == EXIT_OK
    wait_until(lambda: operated.daemon.metric("timelines_held", route="events", kind="mute") == 1, PATIENCE_S)
    for number in range(3):
        operated.stage.nsqds[0].publish("events", b'{"timeline":"ada","id":"m%d"}' % number)
    ledger = operated.stage.ledger
    wait_until(lambda: ledger().get("dropped:muted") == 3, PATIENCE_S, "three to be counted")
    not_kept = partial(operated.daemon.metric, "records_not_kept_total", route="events", reason="muted")
    wait_until(lambda: not_kept() == 3, what="the daemon to count them")
    assert balances(ledger())
    assert operated.json("audit")["dropped"]["muted"] == 3
    assert operated.json("timelines")[0]["records"] == 1
    operated.run("wake", "ada")
    wait_until(lambda: operated.daemon.metric("timelines_held", route="events", kind="mute") == 0, PATIENCE_S)
    operated.stage.nsqds[0].publish("events", b'{"timeline":"ada","id":"kept"}')
    wait_until(lambda: operated.json("timelines")[0]["records"] == 2, PATIENCE_S, "it to be kept")


def test_a_hold_outlives_the_daemon(operated: Operated) -> None:
    operated.start()
    operated.publish("ada")
    operated.run("mute", "ada", "--for", "1h", "--yes")
    operated.daemon.stop()
    operated.daemon.start()
    assert operated.daemon.metric("timelines_held", route="events", kind="mute") == 1
    operated.stage.nsqds[0].publish("events", b'{"timeline":"ada","id":"m"}')
    wait_until(lambda: operated.stage.ledger().get("dropped:muted") == 1, PATIENCE_S, "it to be counted")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("snooze", "ada"), EXIT_USAGE, "Missing option '--for'"),
        (("snooze", "ada", "--for", "2 hours"), EXIT_USAGE, "is not a duration; write"),
        (("snooze", "ada", "--for", "0s"), EXIT_USAGE, "--for is a duration of up to 366 days"),
        (("mute", "ada", "--for", "3650d", "--yes"), EXIT_USAGE, "--for is a duration of up to 366 days"),
        (("mute", "ada", "--for", "1h", "--route", "evnts", "--yes"), EXIT_NO, 'did you mean "events"?'),
        (("wake", "ada", "--route", "evnts"), EXIT_NO, 'did you mean "events"?'),
        (("holds", "--route", "evnts"), EXIT_NO, 'did you mean "events"?'),
    ],
)
def test_what_is_refused(operated: Operated, words: tuple[str, ...], code: int, said: str) -> None:
    operated.start()
    done = operated.run(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert operated.json("holds") == []


def test_where_there_is_no_daemon_yet_nothing_is_written(operated: Operated) -> None:
    done = operated.run("snooze", "ada", "--route", "events", "--for", "1h")
    assert done.returncode != EXIT_OK
    assert operated.stage.store.cli("KEYS", "*") == []
