"""renew.lua: a longer lease for a delivery that is still under way."""

from __future__ import annotations

import pytest

from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"


def claimed(store: Scripts) -> Claim:
    store.add(Rec(T, b"k", NOW_MS))
    return store.claim_one(T)


@pytest.mark.parametrize("lease_ms", [1, LEASE_MS, 10 * LEASE_MS])
def test_the_lease_ends_so_long_from_now(store: Scripts, lease_ms: int) -> None:
    claim = claimed(store)
    store.now_ms = NOW_MS + 7
    assert store.renew(claim, lease_ms) == "renewed"
    assert store.leased() == {T: NOW_MS + 7 + lease_ms}


def test_nothing_else_changes(store: Scripts) -> None:
    claim = claimed(store)
    before = store.dump()
    store.renew(claim, lease_ms=LEASE_MS + 1)
    changed = {name for name, bytes_of in store.dump().items() if before[name] != bytes_of}
    assert changed == {store.key("leased", "r")}


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    claim = claimed(store)
    store.now_ms = None
    seconds, microseconds = store.command("TIME")
    store.renew(claim)
    assert 0 <= store.leased()[T] - LEASE_MS - (seconds * 1000 + microseconds // 1000) < 10_000


def test_a_lease_that_ran_out_but_was_not_taken_back_is_renewed(store: Scripts) -> None:
    claim = claimed(store)
    store.now_ms = NOW_MS + LEASE_MS + 1
    assert store.renew(claim) == "renewed"
    assert store.maintenance() == 0


def test_a_lease_that_was_taken_back_is_not_renewed(store: Scripts) -> None:
    claim = claimed(store)
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    before = store.dump()
    assert store.renew(claim) == "stale"
    assert store.dump() == before


def test_the_lease_of_another_is_not_renewed(store: Scripts) -> None:
    first = claimed(store)
    store.fail(first, NOW_MS)
    store.claim_one(T, token="second")
    before = store.dump()
    assert store.renew(first) == "stale"
    assert store.dump() == before


def test_of_an_unknown_timeline_there_is_nothing_to_renew(store: Scripts) -> None:
    for token in ("token", ""):
        assert store.renew(Claim("r", T, NOW_MS, token)) == "stale"
    assert store.dump() == {}


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.renew(claimed(store))
    assert store.watch is not None
    assert store.watch.touched["renew"] == {*store.keys("leased tokens", "r"), store.key("agenda")}
