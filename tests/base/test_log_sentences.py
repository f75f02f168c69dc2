"""Sentences of the log: each event has one, of fields that it has; and what they look like."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.backoff import Reason, State
from nsqdigest.base.log_sentences import SENTENCES, phrase_of
from nsqdigest.base.metrics import Metrics
from nsqdigest.daemon.summary import Summary
from nsqdigest.store.figures import Figures

pytestmark = pytest.mark.unit

PACKAGE = Path(__file__).parents[2] / "nsqdigest"
EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+")
LEVELS = ("debug", "info", "warning", "error", "counted")
WITHOUT = {"bug"}
"""Events that end so have a traceback, which says more."""
ADDED_ELSEWHERE = {"log.lines_dropped"}
OF_A_DIGEST = {"route", "timeline", "sink", "digest", "attempt", "records"}
"""What `Delivery.log_fields` holds."""
OF_A_DECISION = {"backoff_level", "limit", "reason", "wait_s"}


OF_A_SUMMARY = set(Summary(Metrics(), Figures).take())


class Call(NamedTuple):
    event: str
    fields: frozenset[str]


def calls() -> Iterator[Call]:
    """Every line that the program can log."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            if not re.search(r"\b(_?log|log\.get\(.*\))$", ast.unparse(node.func.value)):
                continue
            names = {keyword.arg for keyword in node.keywords if keyword.arg} - {"by", "adds", "tops", "every_s"}
            if any(keyword.arg is None for keyword in node.keywords):
                names |= OF_A_DIGEST | OF_A_SUMMARY
            if ast.unparse(node.func.value) == "self._log":
                names |= {"topic"}  # bound
            for constant in [each for argument in node.args for each in ast.walk(argument)]:
                if isinstance(constant, ast.Constant) and EVENT.fullmatch(str(constant.value)):
                    yield Call(str(constant.value), frozenset(names))
    for about, of in (("consumer.topic", "topic"), ("scheduler.sink", "sink")):
        for state in State:
            yield Call(f"{about}.{state}", frozenset({of, *OF_A_DECISION}))


CALLS = [call for call in calls() if call.event.rsplit(".", 1)[-1] not in WITHOUT]


def named_in(sentence: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def test_the_sources_were_searched() -> None:
    assert len({call.event for call in CALLS}) > 60


@pytest.mark.parametrize("event", sorted({call.event for call in CALLS}))
def test_every_event_has_a_sentence_and_the_fields_that_it_names(event: str) -> None:
    sentence = SENTENCES[event]
    for call in CALLS:
        if call.event == event and isinstance(sentence, str):
            assert named_in(sentence) <= call.fields


def test_no_sentence_is_of_an_event_that_nobody_logs() -> None:
    assert set(SENTENCES) - {call.event for call in CALLS} == ADDED_ELSEWHERE


def text_of(event: str, **fields: Any) -> str:
    phrase = phrase_of(event, fields)
    assert phrase is not None
    return phrase.text


@pytest.mark.parametrize("about", ["consumer.topic", "scheduler.sink"])
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("reason", Reason)
def test_every_decision_has_a_sentence(about: str, state: State, reason: Reason) -> None:
    wait_s = None if state in (State.FLOWING, State.PAUSED, State.PROBING) else 2.125
    fields = {"topic": "t", "sink": "s", "backoff_level": 3, "limit": 8, "reason": reason, "wait_s": wait_s}
    assert text_of(f"{about}.{state}", **fields)


def test_a_decision_says_what_is_done_and_for_how_long() -> None:
    def backoff(reason: Reason) -> str:
        return text_of("consumer.topic.backoff", topic="t", backoff_level=2, limit=0, reason=reason, wait_s=2.125)

    assert backoff(Reason.FAILED) == "topic t steps back (level 2): takes nothing for 2.12 s"
    assert backoff(Reason.PROBE_FAILED) == "topic t's probe failed (level 2): takes nothing for 2.12 s"
    assert backoff(Reason.PROBE_SUCCEEDED).endswith(" takes nothing for 2.12 s, then the next probe")
    assert backoff(Reason.ANSWERED_ELSEWHERE) == "others are answered again, so topic t probes in 2.12 s"
    ramping = {"topic": "t", "backoff_level": 0, "reason": Reason.RAMPED, "wait_s": 5.0}
    assert text_of("consumer.topic.ramping", limit=1, **ramping) == (
        "topic t has recovered: 1 at a time, then 2, 4, 8 …"
    )
    assert text_of("consumer.topic.ramping", limit=4, **ramping) == "topic t takes 4 at a time"
    assert text_of("scheduler.sink.flowing", sink="s", limit=8, reason="recovered") == (
        "sink s is back to 8 digests at a time"
    )
    assert text_of("scheduler.sink.flowing", sink="s", limit=8, reason="resumed") == "sink s is resumed"


@pytest.mark.parametrize(
    ("event", "fields", "text"),
    [
        (
            "store.data_lost", {"what": "records", "route": "r", "records": 1, "hint": "h"},
            "Redis has lost 1 record of route r; h",
        ),
        ("store.data_lost", {"what": "partition", "partition": 3}, "Redis has lost partition 3"),
        ("store.server_changed", {"server": "a:1", "what": "promoted"}, "Redis server a:1 has become the primary"),
        ("daemon.stopped", {}, "the daemon has stopped; nothing is in flight"),
        ("daemon.stopped", {"at_once": True}, "the daemon has stopped at once"),
        ("daemon.state", {"check": "sink s", "detail": "refuses", "well": False}, "state of sink s: refuses (!)"),
        (
            "daemon.state.topic", {"topic": "t", "state": "flowing", "backoff_level": 0, "in_flight": 1, "depth": 4150},
            "topic t: flowing (level 0), 1 event in flight, 4,150 messages in nsqd",
        ),
        (
            "daemon.state.topic", {"topic": "t", "state": "flowing", "backoff_level": 0, "in_flight": 2, "depth": None},
            "topic t: flowing (level 0), 2 events in flight",
        ),
        (
            "daemon.state.other", {"version": "1.2", "host": "web", "pid": 7, "differs": True},
            "another daemon, 1.2, runs on web with pid 7, with another file",
        ),
        (
            "consumer.connection.open", {"nsqd": "a:1", "topic": "t", "after_s": 12345.0},
            "connected to nsqd a:1 for topic t after 12,345 s",
        ),
        (
            "scheduler.digest.stale", {"timeline": "a b", "route": "r"},
            'another daemon has timeline "a b" of route r by now',
        ),
    ],
)  # fmt: skip
def test_sentences_that_depend_on_their_fields(event: str, fields: dict[str, Any], text: str) -> None:
    assert text_of(event, **fields) == text


@given(
    st.dictionaries(st.sampled_from(["topic", "reason", "limit", "what", "wait_s", "timeline"]), st.none() | st.text())
)
def test_odd_fields_are_no_error(fields: dict[str, Any]) -> None:
    for event in SENTENCES:
        phrase_of(event, fields)
