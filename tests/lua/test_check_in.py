"""check_in.lua: daemons of a namespace know each other while they check in."""

from __future__ import annotations

import pytest
import redis

from support.store import NOW_MS, Scripts

pytestmark = pytest.mark.script


def test_who_checks_in_is_known_to_all(store: Scripts) -> None:
    assert store.check_in("one", "a b") == {b"one": (NOW_MS, b"a b")}
    store.now_ms = NOW_MS + 1000
    assert store.check_in("two", '{"x": 1}') == {b"one": (NOW_MS, b"a b"), b"two": (NOW_MS + 1000, b'{"x": 1}')}
    assert store.check_in("one", "c") == {b"one": (NOW_MS + 1000, b"c"), b"two": (NOW_MS + 1000, b'{"x": 1}')}


@pytest.mark.parametrize(("after_ms", "is_known"), [(999, True), (1000, False), (-999, True), (-1000, False)])
def test_who_was_not_seen_for_long_is_forgotten(store: Scripts, after_ms: int, is_known: bool) -> None:
    """So is one whose clock was ahead."""
    store.check_in("gone", known_for_ms=1000)
    store.now_ms = NOW_MS + after_ms
    assert (b"gone" in store.check_in("here", known_for_ms=1000)) is is_known
    assert bool(store.command("HEXISTS", store.key("daemons"), "gone")) is is_known


def test_who_ends_is_forgotten_at_once(store: Scripts) -> None:
    store.check_in("one")
    store.check_in("two")
    assert set(store.check_in("one", "")) == {b"two"}
    assert store.command("HKEYS", store.key("daemons")) == [b"two"]
    assert store.check_in("never", "") == {b"two": (NOW_MS, b"{}")}


def test_the_key_goes_with_the_last_daemon(store: Scripts) -> None:
    store.check_in("one", known_for_ms=60_000)
    assert 50_000 < store.command("PTTL", store.key("daemons")) <= 60_000
    store.check_in("one", "")
    assert store.command("EXISTS", store.key("daemons")) == 0


@pytest.mark.parametrize("field", ["", "text", "12", " 12 x", "nan x", "-5 x"])
def test_what_no_daemon_wrote_is_left_out_and_stays(store: Scripts, field: str) -> None:
    store.command("HSET", store.key("daemons"), "damaged", field)
    assert set(store.check_in("one")) == {b"one"}
    assert store.command("HGET", store.key("daemons"), "damaged") == field.encode()


def test_there_may_be_so_many_and_no_more(store: Scripts) -> None:
    names = [f"d{number}" for number in range(1000)]
    store.command("HSET", store.key("daemons"), *[part for name in names for part in (name, f"{NOW_MS} x")])
    assert b"further" not in store.check_in("further")
    assert store.command("HLEN", store.key("daemons")) == 1000
    assert b"d7" in store.check_in("d7")
    store.now_ms = NOW_MS + 60_000
    assert set(store.check_in("further")) == {b"further"}


def test_a_key_of_another_type_is_an_error_before_anything_is_written(store: Scripts) -> None:
    store.command("SET", store.key("daemons"), "x")
    before = store.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.check_in()
    assert store.dump() == before


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    store.now_ms = None
    assert store.check_in()[b"one"][0] > NOW_MS


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.check_in()
    assert store.watch is not None
    assert store.watch.touched["check_in"] == {store.key("daemons")}
