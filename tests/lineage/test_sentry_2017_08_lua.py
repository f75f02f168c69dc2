"""Sentry digests of August 2017: every transition in Lua. The stories of its tests, and its weaknesses shown absent.

What tests/lua says of a single script in the same words is not repeated here: what is leased is not claimed again, the
records become the snapshot, close sets the next schedule, capacity keeps the newest, a lease that ran out is taken
back, a deleted timeline leaves no key, and a record added during its digest survives the close.
"""

from __future__ import annotations

import ast
import json
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest

import nsqdigest
from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.head import Head
from nsqdigest.store.schedule import Plan
from support.settings import POLICY, ROUTE, SINK
from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts
from support.stores import OpenStore, add, open_digest, open_store, rec
from support.waiting import until

pytestmark = pytest.mark.lineage

__all__ = ["open_store"]
T = b"t"


def begin(store: Scripts, records: int = 2) -> dict[bytes, tuple[int, bytes]]:
    store.add(*(Rec(T, b"%d" % n, NOW_MS + n, b'{"n":%d}' % n) for n in range(records)))
    return store.open_set(T)


def close(store: Scripts, claim: Claim, digest_id: str = "id-1") -> str:
    return store.close(claim, digest_id, base_ms=NOW_MS + 300_000, remember_ms=0)


# -- its stories


def test_the_first_add_answers_true_and_the_second_false(store: Scripts) -> None:
    assert store.add(Rec(T, b"1", NOW_MS)).due_at_once
    assert not store.add(Rec(T, b"2", NOW_MS)).due_at_once


def test_the_next_digest_is_empty_and_forgets_it_without_leaving_a_key(store: Scripts) -> None:
    begin(store)
    store.opened(claim := store.claim_one(T))
    close(store, claim)
    store.now_ms = NOW_MS + 300_000
    assert store.open(store.claim_one(T)) == "empty"
    assert set(store.dump()) == {store.key("ledger", "r"), store.key("count")}  # ledger and count are of all timelines


def test_it_can_not_be_opened_while_it_waits(store: Scripts) -> None:
    begin(store)
    store.opened(claim := store.claim_one(T))
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    assert store.open(claim) == "stale"


def test_it_loses_nothing_that_was_added_meanwhile(store: Scripts) -> None:
    records = begin(store)
    store.opened(store.claim_one(T))
    store.add(Rec(T, b"0", NOW_MS + 9, b"again"), Rec(T, b"new", NOW_MS + 9, b"new"))
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    store.opened(claim := store.claim_one(T))
    assert store.snapshot(T) == records
    close(store, claim)
    store.now_ms = NOW_MS + 300_000
    store.opened(store.claim_one(T), "id-2")
    assert store.snapshot(T) == {b"0": (NOW_MS + 9, b"again"), b"new": (NOW_MS + 9, b"new")}


async def test_a_record_whose_value_is_gone_does_not_stop_the_others(
    open_store: OpenStore, redis_url: str, store: Scripts
) -> None:
    store.is_sound = False
    timelines = open_store(redis_url)
    await timelines.start()
    await add(timelines, rec(b"a", 1), rec(b"b", 2), rec(b"c", 3))
    store.command("HDEL", store.key("values", "r", T), b"b")
    (claim,) = (await timelines.digests.claim(0, [("r", 0)], [1], LEASE_MS)).claims
    opened = await open_digest(timelines, claim, "id-1", [0])
    assert isinstance(opened, Head)
    page = await timelines.digests.page(claim, opened, 0, 3)
    assert page is not None
    assert [record and record.key for record in page] == [b"c", None, b"a"]


# -- its weaknesses


def test_two_workers_do_not_close_the_same_digest(store: Scripts) -> None:
    """No token: both closed, and what was added between the two was removed unseen."""
    begin(store)
    store.opened(first := store.claim_one(T, token="first"))
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    store.opened(second := store.claim_one(T, token="second"))
    assert close(store, first) == "stale"
    assert close(store, second) == "closed"
    before = store.dump()
    assert close(store, first) == close(store, second) == "already"
    assert store.dump() == before


def test_the_snapshot_does_not_change_under_a_retry(store: Scripts) -> None:
    """The set left over was merged with the newer records, under no id at all."""
    begin(store)
    first = store.opened(claim := store.claim_one(T))
    frozen = store.snapshot(T)
    store.add(Rec(T, b"0", NOW_MS + 9, b"again"), Rec(T, b"new", NOW_MS + 9))
    store.fail(claim, NOW_MS)
    again = store.opened(store.claim_one(T), "other")
    assert (again.id, store.snapshot(T)) == (first.id, frozen)


def test_what_is_over_capacity_goes_at_once_and_not_by_dice(store: Scripts) -> None:
    store.watch = None
    for n in range(60):
        store.add(Rec(T, b"%d" % n, NOW_MS + n), capacity=5)
        assert len(store.open_set(T)) == min(n + 1, 5)


def test_truncation_does_not_touch_the_digest_under_way(store: Scripts) -> None:
    begin(store, 5)
    store.opened(store.claim_one(T))
    frozen = store.snapshot(T)
    store.add(*(Rec(T, b"%d" % n, NOW_MS + 100 + n) for n in range(9)), capacity=2)
    assert store.snapshot(T) == frozen


@pytest.mark.parametrize("what", ["claim", "maintenance"])
def test_one_call_takes_a_bounded_number(store: Scripts, what: str) -> None:
    store.watch = None
    for start in (0, 500):
        store.add(*(Rec(b"%d" % n, b"k", NOW_MS) for n in range(start, start + 500)))
    if what == "claim":
        assert len(store.claim(budgets=[1000]).claims) == 500
        return
    for _ in range(2):
        store.claim()
    store.now_ms = NOW_MS + LEASE_MS
    assert store.maintenance() == 500


def test_a_set_larger_than_lua_can_unpack_goes_all_its_way(store: Scripts) -> None:
    """7,999 values is what `unpack` hands on at most. (A merge of so many would hold Redis up: the digest goes out as
    it was, and the newer records follow in the next one.)"""
    store.watch = None
    store.is_sound = False  # it is, and looking takes long
    for start in range(0, 9000, 500):
        store.add(*(Rec(T, b"%d" % n, NOW_MS + n) for n in range(start, start + 500)), capacity=20_000)
    opened = store.opened(claim := store.claim_one(T))
    assert opened.total == 9000
    for start in range(0, 9000, 500):
        store.add(*(Rec(T, b"%d" % n, NOW_MS + n + 1) for n in range(start, start + 500)), capacity=20_000)
    store.fail(claim, NOW_MS)
    again = store.opened(claim := store.claim_one(T), "id-2", merge_capacity=20_000)
    assert (again.id, again.total, again.superseded) == (opened.id, 9000, 0)
    assert store.close(claim, opened.id) == "closed"
    assert store.delete(T) == ("deleted", 9000)


def test_redis_has_the_only_clock(store: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked without an instant, as daemons ask: a client that lives a day ahead takes nothing before its time."""
    store.now_ms = None
    seconds, _ = store.command("TIME")
    store.add(Rec(T, b"k", NOW_MS), base_ms=1000 * (seconds + 3600))
    monkeypatch.setattr(time, "time", lambda: seconds + 86_400.0)
    assert store.claim().claims == []


def test_values_are_bytes_and_nobody_unpickles_them(store: Scripts) -> None:
    value = pickle.dumps({"any": b"thing"})
    store.add(Rec(T, b"k", NOW_MS, value))
    store.opened(store.claim_one(T))
    assert store.snapshot(T) == {b"k": (NOW_MS, value)}
    imported = set()
    for path in Path(nsqdigest.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported |= {alias.name for alias in node.names} | {getattr(node, "module", None)}
    assert not imported & {"pickle", "cPickle", "marshal", "shelve", "dill"}


def test_every_key_that_a_script_touches_is_declared(store: Scripts) -> None:
    assert store.watch is not None
    begin(store)
    store.opened(claim := store.claim_one(T))
    store.renew(claim)
    store.fail(claim, NOW_MS)
    store.opened(claim := store.claim_one(T))
    close(store, claim)
    begin(store)
    store.flush(T)
    store.opened(claim := store.claim_one(T), "id-2")
    store.bury(claim, "id-2")
    store.revive("id-2")
    store.delete(T)
    store.maintenance()
    assert len(store.watch.touched) == 9
    assert store.watch.complaints == []


def test_nothing_that_is_not_delivered_yet_can_expire(store: Scripts) -> None:
    for name in (b"waiting", b"leased", b"under-way", b"failed", b"dead", b"delivered"):
        store.add(Rec(name, b"k", NOW_MS))
    claims = {claim.timeline: claim for claim in store.claim().claims}
    for name, claim in claims.items():
        if name != b"leased":
            store.opened(claim, name.decode())
    store.fail(claims[b"waiting"], NOW_MS + 9)
    store.fail(claims[b"failed"], NOW_MS + 9)
    store.bury(claims[b"dead"], "dead")
    store.close(claims[b"delivered"], "delivered")
    expiring = {name for name in store.dump() if store.command("PTTL", name) != -1}
    assert expiring == {store.key("shown", "r", ended) for ended in (b"delivered", b"dead")}  # keys, no records


async def test_a_digest_is_closed_after_it_was_sent_and_not_before(
    open_store: OpenStore, redis_url: str, store: Scripts
) -> None:
    """It sent after it had closed: whoever died between the two had lost the digest."""
    seen: list[tuple[str, int]] = []

    class LookingSink:
        async def deliver(self, parcel: OutgoingDigest) -> Outcome:
            seen.append((json.loads(parcel.body)["data"]["id"], store.ledger().get("snapshots", 0)))
            return Outcome(Verdict.AGAIN if len(seen) == 1 else Verdict.DELIVERED)

        async def close(self) -> None:
            pass

    timelines = open_store(redis_url)
    await timelines.start()
    sink = replace(SINK, concurrency=1, retry_base_ms=10, retry_cap_ms=10, retry_after_max_ms=10)
    post = Outlet(sink, LookingSink(), Controller(8, Curve(1.0, 10.0, jitter="none"), lambda low, high: low))
    policy = replace(POLICY, dedupe_window_ms=0)
    scheduler = Scheduler(
        SchedulerSettings(interval_ms=20, lease_ms=LEASE_MS, batch=9),
        {"r": DeliveryRoute(ROUTE, Plan(policy), post)},
        timelines,
        Metrics(),
        lambda low, high: low,
    )
    await add(timelines, rec(b"a"), rec(b"b"))
    scheduler.start()
    await until(lambda: store.ledger().get("delivered"))
    await scheduler.drain(time.monotonic() + 5)
    (first, held), (again, still_held) = seen
    assert (first, held, still_held) == (again, 2, 2)
