"""turn.lua: of daemons that do the same upkeep one has each turn, and none is without one for long."""

from __future__ import annotations

import pytest
import redis

from support.store import NOW_MS, Scripts

pytestmark = pytest.mark.script

DAY_MS = 24 * 3600 * 1000


def test_the_first_has_the_turn_until_it_is_over(store: Scripts) -> None:
    assert [store.turn(lasts_ms=1000) for _ in range(3)] == [True, False, False]
    store.now_ms = NOW_MS + 999
    assert not store.turn(lasts_ms=1000)
    store.now_ms = NOW_MS + 1000
    assert [store.turn(lasts_ms=1000) for _ in range(2)] == [True, False]


def test_who_is_refused_does_not_make_it_longer_and_writes_nothing(store: Scripts) -> None:
    store.turn()
    before = store.dump()
    store.now_ms = NOW_MS + 500
    assert not store.turn()
    assert store.dump() == before


def test_those_that_do_other_upkeep_have_turns_of_their_own(store: Scripts) -> None:
    assert [store.turn(whose) for whose in ("old file", "new file", "old file")] == [True, True, False]


def test_where_the_clock_was_set_back_the_turn_is_over(store: Scripts) -> None:
    store.turn()
    store.now_ms = NOW_MS - 1
    assert [store.turn(), store.turn()] == [True, False]


def test_who_has_the_turn_learns_once_how_far_the_clock_went_back_at_least(store: Scripts) -> None:
    """A daemon that began later has no other way to know it."""
    store.turn("others")
    store.now_ms = NOW_MS + 7
    assert store.turn_and_ahead() == (True, 0)
    store.now_ms = NOW_MS - 100
    assert store.turn_and_ahead("third") == (True, 107)
    assert store.turn_and_ahead() == (True, 0)
    assert not store.turn("third")


@pytest.mark.parametrize(("after_ms", "names"), [(DAY_MS, {b"gone", b"here"}), (DAY_MS + 1, {b"here"})])
def test_what_nobody_asked_for_in_a_day_is_forgotten(store: Scripts, after_ms: int, names: set[bytes]) -> None:
    store.turn("gone")
    store.now_ms = NOW_MS + after_ms
    store.turn("here")
    assert {*store.command("HKEYS", store.key("turns"))} == names


@pytest.mark.parametrize("began", ["", "a text", "nan", "inf"])
def test_what_is_no_instant_is_nobodys_turn(store: Scripts, began: str) -> None:
    store.command("HSET", store.key("turns"), "daemons", began, "others", began)
    assert [store.turn_and_ahead(), store.turn_and_ahead()] == [(True, 0), (False, 0)]
    assert store.command("HKEYS", store.key("turns")) == [b"daemons"]


def test_a_key_of_another_type_is_an_error_before_anything_is_written(store: Scripts) -> None:
    store.command("SET", store.key("turns"), "x")
    before = store.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.turn()
    assert store.dump() == before


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    store.now_ms = None
    assert [store.turn(lasts_ms=600_000), store.turn(lasts_ms=600_000)] == [True, False]


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.turn()
    assert store.watch is not None
    assert store.watch.touched["turn"] == {store.key("turns")}
