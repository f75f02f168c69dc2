"""Calls that were cut off between an index and its values: an open between its two RENAMEs, a close before its UNLINK,
or one after the other. Whatever comes meanwhile, each record is shown once, with its own value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis

from support.cutting_off import CutOff, Interruptible
from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"
OLD = {(b"a", b"old"), (b"b", b"other")}


def cut_off_opens(
    redis_client: redis.Redis, *, merge_capacity: int, capacity: int = 100
) -> Iterator[tuple[int, Interruptible, Claim]]:
    """Two old records in one timeline, whose open is cut off after its first write, its second, … and not at all."""
    for writes in range(1, 40):
        store = Interruptible(redis_client)
        store.add(Rec(T, b"a", NOW_MS, b"old"), Rec(T, b"b", NOW_MS, b"other"), capacity=capacity)
        (claim,) = store.claim().claims
        store.cut_off_after(writes)
        was_cut_off = True
        try:
            store.open(claim, "id-1", merge_capacity=merge_capacity)
            was_cut_off = False
        except CutOff:
            pass
        yield writes, store, claim
        redis_client.flushall()
        if not was_cut_off:
            return
    raise AssertionError("no end of its writes")


def shown(store: Scripts, claim: Claim) -> set[tuple[bytes, bytes]]:
    index, values = store.keys("digest digest-values", "r", claim.timeline)
    return {(key, store.command("HGET", values, key)) for key in store.command("ZRANGE", index, 0, -1)}


def deliver_all(store: Scripts, claim: Claim, merge_capacity: int) -> list[tuple[int, set[tuple[bytes, bytes]]]]:
    """What each digest said it has, and what it has."""
    digests = []
    for number in range(2, 6):
        opened = store.open(claim, f"id-{number}", merge_capacity=merge_capacity)
        if not isinstance(opened, str):
            digests.append((opened.total, shown(store, claim)))
            store.close(claim, opened.id, base_ms=NOW_MS, remember_ms=0)
            store.now_ms = NOW_MS + number
        claims = store.claim(token=f"token {number}").claims
        if not claims:
            return digests
        (claim,) = claims
    raise AssertionError(f"it is due for ever: {digests}")


@pytest.mark.parametrize("merge_capacity", [0, 10], ids=["as it was", "merged"])
@pytest.mark.parametrize("came", [[b"a"], [b"c"], [b"a", b"b"], [b"a", b"c"], []], ids=str)
def test_each_record_is_shown_once_wherever_the_open_was_cut_off(
    redis_client: redis.Redis, merge_capacity: int, came: list[bytes]
) -> None:
    for writes, store, claim in cut_off_opens(redis_client, merge_capacity=merge_capacity):
        new = [Rec(T, key, NOW_MS + 1, b"new") for key in came]
        if new:
            store.add(*new)
        digests = deliver_all(store, claim, merge_capacity)
        assert [total for total, _ in digests] == [len(records) for _, records in digests], writes
        times = Counter(record for _, records in digests for record in records)
        newer = {(key, b"new") for key in came}
        superseded = {record for record in OLD if record[0] in came}
        assert newer | (OLD - superseded) <= times.keys() <= newer | OLD, (writes, digests)
        assert set(times.values()) == {1}, (writes, digests)


def test_a_snapshot_that_lost_a_record_goes_out_with_the_others_under_a_new_id(store: Scripts) -> None:
    store.is_sound = False
    store.add(Rec(T, b"a", NOW_MS), Rec(T, b"b", NOW_MS))
    (claim,) = store.claim().claims
    store.opened(claim, "id-1")
    store.command("ZREM", store.key("digest", "r", T), b"a")
    again = store.opened(claim, "id-2")
    assert (again.word, again.id, again.total) == ("again", "id-2", 1)


@pytest.mark.parametrize("capacity", [100, 2])
@pytest.mark.parametrize("merge_capacity", [0, 2])
def test_records_come_in_wherever_an_open_of_a_full_timeline_was_cut_off(
    redis_client: redis.Redis, capacity: int, merge_capacity: int
) -> None:
    for _, store, _ in cut_off_opens(redis_client, merge_capacity=merge_capacity, capacity=capacity):
        assert store.add(Rec(T, b"new", NOW_MS + 1), capacity=capacity).added == 1


def test_a_full_timeline_whose_set_is_gone_takes_records(store: Scripts) -> None:
    store.is_sound = False
    store.add(Rec(T, b"a", NOW_MS), Rec(T, b"b", NOW_MS), capacity=2)
    store.command("DEL", store.key("set", "r", T))
    store.add(Rec(T, b"c", NOW_MS), Rec(b"other", b"k", NOW_MS), capacity=2)
    assert store.command("ZRANGE", store.key("set", "r", T), 0, -1) == [b"c"]


# -- a close and an open after it, both cut off


def cut_off(store: Interruptible, writes: int, call: Callable[[], object]) -> bool:
    store.cut_off_after(writes)
    try:
        call()
    except CutOff:
        return True
    return False


@pytest.mark.parametrize("merge_capacity", [0, 10], ids=["as it was", "merged"])
@pytest.mark.parametrize("older", [0, 5], ids=["newer", "older"])
def test_a_digest_never_shows_the_values_of_the_one_before(
    redis_client: redis.Redis, merge_capacity: int, older: int
) -> None:
    """Both digests are of the same key. After the second cut a third event of that key comes, newer or older."""
    was_closed = False
    for in_close in range(40):
        for in_open in range(40):
            store = Interruptible(redis_client)
            store.add(Rec(T, b"a", NOW_MS, b"first"))
            claim = store.claim_one(T)
            store.opened(claim)
            was_closed = not cut_off(store, in_close, lambda: store.close(claim, base_ms=NOW_MS))  # noqa: B023
            store.add(Rec(T, b"a", NOW_MS + 10, b"second"))
            store.now_ms = NOW_MS + LEASE_MS + 1
            store.maintenance()
            claim = store.claim_one(T, token="second")
            was_opened = not cut_off(store, in_open, lambda: store.open(claim, "id-2", merge_capacity=merge_capacity))  # noqa: B023
            store.add(Rec(T, b"a", NOW_MS + 11 - older, b"third"))
            digests = deliver_all(store, claim, merge_capacity)
            assert all(total == len(records) for total, records in digests), (in_close, in_open)
            found = {value for _, records in digests for _, value in records}
            assert (b"second" if older else b"third") in found, (in_close, in_open, digests)
            assert not was_closed or b"first" not in found
            redis_client.flushall()
            if was_opened:
                break
        if was_closed:
            return
    raise AssertionError("no end of its writes")
