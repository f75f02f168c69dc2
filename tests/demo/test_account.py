"""The demo's verdict stands on what arrived, event by event."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from nsqdigest.demo.account import Account, Troubles, in_one_sentence

pytestmark = pytest.mark.unit


def body(identity: str, numbers: list[int], **changes: Any) -> bytes:
    records = [{"key": str(number), "timestamp": number, "value": {"id": number}} for number in numbers]
    data = {"id": identity, "total": len(records), "shown": len(records), "records": records, **changes}
    return msgspec.json.encode({"type": "digest", "data": data})


def letter(text: bytes) -> dict[str, Any]:
    return {"reason": "not-json", "detail": "", "body": base64.b64encode(text).decode()}


def published(*numbers: int) -> Account:
    account = Account()
    for number in numbers:
        account.published_event(number)
    return account


def test_all_is_well_when_every_event_was_shown() -> None:
    account = published(1, 2, 3)
    account.accepted(body("a", [1, 3]))
    account.accepted(body("b", [2]))
    assert account.is_right
    assert (account.published, account.delivered, account.open, len(account.digests)) == (3, 3, 0, 2)


def test_an_event_that_no_digest_showed_is_open() -> None:
    account = published(1, 2)
    account.accepted(body("a", [1]))
    assert account.open == 1
    assert not account.is_right


def test_records_of_groups_count_like_others() -> None:
    account = published(1, 2)
    groups = [
        {"group": name, "records": [{"key": name, "timestamp": 1, "value": {"id": number}}]}
        for name, number in (("x", 1), ("y", 2))
    ]
    account.accepted(msgspec.json.encode({"data": {"id": "a", "total": 2, "shown": 2, "groups": groups}}))
    assert account.is_right


def test_the_same_digest_again_is_no_news() -> None:
    account = published(1)
    assert account.accepted(body("a", [1])) is not None
    assert account.accepted(body("a", [1])) is None
    assert account.is_right
    assert (account.delivered, account.repeated, account.came_again) == (1, 0, 1)


def test_one_id_with_two_bodies_is_a_complaint() -> None:
    account = published(1, 2)
    account.accepted(body("a", [1]))
    account.accepted(body("a", [1, 2]))
    assert account.complaints == ["digest a came with two bodies"]


def test_an_event_in_two_digests_is_counted_as_repeated() -> None:
    account = published(1)
    account.accepted(body("a", [1]))
    account.accepted(body("b", [1]))
    assert (account.delivered, account.repeated) == (1, 1)


def test_a_digest_that_hides_events_is_a_complaint() -> None:
    account = published(1)
    account.accepted(body("a", [1], total=2))
    assert account.complaints == ["digest a shows 1 of 2 events"]
    assert not account.is_right


def test_a_broken_event_is_open_until_its_very_bytes_come_as_a_dead_letter() -> None:
    account = Account()
    account.published_broken(b"{")
    assert account.open == 1
    assert account.dead_lettered(letter(b"{")) == b"{"
    assert account.open == 0
    assert (account.published, account.broken, account.dead_letters) == (1, 1, 1)


def test_a_dead_letter_of_something_else_is_a_complaint() -> None:
    account = Account()
    account.published_broken(b"{")
    account.dead_lettered(letter(b"["))
    assert account.open == 1
    assert account.complaints == ["a dead letter that nobody expected: not-json"]


@pytest.mark.parametrize(
    ("events", "digests", "troubles", "said"),
    [
        (781, 33, Troubles(4.02, 1), "781 events became 33 messages: 24 times fewer interruptions. "
         "Redis was away for 4 s and the daemon was killed with kill -9. Lost: 0."),
        (6, 4, Troubles(), "6 events became 4 messages: 2 times fewer interruptions. Lost: 0."),
        (1, 1, Troubles(0, 1), "1 event became 1 message. The daemon was killed with kill -9. Lost: 0."),
        (2, 2, Troubles(7.96, 2), "2 events became 2 messages. "
         "Redis was away for 8 s and 2 daemons were killed with kill -9. Lost: 0."),
        (0, 0, Troubles(0.42, 0), "0 events became 0 messages. Redis was away for 0.4 s. Lost: 0."),
    ],
)  # fmt: skip
def test_all_of_it_in_one_sentence(events: int, digests: int, troubles: Troubles, said: str) -> None:
    account = published(*range(events))
    for number in range(digests):
        account.accepted(body(str(number), list(range(number, events, digests))))
    assert in_one_sentence(account, troubles) == said


def test_what_is_lost_is_said_last() -> None:
    account = published(1, 2, 3)
    account.accepted(body("a", [1, 3]))
    assert in_one_sentence(account, Troubles()).endswith(" Lost: 1.")
