"""`dead` and `test-sink` with real nsqd, Redis and receivers: what they do, and what they say."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.audit.ledger import balances
from nsqdigest.base.errors import EXIT_NO, EXIT_OK, EXIT_UNREACHABLE, EXIT_USAGE
from nsqdigest.base.reasons import Verdict
from nsqdigest.cli.test_sink import IN_WORDS
from support.cli import Operated, operated, route
from support.daemon import installed_command
from support.receiver import OK, Answer
from support.stage import CHANNEL, NAMESPACE, TOPIC, Stage, stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

__all__ = ["operated", "stage"]

REFUSED = Answer(422, text="\x1b[2Jno such user")
DEAD_TOPIC = "nsqdigest.dead"


def bury(operated: Operated, *timelines: str) -> None:
    """Digests that the receiver refuses; from then on it takes all."""
    operated.hook.answer(REFUSED)
    before = operated.stage.ledger().get("buried", 0)
    operated.publish(*timelines)
    for name in timelines:
        operated.run("flush", name)
    wait_until(lambda: operated.stage.ledger().get("buried", 0) == before + len(timelines), PATIENCE_S, "the burials")
    operated.hook.answer(OK)


# -- digests


def test_a_dead_digest_is_listed_shown_and_replayed_under_its_id(operated: Operated) -> None:
    operated.start()
    bury(operated, "ada")
    (dead,) = operated.json("dead", "list")
    assert list(dead) == ["id", "route", "timeline", "sink", "reason", "attempts", "records", "since"]
    assert (dead["route"], dead["timeline"], dead["sink"], dead["reason"]) == ("events", "ada", "hook", "refused")
    assert (dead["attempts"], dead["records"]) == (3, 1)
    assert operated.run("dead", "list").stdout.splitlines()[1].split()[0] == dead["id"]

    shown = operated.run("dead", "show", dead["id"])
    assert "reason       refused: 422 Unprocessable Entity\n" in shown.stdout
    assert "\\u001b[2Jno such user" in shown.stdout
    assert '{"timeline": "ada", "id": "ada/0"}' in shown.stdout
    assert all(line.isprintable() for line in shown.stdout.splitlines())
    assert operated.json("dead", "show", dead["id"])["newest"][0]["value"] == {"timeline": "ada", "id": "ada/0"}

    done = operated.run("dead", "replay", dead["id"])
    assert done.returncode == EXIT_OK
    assert done.stdout == (
        f'{dead["id"]} is sent again under its id (route events, timeline "ada", 1 record)\n1 digest: 1 replayed\n'
    )
    wait_until(operated.hook.accepted, PATIENCE_S, "the digest")
    (post,) = operated.hook.accepted()
    assert (post.id, post.attempt) == (dead["id"], 4)
    assert operated.hook.ids_with_two_bodies() == []
    wait_until(lambda: operated.stage.ledger().get("delivered") == 1, PATIENCE_S)
    assert operated.json("dead", "list") == []
    assert balances(operated.stage.ledger())


def test_all_are_replayed_those_longest_dead_first_and_some_to_try_a_receiver(operated: Operated) -> None:
    operated.start()
    for name in ("ada", "bob", "cyd"):
        bury(operated, name)
    newest, middle, oldest = operated.json("dead", "list")
    assert [oldest["timeline"], middle["timeline"], newest["timeline"]] == ["ada", "bob", "cyd"]
    (tried,) = operated.json("dead", "replay", "--all", "--limit", "1")
    assert tried == {"id": oldest["id"], "result": "replayed", "route": "events", "timeline": "ada", "records": 1}
    others = operated.json("dead", "replay", "--all", "--sink", "hook", "--reason", "refused")
    assert [each["id"] for each in others] == [middle["id"], newest["id"]]
    wait_until(lambda: len(operated.hook.accepted()) == 3, PATIENCE_S, "all of them")


def test_what_is_replayed_is_on_its_way_and_may_be_seen_flushed_and_deleted(operated: Operated) -> None:
    operated.start()
    bury(operated, "ada")
    (dead,) = operated.json("dead", "list")
    operated.hook.answer(Answer(503))
    operated.run("dead", "replay", dead["id"])
    wait_until(lambda: operated.json("timelines", "--revived", "--state", "retrying"), PATIENCE_S, "a retry")
    (again,) = operated.json("dead", "replay", dead["id"], code=EXIT_NO)
    assert again["result"] == "unknown"
    assert f"revived     digest {dead['id']}, on its way again" in operated.run("show", "ada").stdout
    assert operated.json("show", "ada", "--digest", dead["id"])["digest"]["records"] == 1
    assert operated.run("flush", "ada", "--digest", dead["id"]).returncode == EXIT_OK
    deleted = operated.run("delete", "ada", "--digest", dead["id"], "--yes")
    assert (deleted.returncode, "with 1 record\n" in deleted.stdout) == (EXIT_OK, True)
    assert operated.json("timelines", "--revived") == []


def test_a_sink_that_the_file_does_not_have_is_probably_mistyped(operated: Operated) -> None:
    operated.start()
    done = operated.run("dead", "list", "--sink", "hok")
    assert (done.returncode, done.stdout) == (EXIT_OK, "no dead digest\n")
    assert 'has no sink "hok"; did you mean "hook"?' in done.stderr


def test_a_route_that_the_file_does_not_have_any_more(operated: Operated) -> None:
    operated.start()
    bury(operated, "ada")
    (dead,) = operated.json("dead", "list")
    operated.daemon.stop()
    operated.start(route("new"))
    done = operated.run("dead", "replay", dead["id"])
    assert done.returncode == EXIT_NO
    assert f"{dead['id']} stays: the file has no such route, so nobody would deliver it" in done.stdout
    assert operated.run("dead", "drop", dead["id"], "--yes").returncode == EXIT_OK


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("replay",), "name ids, or write --all"),
        (("replay", "--sink", "hook"), "add --all to take all that the filters select"),
        (("replay", "id", "--all"), "not both"),
        (("drop", "--all"), "There is no terminal to ask at: add --yes"),
        (("drop", "--all", "--yes", "--older-than", "5min"), '5min is not a duration; write "5m"'),
        (("list", "--reason", "rfused"), "'rfused' is not one of"),
        (("lst",), "lst"),
    ],
)
def test_wrong_usage(operated: Operated, words: tuple[str, ...], why: str) -> None:
    operated.start()
    bury(operated, "ada")
    done = operated.run("dead", *words)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert why in done.stderr
    assert len(operated.json("dead", "list")) == 1


def answered(operated: Operated, answer: str, *words: str) -> tuple[int, str]:
    """What a command says to somebody who sits at a terminal and answers that."""
    ours, its = pty.openpty()
    try:
        os.write(ours, answer.encode())
        done = subprocess.run(
            [installed_command(), *words, "-c", str(operated.daemon.config_path)],
            stdin=its, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    finally:
        os.close(its)
        os.close(ours)
    return done.returncode, done.stdout + done.stderr


def test_what_drops_asks_whoever_sits_at_a_terminal(operated: Operated) -> None:
    operated.start()
    bury(operated, "ada")
    (dead,) = operated.json("dead", "list")
    code, text = answered(operated, "n\n", "dead", "drop", "--all")
    assert (code, "Drop 1 dead digest for good? [y/N]" in text, "nothing was changed" in text) == (EXIT_NO, True, True)
    assert len(operated.json("dead", "list")) == 1
    code, text = answered(operated, "y\n", "dead", "drop", "--all", "--older-than", "0s")
    assert (code, f"{dead['id']} is dropped" in text) == (EXIT_OK, True)
    ledger = operated.stage.ledger()
    assert (ledger["buried"], ledger["deleted"], balances(ledger)) == (0, 1, True)


# -- export


def exported(operated: Operated, *words: str, code: int = EXIT_OK) -> tuple[Path, list[dict[str, Any]]]:
    done = operated.run("dead", "export", *words)
    assert done.returncode == code, done.stderr
    file = operated.daemon.config_path.parent / "dead.jsonl"
    file.write_text(done.stdout, encoding="utf-8")
    return file, [json.loads(line) for line in done.stdout.splitlines()]


def ids_of(found: list[dict[str, Any]]) -> list[str]:
    return sorted(each["id"] for each in found)


def test_an_export_has_what_the_receiver_got_and_a_drop_takes_exactly_that(operated: Operated) -> None:
    operated.start()
    bury(operated, "ada", "bob")
    file, lines = exported(operated)
    posted = {post.id: json.loads(post.body) for post in operated.hook.posts}
    assert [each["digest"] for each in lines] == [posted[each["id"]] for each in lines]
    assert {(each["reason"], each["status"], each["cause"], each["attempts"], each["missing"]) for each in lines} == {
        ("refused", 422, "422 Unprocessable Entity", 3, 0)
    }
    bury(operated, "cyd")
    done = operated.run("dead", "drop", "--exported", str(file), "--yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (EXIT_OK, "2 digests: 2 dropped")
    (left,) = operated.json("dead", "list")
    assert left["timeline"] == "cyd"
    ledger = operated.stage.ledger()
    assert (ledger["deleted"], ledger["buried"], balances(ledger)) == (2, 1, True)
    again = operated.json("dead", "drop", "--exported", str(file), "--yes", code=EXIT_NO)
    assert {each["result"] for each in again} == {"unknown"}


def test_an_export_is_whole_where_the_receiver_gets_only_the_beginning(operated: Operated) -> None:
    hook = {**operated.daemon.settings["sinks.hook"], "max_body": "4KiB"}
    operated.daemon.settings = {**operated.daemon.settings, "sinks.hook": hook}
    operated.start()
    operated.hook.answer(REFUSED)
    operated.publish(*["ada"] * 300)
    operated.run("flush", "ada")
    wait_until(lambda: operated.stage.ledger().get("buried") == 300, PATIENCE_S, "the burial")
    (post, *_) = operated.hook.posts
    assert json.loads(post.body)["data"]["shown"] < 300
    _, (line,) = exported(operated)
    assert len({each["key"] for each in line["digest"]["data"]["records"]}) == line["digest"]["data"]["shown"] == 300


def test_a_digest_that_was_not_exported_whole_stays(operated: Operated) -> None:
    operated.start()
    bury(operated, "ada", "bob")
    ada = next(each["id"] for each in operated.json("dead", "list") if each["timeline"] == "ada")
    operated.stage.store.cli("DEL", f"{{{NAMESPACE}:0}}:dead-values:{ada}")
    file, lines = exported(operated, code=EXIT_NO)
    assert sorted(each["missing"] for each in lines) == [0, 1]
    done = operated.run("dead", "drop", "--exported", str(file), "--yes")
    assert done.returncode == EXIT_NO
    assert f"{ada} stays: the file does not hold all of its records" in done.stdout
    assert ids_of(operated.json("dead", "list")) == [ada]


def test_a_line_that_lost_its_records_drops_nothing(operated: Operated) -> None:
    operated.start()
    bury(operated, "ada")
    file, (line,) = exported(operated)
    line["digest"]["data"]["records"] = []
    file.write_text(json.dumps(line) + "\n", encoding="utf-8")
    done = operated.run("dead", "drop", "--exported", str(file), "--yes")
    assert "stays: the file does not hold all of its records" in done.stdout
    assert ids_of(operated.json("dead", "list")) == [line["id"]]


def test_a_file_that_was_cut_off_drops_nothing(operated: Operated) -> None:
    operated.start()
    bury(operated, "ada", "bob")
    file, _ = exported(operated)
    file.write_bytes(file.read_bytes()[:-20])
    done = operated.run("dead", "drop", "--exported", str(file), "--yes")
    assert done.returncode != EXIT_OK
    assert "line 2 is no line of `nsqdigest dead export`, or its end is missing; nothing was dropped" in done.stderr
    assert len(operated.json("dead", "list")) == 2
    assert operated.run("dead", "drop", "--exported", str(file), "--all").returncode == EXIT_USAGE
    assert operated.run("dead", "drop", "--exported", "/nowhere", "--yes").returncode == EXIT_USAGE


# -- events


def test_dead_letters_become_digests_once_the_file_is_mended(operated: Operated) -> None:
    operated.nsqd.create_topic(DEAD_TOPIC)
    operated.start(route("events", timeline="{user}"))
    bodies = [json.dumps({"timeline": f"user:{number}", "id": f"{number}"}) for number in range(20)]
    operated.nsqd.publish_many(TOPIC, [body.encode() for body in [*bodies, "not json"]])
    wait_until(lambda: operated.nsqd.topic_stats(DEAD_TOPIC)["message_count"] == 21, PATIENCE_S, "the letters")

    early = operated.run("dead", "events")
    assert early.returncode == EXIT_NO
    assert "0 dead letters replayed\n21 letters stay: would be a dead letter again\n" in early.stdout

    operated.daemon.stop()
    operated.start(route("events"))
    dry = operated.json("dead", "events", "--dry-run", code=EXIT_NO)
    assert (dry["replayed"], dry["stayed"], dry["dry_run"]) == (20, {"still-bad": 1}, True)
    done = operated.run("dead", "events", "--reason", "missing-field", "--rate", "1000")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert "20 dead letters replayed: 20 to events\n1 letter stays: not selected\n" in done.stdout
    assert "by reason: 20 missing-field, 1 not-json\n" in done.stdout
    wait_until(lambda: operated.added() == 20, PATIENCE_S, "the events to be stored")
    assert {each["timeline"] for each in operated.json("timelines")} == {f"user:{number}" for number in range(20)}
    channel = operated.nsqd.channel_stats(DEAD_TOPIC, CHANNEL)
    assert (channel["depth"], channel["in_flight_count"]) == (1, 0)


def test_letters_of_no_use_hide_none_that_can_be_replayed_and_the_output_is_bounded(stage: Stage) -> None:
    operated = Operated(stage, "--max-rdy-count=100")
    operated.nsqd.create_topic(DEAD_TOPIC)
    operated.start()
    useless = [b"not json %d" % number for number in range(300)]
    operated.nsqd.publish_many(TOPIC, useless)
    wait_until(lambda: operated.nsqd.topic_stats(DEAD_TOPIC)["message_count"] == 300, PATIENCE_S, "the letters")
    operated.daemon.stop()
    operated.start(route("events", timeline="{user}"))
    good = [json.dumps({"timeline": f"user:{number}", "id": f"{number}"}).encode() for number in range(5)]
    operated.nsqd.publish_many(TOPIC, good)
    wait_until(lambda: operated.nsqd.topic_stats(DEAD_TOPIC)["message_count"] == 305, PATIENCE_S, "the others")
    operated.daemon.stop()
    operated.start(route("events"))

    done = operated.run("dead", "events", "--reason", "missing-field")
    assert "5 dead letters replayed: 5 to events\n300 letters stay: not selected\n" in done.stdout
    assert "by reason: 300 not-json, 5 missing-field\n" in done.stdout
    assert "come again within 5 minutes, the others at once" in done.stdout
    assert "empty the channel" not in done.stdout
    wait_until(lambda: operated.added() == 5, PATIENCE_S, "the events to be stored")


def test_the_output_is_bounded_however_many_letters_there_are(operated: Operated) -> None:
    operated.nsqd.create_topic(DEAD_TOPIC)
    operated.start()
    operated.nsqd.publish_many(TOPIC, [b"not json %d" % number for number in range(300)])
    wait_until(lambda: operated.nsqd.topic_stats(DEAD_TOPIC)["message_count"] == 300, PATIENCE_S, "the letters")
    done = operated.run("dead", "events", "--limit", "4", "--dry-run")
    assert len(done.stdout.splitlines()) < 110
    assert "the first 100 letters are listed; the sums count all of them\n" in done.stdout
    assert "300 letters stay: would be a dead letter again\n" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_replay_leaves_nothing_in_flight(operated: Operated, number: signal.Signals) -> None:
    operated.nsqd.create_channel(DEAD_TOPIC, CHANNEL)
    operated.start(route("events", timeline="{user}"))
    bodies = [json.dumps({"timeline": "ada", "id": f"{number}"}).encode() for number in range(50)]
    operated.nsqd.publish_many(TOPIC, bodies)
    wait_until(lambda: operated.nsqd.channel_stats(DEAD_TOPIC, CHANNEL)["depth"] == 50, PATIENCE_S, "the letters")
    operated.daemon.stop()
    operated.start(route("events"))
    words = "dead", "events", "--rate", "10", "-c", str(operated.daemon.config_path)
    with subprocess.Popen([installed_command(), *words], stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: operated.added() >= 3, PATIENCE_S, "a few events")
        process.send_signal(number)
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_NO
    assert "interrupted; what was not replayed stays" in said
    channel = operated.nsqd.channel_stats(DEAD_TOPIC, CHANNEL)
    replayed = int(said.split()[0])
    assert (channel["depth"], channel["in_flight_count"]) == (50 - replayed, 0)


def test_no_dead_letter_and_an_nsqd_that_is_down(operated: Operated) -> None:
    operated.start()
    done = operated.run("dead", "events")
    said = f"no dead letter came from the channel {CHANNEL} of {DEAD_TOPIC}\n"
    assert (done.returncode, done.stdout) == (EXIT_OK, said)
    operated.daemon.stop()
    operated.nsqd.stop()
    done = operated.run("dead", "events")
    assert done.returncode == EXIT_UNREACHABLE
    assert "Connection refused" in done.stderr
    assert "no dead letter" not in done.stdout
    assert operated.run("dead", "events", "--channel", "no such").returncode == EXIT_USAGE
    assert operated.run("dead", "events", "--rate", "nan").returncode == EXIT_USAGE


def test_a_redis_that_was_not_reached_changed_nothing(operated: Operated) -> None:
    operated.start()
    operated.daemon.stop()
    operated.stage.store.stop()
    done = operated.run("dead", "replay", "--all")
    assert (done.returncode, "may have been made" in done.stderr) == (EXIT_UNREACHABLE, False)


def test_without_a_dead_letter_topic_there_are_no_letters(operated: Operated) -> None:
    operated.daemon.settings = {
        **operated.daemon.settings, "nsq": {**operated.daemon.settings["nsq"], "dead_letter_topic": ""},
    }  # fmt: skip
    operated.start()
    done = operated.run("dead", "events")
    assert (done.returncode, 'nsq.dead_letter_topic is ""' in done.stderr) == (EXIT_NO, True)


# -- test-sink


def test_a_sample_digest_and_what_became_of_it(operated: Operated) -> None:
    operated.start()
    done = operated.run("test-sink", "hook")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert done.stdout.startswith("sink hook (webhook): delivered in ")
    (post,) = operated.hook.posts
    assert f"digest {post.id}, {len(post.body):,} bytes" in done.stdout

    operated.hook.answer(REFUSED)
    refused = operated.json("test-sink", "hook", code=EXIT_NO)
    assert (refused["outcome"], refused["digest"]) == ("refused", operated.hook.posts[-1].id)
    assert "\\u001b[2Jno such user" in operated.run("test-sink", "hook").stdout

    operated.hook.down()
    assert operated.run("test-sink", "hook").returncode == EXIT_UNREACHABLE

    template = operated.daemon.config_path.with_name("body.j2")
    template.write_text('"{{ 1 / (data.total - 17) }}"', encoding="utf-8")  # of all samples only this one has 17 events
    file = template.with_name("other.toml")
    text = operated.daemon.config_path.read_text(encoding="utf-8")
    file.write_text(text.replace("[sinks.hook]", '[sinks.hook]\nbody = "file:body.j2"'), encoding="utf-8")
    unmade = operated.run("test-sink", "hook", file=file)
    assert unmade.returncode == EXIT_NO
    assert "no body could be made of the sample" in unmade.stdout
    assert "body.j2:1: " in unmade.stdout

    unknown = operated.run("test-sink", "hok")
    assert (unknown.returncode, 'did you mean "hook"?' in unknown.stderr) == (EXIT_NO, True)


def test_a_sample_goes_where_the_event_that_is_named_says(operated: Operated) -> None:
    operated.start()
    text = operated.daemon.config_path.read_text(encoding="utf-8")
    file = operated.daemon.config_path.with_name("tenants.toml")
    file.write_text(text.replace('/hook"', '/hook/{tenant.id}"'), encoding="utf-8")
    missing = operated.run("test-sink", "hook", file=file)
    assert (missing.returncode, operated.hook.posts) == (EXIT_USAGE, [])
    assert "depends on the event's {tenant.id}; name an event: nsqdigest test-sink hook --event" in missing.stderr

    event = file.with_name("event.json")
    event.write_text('{"tenant": {"id": "a/b"},\n "n": 1.50}', encoding="utf-8")
    done = operated.run("test-sink", "hook", "--event", str(event), file=file)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert "/… ({tenant.id} = a%2Fb)\n" in done.stdout
    (post,) = operated.hook.posts
    assert (post.path, b'"value":{"tenant": {"id": "a/b"}' in post.body) == ("/hook/a%2Fb", True)

    event.write_text('{"tenant": {"id": "../\\u001b[31m"}}', encoding="utf-8")
    nowhere = operated.run("test-sink", "hook", "--event", str(event), file=file)
    assert (nowhere.returncode, len(operated.hook.posts)) == (EXIT_NO, 1)
    assert "nothing was sent: the event does not say where its digest goes" in nowhere.stdout
    assert "the value: ../\\u001b[31m" in nowhere.stdout
    for text in ("[]", "{", "", "\xff", "[" * 10_000):
        event.write_text(text, encoding="latin-1")
        assert "not one event" in operated.run("test-sink", "hook", "--event", str(event), file=file).stderr
    assert "No such file" in operated.run("test-sink", "hook", "--event", "/nowhere", file=file).stderr


def test_there_are_words_for_whatever_a_sink_says() -> None:
    assert set(IN_WORDS) == set(Verdict)
