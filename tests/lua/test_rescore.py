"""rescore.lua: timelines that wait get the instants of a policy that has changed."""

from __future__ import annotations

import pytest

from nsqdigest.store.schedule import EXEMPT_MS
from support.store import NOW_MS, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"
HOUR_MS = 3_600_000
SOONER = (T, "", NOW_MS + 5, NOW_MS + 9)
LATER = (T, "", NOW_MS + 2 * HOUR_MS, NOW_MS + 2 * HOUR_MS)


def begin(store: Scripts, due_after_ms: int = HOUR_MS) -> None:
    store.add(Rec(T, b"k", NOW_MS), base_ms=NOW_MS + due_after_ms)


def test_what_is_due_sooner_is_claimed_then(store: Scripts) -> None:
    begin(store)
    assert store.rescore(SOONER, increment_ms=3) == (1, 0)
    assert store.schedule(T) == (NOW_MS + 5, NOW_MS + 9, 1)
    store.now_ms = NOW_MS + 7
    assert store.claim(routes=[("r", 1, 3)]).claims == []
    store.now_ms = NOW_MS + 8
    assert store.claim(routes=[("r", 1, 3)]).claims[0].due_ms == NOW_MS + 8


def test_what_is_due_later_is_claimed_no_sooner(store: Scripts) -> None:
    begin(store)
    assert store.rescore(LATER) == (0, 1)
    store.now_ms = NOW_MS + HOUR_MS
    assert store.claim().claims == []
    store.now_ms = NOW_MS + 2 * HOUR_MS
    assert store.claim().timelines == [T]


def test_what_should_have_gone_out_before_is_due_now(store: Scripts) -> None:
    begin(store)
    assert store.rescore((T, "", NOW_MS - HOUR_MS, NOW_MS - 1)) == (1, 0)
    assert store.claim().claims[0].due_ms == NOW_MS


def test_to_ask_again_changes_nothing(store: Scripts) -> None:
    begin(store)
    store.rescore(SOONER)
    before = store.dump()
    assert store.rescore(SOONER) == (0, 0)
    assert store.dump() == before


def test_the_anchor_stands_in_the_head_and_nothing_else_is_lost_there(store: Scripts) -> None:
    begin(store, 0)
    claim = store.claim_one(T)
    store.opened(claim)
    store.close(claim, base_ms=NOW_MS + HOUR_MS)
    before: bytes = store.command("HGET", store.key("heads", "r"), T)
    store.rescore((T, "id-1", *LATER[2:]), anchor="1:77")
    store.rescore((T, "id-1", *SOONER[2:]), anchor="1:78")
    assert store.command("HGET", store.key("heads", "r"), T) == before + b" anchor=1:78"
    store.now_ms = NOW_MS + HOUR_MS
    store.add(Rec(T, b"l", NOW_MS))
    assert store.opened(store.claim_one(T), "id-2").iteration == 2


def test_what_is_due_already_stays(store: Scripts) -> None:
    begin(store, 0)
    assert store.rescore(LATER) == (0, 0)
    assert store.claim().timelines == [T]


def test_what_is_exempt_stays(store: Scripts) -> None:
    begin(store)
    store.flush(T, due=EXEMPT_MS)
    store.rescore(LATER)
    assert store.schedule(T) == (EXEMPT_MS, EXEMPT_MS, 1)


def test_what_waits_for_another_attempt_stays(store: Scripts) -> None:
    begin(store, 0)
    claim = store.claim_one(T)
    store.opened(claim)
    assert store.rescore(SOONER) == (0, 0), "leased"
    store.fail(claim, NOW_MS + 1000)
    assert store.rescore(SOONER) == (0, 0)
    assert store.schedule(T) == (NOW_MS + 1000, NOW_MS + 1000, 0)


def test_what_had_a_digest_since_the_caller_looked_stays(store: Scripts) -> None:
    begin(store, 0)
    claim = store.claim_one(T)
    store.opened(claim)
    store.close(claim, base_ms=NOW_MS + HOUR_MS)
    assert store.rescore(SOONER) == (0, 0)
    assert store.rescore((T, "id-1", NOW_MS + 5, NOW_MS + 9)) == (1, 0)


def test_a_timeline_that_is_not_there_stays_so(store: Scripts) -> None:
    assert store.rescore(SOONER) == (0, 0)
    assert store.dump() == {}


def test_the_policy_is_remembered_for_the_route(store: Scripts) -> None:
    store.rescore(remember="delays=1,2,3", route="one")
    store.rescore(remember="delays=4,5,6", route="other")
    found = store.client.hgetall(store.key("policies"))
    assert found == {b"one": b"delays=1,2,3", b"other": b"delays=4,5,6"}
    store.client.delete(store.key("policies"))
