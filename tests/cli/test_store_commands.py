"""`timelines`, `show`, `flush`, `delete`, `adopt` beside a running daemon: what they do, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsqdigest.audit.ledger import balances
from nsqdigest.base.errors import EXIT_CONFIG, EXIT_NO, EXIT_OK, EXIT_UNREACHABLE, EXIT_USAGE
from support.cli import Operated, operated, route
from support.daemon import run_command
from support.publishing import Background
from support.receiver import HANG, Answer
from support.stage import stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

__all__ = ["operated", "stage"]

WORDS = (
    ("timelines",), ("show", "ada"), ("flush", "ada"), ("delete", "ada", "--yes"),
    ("delete", "--route", "events", "--yes"), ("adopt", "old", "--to", "events", "--yes"),
    ("dead", "list"), ("dead", "show", "id"), ("dead", "replay", "--all"),
    ("dead", "drop", "--all", "--yes"),
)  # fmt: skip


# -- what there is


def test_timelines_and_one_of_them(operated: Operated) -> None:
    operated.start()
    operated.publish("ada", "ada", "bob")
    done = operated.run("timelines")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    heading, first, second, total = done.stdout.splitlines()
    assert heading.split() == ["timeline", "route", "state", "due", "records", "digest", "under", "way"]
    assert first.split()[:4] == ["ada", "events", "waiting", "in"]
    assert second.split()[-1] == "1"
    assert total == "2 timelines: 2 waiting"

    shown = operated.run("show", "ada").stdout
    assert "timeline  ada\n" in shown
    assert "route     events (sink hook, policy default)\n" in shown
    assert "state     waiting: due in 59m" in shown
    assert "records   2 open\n" in shown
    assert '{"timeline": "ada", "id": "ada/1"}' in shown
    answer = operated.json("show", "ada", "--records", "1")
    assert (answer["state"], answer["records"], answer["digest"]) == ("waiting", 2, None)
    # Published together, they may be of the same microsecond.
    assert [record["value"]["id"] for record in answer["newest"]] in (["ada/0"], ["ada/1"])


def test_a_list_is_bounded_and_says_how_many_more_there_are(operated: Operated) -> None:
    operated.start()
    operated.publish(*(f"user:{number}" for number in range(12)))
    done = operated.run("timelines", "--limit", "5", "--json")
    assert len(json.loads(done.stdout)) == 5
    assert done.stderr.startswith("5 of 12; ")
    assert len(operated.json("timelines", "--name", "user:1")) == 3
    assert operated.json("timelines", "--sink", "second") == []
    assert operated.json("timelines", "--state", "due") == []


def test_an_empty_store(operated: Operated) -> None:
    operated.start()
    assert operated.run("timelines").stdout == "no timeline\n"
    assert operated.run("dead", "list").stdout == "no dead digest\n"
    assert operated.json("timelines") == operated.json("dead", "list") == []
    assert operated.run("dead", "replay", "--all").stdout == "no dead digest was selected\n"
    for words in (("show", "ada"), ("flush", "ada"), ("delete", "ada", "--yes")):
        done = operated.run(*words)
        assert (done.returncode, done.stdout) == (EXIT_NO, "")
        assert 'there is no timeline "ada" in any route; `nsqdigest timelines' in done.stderr


def test_a_namespace_that_no_daemon_has_used_is_said_to_be_one(operated: Operated, tmp_path: Path) -> None:
    operated.start()
    operated.publish("ada")
    other = tmp_path / "other.toml"
    other.write_text(operated.daemon.config_path.read_text().replace('"nsqdigest"', '"nsqdigset"'))
    for words in (("timelines",), ("flush", "ada"), ("dead", "list")):
        assert 'no daemon has used the namespace "nsqdigset"' in operated.run(*words, file=other).stderr
    assert operated.stage.store.cli("KEYS", "{nsqdigset*") == []


def test_another_number_of_partitions_is_refused(operated: Operated, tmp_path: Path) -> None:
    operated.start()
    other = tmp_path / "other.toml"
    other.write_text(operated.daemon.config_path.read_text().replace("[redis]", "[redis]\npartitions = 4"))
    for words in WORDS:
        done = operated.run(*words, file=other)
        assert (done.returncode, done.stdout) == (EXIT_CONFIG, ""), words
        assert "was made with redis.partitions = 1" in done.stderr


def test_a_redis_that_is_down(operated: Operated) -> None:
    operated.start()
    operated.daemon.stop()
    operated.stage.store.stop()
    for words in WORDS:
        done = operated.run(*words)
        assert (done.returncode, done.stdout) == (EXIT_UNREACHABLE, ""), words
        (line,) = done.stderr.splitlines()
        assert "see that it runs, and redis.url in " in line
        assert f"cannot connect to 127.0.0.1:{operated.stage.store.port}: Connection refused" in line


def test_a_key_of_another_type_is_no_redis_out_of_reach(operated: Operated) -> None:
    operated.start()
    operated.publish("ada", "bob")
    operated.stage.store.cli("DEL", "{nsqdigest:0}:set:events:ada")
    operated.stage.store.cli("SET", "{nsqdigest:0}:set:events:ada", "of somebody else")
    for words in (("show", "ada"), ("delete", "ada", "--yes")):
        done = operated.run(*words)
        assert (done.returncode, done.stdout) == (EXIT_NO, "")
        assert "something else wrote to a key of this namespace" in done.stderr
    assert len(operated.json("timelines")) == 2
    assert operated.run("delete", "bob", "--yes").returncode == EXIT_OK


def test_several_routes_that_have_the_name(operated: Operated) -> None:
    operated.start(route("events"), route("others", "second"))
    operated.publish("ada")
    for words in (("show", "ada"), ("flush", "ada"), ("delete", "ada", "--yes")):
        done = operated.run(*words)
        assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
        assert '2 routes have a timeline "ada": events, others; choose one with --route' in done.stderr
        assert operated.run(*words, "--route", "others").returncode == EXIT_OK
    done = operated.run("show", "ada", "--route", "event")
    assert (done.returncode, 'there is no route "event"' in done.stderr) == (EXIT_NO, True)
    assert 'did you mean "events"?' in done.stderr


# -- hostile names

HOSTILE = ("\u202eevil", "a b", "x" * 200, "'; DROP", "--yes", "{route}", "%s", "日本", "\u200b", "*", "a\\b", '"')


def test_hostile_names_reach_no_terminal_raw_and_can_be_worked_on(operated: Operated) -> None:
    operated.start()
    operated.publish(*HOSTILE)
    listed = operated.run("timelines").stdout
    assert all(line.isprintable() for line in listed.splitlines())
    assert "\\u202eevil" in listed
    assert {each["timeline"] for each in operated.json("timelines")} == set(HOSTILE)
    for name in HOSTILE:
        shown = operated.run("show", "--", name) if name.startswith("-") else operated.run("show", name)
        # What follows "--" are arguments, the file among them: the environment names it.
        if name.startswith("-"):
            shown = run_command("show", "--", name, environ={"NSQDIGEST_CONFIG": str(operated.daemon.config_path)})
        assert shown.returncode == EXIT_OK, (name, shown.stderr)
        assert all(line.isprintable() for line in shown.stdout.splitlines())


def test_bytes_that_are_no_text_name_nothing(operated: Operated) -> None:
    operated.start()
    for words in (
        ("show", "\udcff"),
        ("flush", "\udcff"),
        ("dead", "show", "\udcff"),
        ("timelines", "--name", "\udcff"),
    ):
        done = operated.run(*words)
        assert (done.returncode, "is not UTF-8" in done.stderr) == (EXIT_USAGE, True)


# -- flush


def test_a_flushed_timeline_is_delivered_at_once_beside_a_busy_daemon(operated: Operated) -> None:
    operated.start()
    operated.publish("ada", "bob")
    publisher = operated.stage.publisher(operated.nsqd)
    with Background(publisher, 2_000, per_s=1_000):
        done = operated.run("flush", "ada")
        assert (done.returncode, done.stderr) == (EXIT_OK, "")
        assert done.stdout == (
            'route events, timeline "ada": due now; a daemon delivers it within 200ms, '
            "unless its sink is paused or in trouble\n"
        )
        wait_until(lambda: len(operated.hook.accepted()) == 1, PATIENCE_S, "the digest")
    (digest,) = operated.hook.digests()
    assert (digest["timeline"], digest["total"]) == ("ada", 1)


def test_what_was_delivered_and_got_nothing_new_is_left(operated: Operated) -> None:
    """Forgotten, its next event would not be held back."""
    operated.start()
    operated.publish("ada")
    operated.run("flush", "ada")
    wait_until(lambda: operated.stage.ledger().get("delivered") == 1, PATIENCE_S, "the digest")
    done = operated.run("flush", "ada")
    assert (done.returncode, "nothing to deliver" in done.stdout) == (EXIT_OK, True)
    assert operated.json("show", "ada")["state"] == "idle"
    assert "forgotten in 59m" in operated.run("show", "ada").stdout


def test_a_timeline_that_is_being_delivered_is_left(operated: Operated) -> None:
    operated.hook.answer(HANG)
    operated.patient()
    operated.start()
    operated.publish("ada")
    operated.run("flush", "ada")
    wait_until(lambda: operated.hook.posts, PATIENCE_S, "the post")
    assert operated.json("flush", "ada")["state"] == "leased"
    answer = operated.json("show", "ada")
    assert (answer["state"], answer["digest"]["records"]) == ("leased", 1)
    (listed,) = operated.json("timelines", "--state", "leased")
    assert (listed["timeline"], listed["digest_records"]) == ("ada", 1)


def test_without_a_daemon_a_flush_says_so(operated: Operated) -> None:
    operated.start()
    operated.publish("ada")
    operated.daemon.stop()
    wait_until(
        lambda: "no daemon with this route has checked in since " in operated.run("flush", "ada").stdout, PATIENCE_S
    )
    assert "not delivered" in operated.run("show", "ada").stdout


def test_a_flush_waits_until_its_digest_was_delivered(operated: Operated) -> None:
    operated.start()
    operated.publish("ada")
    done = operated.run("flush", "ada", "--wait")
    (post,) = operated.hook.accepted()
    assert (done.returncode, done.stdout) == (
        EXIT_OK, f'route events, timeline "ada": delivered as digest {post.id}\n',
    )  # fmt: skip
    idle = operated.run("flush", "ada", "--wait")
    assert (idle.returncode, "nothing to deliver" in idle.stdout) == (EXIT_OK, True)
    operated.publish("ada")
    answer = operated.json("flush", "ada", "--wait")
    assert (answer["result"], answer["digest"]) == ("delivered", operated.hook.accepted()[1].id)


def test_a_flush_says_that_an_attempt_failed(operated: Operated) -> None:
    operated.patient()
    operated.hook.answer(Answer(500, {"retry-after": "600"}))
    operated.start()
    operated.publish("ada")
    done = operated.run("flush", "ada", "--wait")
    assert done.returncode == EXIT_NO
    assert f"sink hook did not take digest {operated.hook.posts[0].id}: attempt 1 failed, the next one is in 9m" in (
        done.stdout
    )
    answer = operated.json("flush", "ada", "--wait", code=EXIT_NO)
    assert (answer["result"], answer["digest"]) == ("failed", operated.hook.posts[0].id)
    assert [post.attempt for post in operated.hook.posts] == [1, 2]


def test_a_flush_says_that_the_digest_is_dead(operated: Operated) -> None:
    operated.hook.answer(Answer(400))
    operated.daemon.settings = {
        name: {**table, **({"max_attempts": 1} if name == "sinks.hook" else {})}
        for name, table in operated.daemon.settings.items()
    }
    operated.start()
    operated.publish("ada")
    done = operated.run("flush", "ada", "--wait")
    identity = operated.hook.posts[0].id
    assert (done.returncode, f"is dead (too-many-attempts); see `nsqdigest dead show {identity}`" in done.stdout) == (
        EXIT_NO, True,
    )  # fmt: skip


def test_a_flush_waits_no_longer_than_its_limit(operated: Operated) -> None:
    operated.hook.answer(HANG)
    operated.patient()
    operated.start()
    operated.publish("ada")
    done = operated.run("flush", "ada", "--wait", "--timeout", "500ms")
    assert (done.returncode, "not delivered within 500ms" in done.stdout) == (EXIT_NO, True)
    assert operated.run("flush", "ada", "--wait", "--timeout", "soon").returncode == EXIT_USAGE


# -- delete


def test_a_deleted_timeline_is_never_delivered(operated: Operated) -> None:
    operated.start()
    operated.publish("ada", "ada", "bob")
    refused = operated.run("delete", "ada")
    assert (refused.returncode, refused.stdout) == (EXIT_USAGE, "")
    assert "There is no terminal to ask at: add --yes" in refused.stderr
    assert operated.json("show", "ada")["records"] == 2
    done = operated.run("delete", "ada", "--yes")
    assert (done.returncode, done.stdout) == (EXIT_OK, 'route events, timeline "ada" deleted, with 2 records\n')
    assert operated.run("show", "ada").returncode == EXIT_NO
    operated.run("flush", "bob")
    wait_until(operated.hook.accepted, PATIENCE_S)
    assert {value["timeline"] for value in operated.hook.values()} == {"bob"}
    assert operated.stage.ledger()["deleted"] == 2


def test_one_whose_digest_is_under_way(operated: Operated) -> None:
    """The daemon that has it finds it gone, and goes on."""
    operated.hook.answer(Answer(), HANG)
    operated.patient()
    daemon = operated.start()
    operated.publish("ada")
    operated.run("flush", "ada")
    wait_until(lambda: operated.hook.posts, PATIENCE_S, "the post")
    done = operated.run("delete", "ada", "--yes")
    assert "with 1 record\n" in done.stdout
    assert "that digest may still arrive" in done.stdout
    operated.hook.answer(Answer())  # lets the post go, unanswered
    operated.publish("ada", "ada")
    operated.run("flush", "ada")
    wait_until(lambda: operated.stage.ledger().get("delivered") == 2, PATIENCE_S, "what came later")
    ledger = operated.stage.ledger()
    assert (balances(ledger), ledger["deleted"]) == (True, 1)
    assert daemon.bugs() == []


# -- orphans


def rename(operated: Operated, old: str, new: str) -> None:
    """The daemon with another name for its route; until the old one counts as left by all daemons."""
    operated.daemon.stop()
    operated.daemon.routes = [route(new)]
    operated.daemon.start()
    words = "adopt", old, "--to", new
    wait_until(lambda: "checked in" not in operated.run(*words).stderr, PATIENCE_S, "the old route to be nobody's")


def test_an_orphan_route_is_adopted_and_its_timelines_are_delivered(operated: Operated) -> None:
    operated.start(route("old"))
    operated.publish("ada", "ada", "bob")
    assert 'route "old" is in ' in operated.run("adopt", "old", "--to", "old", "--yes").stderr
    rename(operated, "old", "new")
    listed = operated.run("timelines")
    assert "old (orphan)" in listed.stdout
    assert "so nobody delivers it" in operated.run("flush", "ada").stdout
    asked = operated.run("adopt", "old", "--to", "new")
    assert asked.returncode == EXIT_USAGE
    assert "Move all 2 timelines of the orphan route old with 3 records to route new?" in asked.stderr
    assert operated.run("adopt", "old", "--to", "nwe", "--yes").returncode == EXIT_NO
    done = operated.run("adopt", "old", "--to", "new", "--yes")
    assert (done.returncode, done.stdout) == (EXIT_OK, "2 timelines with 3 records moved to route new\n")
    operated.run("flush", "ada")
    wait_until(operated.hook.accepted, PATIENCE_S)
    assert operated.hook.digests()[0]["route"] == "new"
    assert balances(operated.stage.ledger("old"))
    assert balances(operated.stage.ledger("new"))


def test_an_orphan_route_is_deleted_whole(operated: Operated) -> None:
    operated.start(route("old"))
    operated.publish(*(f"user:{number}" for number in range(250)))
    refused = operated.run("delete", "--route", "old", "--yes")
    assert (refused.returncode, "its daemons would go on filling it" in refused.stderr) == (EXIT_NO, True)
    rename(operated, "old", "new")
    done = operated.run("delete", "--route", "old", "--yes")
    assert (done.returncode, done.stdout) == (EXIT_OK, "route old: 250 timelines deleted, with 250 records\n")
    assert operated.json("timelines") == []
    assert operated.stage.ledger("old")["deleted"] == 250
    assert operated.run("delete").returncode == EXIT_USAGE
    assert operated.run("delete", "--route", "never", "--yes").returncode == EXIT_NO
