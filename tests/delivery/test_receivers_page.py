"""docs/receivers.md says what arrives and what an answer does: its tables, pictures and examples are compared with what
the code makes."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from nsqdigest.backoff import retry_wait_ms
from nsqdigest.base.reasons import BuryReason, DeadLetterReason, Verdict
from nsqdigest.config import Address, Config, parse_text
from nsqdigest.config.options import EVERY_SINK
from nsqdigest.config.units import duration_ms
from nsqdigest.delivery.bodies.base import JSON
from nsqdigest.delivery.bodies.checking import fault_of
from nsqdigest.delivery.bodies.sample import digest_json, sample_of
from nsqdigest.delivery.bodies.slack import slack
from nsqdigest.delivery.bodies.template import Template
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.sinks.base import Outcome
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.delivery.sinks.webhook import verdict_of
from nsqdigest.delivery.verdicts import Step, after
from nsqdigest.intake.letter_reading import read
from nsqdigest.intake.letters import DeadLetters, Letter
from nsqdigest.nsq.frames import Message

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parents[2] / "docs"
PAGE = (FOLDER / "receivers.md").read_text("utf-8")
NAMES = Names("events", "user:42", "hook")
EVENTS = [{"user": {"id": 42}, "what": what} for what in ("login failed", "login failed", "password reset")]


def block(title: str) -> str:
    found = re.search(rf"<!-- {title} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1)


def table(title: str) -> list[list[str]]:
    """Its rows, without the head."""
    _, _, *rows = PAGE.partition(f"<!-- {title} -->\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in rows]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def paths(value: Any, before: str = "") -> Iterator[str]:
    """Every field of a document. What a publisher chose stands behind `value`, and is nobody's business here."""
    if isinstance(value, list):
        for each in value:
            yield from paths(each, f"{before}[]")
    elif isinstance(value, dict):
        for name, inner in value.items():
            path = f"{before}.{name}".removeprefix(".")
            yield path
            if name != "value":
                yield from paths(inner, path)


def config() -> Config:
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    text = '[nsq]\nnsqd_tcp_addresses = ["127.0.0.1:4150"]\n' + found.group(1)
    return parse_text(text, "f.toml", {"SLACK_URL": "https://hooks.slack.com/services/x"}, KINDS)


def test_the_configuration_is_one_without_advice() -> None:
    assert config().warnings == ()


def test_the_picture_is_what_arrives() -> None:
    message = json.loads(slack(sample_of(config().routes[0])))
    texts = [text["text"] for part in message["blocks"] for text in part.get("elements", [part.get("text")])]
    seen = re.sub(r"<!date[^|]*\|([^>]*)>", r"\1", "\n".join(texts)).replace("`", "").replace("*", "")
    assert block("a message") == seen + "\n"


def test_the_template_makes_the_body_and_check_finds_nothing() -> None:
    text = block("a template")
    body = Template(text, JSON, 65_536, time.monotonic)(sample_of(config().routes[0]))
    assert json.loads(body) == json.loads(block("its body"))
    assert fault_of(text, JSON, 65_536, (False, True), time.monotonic) is None


def test_the_targets_are_those_of_a_configuration() -> None:
    routes = "".join(f'[[routes]]\nname = "{sink}"\ntopic = "events"\nsink = "{sink}"\n'
                     'timeline = "{tenant}:{user.id}"\n'
                     for sink in ("tenants", "queue"))  # fmt: skip
    text = '[nsq]\nnsqd_tcp_addresses = ["127.0.0.1:4150"]\n' + block("targets") + routes
    assert parse_text(text, "f.toml", {"HOOK_SECRET": f"whsec_{'A' * 43}="}, KINDS).warnings == ()


def test_every_variable_is_there() -> None:
    names = re.findall(r"`((?:data\.)?[a-z_.]+)`", PAGE[PAGE.index("| variable |") : PAGE.index("- **Text is")])
    variables = [name for name in names if name.startswith("data.") or name == "timestamp"]
    assert len(variables) > 15
    for name in variables:
        Template(f"{{{{ {name} | tojson }}}}", JSON, 65_536, time.monotonic)(sample_of(config().routes[0]))


# -- the digest


def test_the_digest_is_one_that_is_made() -> None:
    assert json.loads(block("a digest")) == json.loads(digest_json(EVENTS, NAMES))


def test_the_table_has_every_field_and_no_other() -> None:
    documents = [digest_json(EVENTS, NAMES), digest_json(EVENTS, NAMES, ("what",))]
    there = {path for each in documents for path in paths(json.loads(each))}
    there.add("data.dropped.cancelled")  # of a route with `cancel`
    containers = {"data", "data.dropped"}
    of_groups = {path for path in there if path.startswith("data.groups[].records[]")}
    assert {name for row in table("fields") for name in named(row[0])} == there - containers - of_groups


# -- answers


def statuses(cell: str) -> set[int]:
    ranges = re.findall(r"(\d{3})(?:\u2013(\d{3}))?", cell)
    return {status for first, last in ranges for status in range(int(first), int(last or first) + 1)}


def test_every_answer_has_one_row_and_is_what_the_row_says() -> None:
    rows = {named(row[0])[0]: row[1] for row in table("answers")}
    assert set(rows) == set(Verdict)
    of_rows = {verdict: statuses(cell) for verdict, cell in rows.items()}
    of_rows[Verdict.REFUSED] -= set().union(*(found for name, found in of_rows.items() if name != Verdict.REFUSED))
    for one, other in itertools.combinations(of_rows.values(), 2):
        assert not one & other
    told = {status: verdict for verdict, found in of_rows.items() for status in found}
    assert set(told) == {101, *range(200, 600)}
    assert told == {status: verdict_of(status) for status in told}


def test_what_becomes_of_the_digest_is_what_the_table_says() -> None:
    settings = config().sinks["chat"]
    for cell, _, becomes in table("answers"):
        verdict = Verdict(named(cell)[0])
        first, third, late = (
            after(Outcome(verdict), settings, attempt, age_ms, max)
            for attempt, age_ms in ((1, 0), (3, 0), (1, settings.max_age_ms))
        )
        is_again = "again later, " in becomes
        assert (first.step is Step.AGAIN) == (is_again or "three attempts" in becomes)
        assert (third.step is Step.BURY) == ("three attempts in all" in becomes)
        assert (late.reason in (BuryReason.TOO_OLD, BuryReason.NO_TARGET)) == (first.step is Step.AGAIN)
        assert (first.step is Step.CLOSE) == ("it is done" in becomes)
        assert (first.step is Step.STOP_SINK) == ("nothing is sent until a reload or a restart" in becomes)


def default_of(option: str) -> int:
    return duration_ms(next(each.default for each in EVERY_SINK if each.key == option))


def test_the_waits_are_those_of_the_defaults() -> None:
    base_ms, cap_ms = default_of("retry_base"), default_of("retry_cap")
    ((_, *longest),) = table("waits")
    assert longest == [f"{retry_wait_ms(n, base_ms, cap_ms, max) // 1000} s" for n in range(1, 8)]
    assert retry_wait_ms(10**9, base_ms, cap_ms, max) == cap_ms
    assert [retry_wait_ms(n, base_ms, cap_ms, min) for n in range(1, 8)] == [1000] * 7


def test_the_defaults_are_those_of_the_file() -> None:
    text = PAGE[PAGE.index("## What an answer does") :]
    for option, shown in re.findall(r"`(retry_after_max|max_age|timeout)` \((\w+ ?\w+)\)", text):
        assert default_of(option) == duration_ms(shown.replace(" ", ""))


# -- the receiver


def test_the_receiver_is_that_of_the_file() -> None:
    assert block("a receiver") in (FOLDER / "receivers" / "receiver.py").read_text("utf-8")


# -- dead letters


def test_the_dead_letter_is_one_that_is_made() -> None:
    shown = json.loads(block("a dead letter"))
    message = Message(shown["id"].encode(), shown["timestamp"], shown["attempts"], b'{"user.id": 42}')
    letter = Letter(message, DeadLetterReason(shown["reason"]), shown["detail"])
    made = DeadLetters(cast(Any, None), "nsqdigest.dead", shown["channel"])
    text = made.encoded(Address("127.0.0.1", 4150), shown["topic"], letter)
    assert json.loads(text) == shown
    assert read(text).body == message.body
    assert [name for row in table("fields of a dead letter") for name in named(row[0])] == list(shown)


def test_every_reason_of_a_dead_letter_is_there() -> None:
    assert {name for row in table("reasons") for name in named(row[0])} == set(DeadLetterReason)
