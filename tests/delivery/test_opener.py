"""opener.py in simulated time, beside a store that is told what to do: what is asked of Redis in one call, again, or in
parts, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from nsqdigest.delivery import opener, outlet, verdicts
from nsqdigest.store.answers import Ended, NotOpened
from nsqdigest.store.dead import Details
from nsqdigest.store.digests import READ_WHOLE_RECORDS
from nsqdigest.store.packing import BYTES_PER_CALL
from nsqdigest.store.record import StoredRecord
from support.delivering import (
    DAMAGE,
    HEAD,
    NOW_MS,
    RECORD,
    Delivering,
    ToldDigests,
    ToldSink,
    failure,
    names,
    now_s,
    simulate,
)
from support.simulated import simulated

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


def many(count: int, value: bytes = b"{}") -> list[StoredRecord]:
    return [StoredRecord(b"%d" % number, count - number, value) for number in range(count)]


# -- many in a call


@simulated
async def test_up_to_a_hundred_are_opened_and_read_in_one_call_each() -> None:
    stage = Delivering(ToldDigests(), limit=100)
    await stage.carry(*names(100))
    assert [call.name for call in stage.digests.calls] == ["open", "read", "finish"]
    assert sorted(stage.sink.timelines) == sorted(names(100))


@simulated
async def test_more_than_a_hundred_are_opened_in_calls_of_as_many_side_by_side() -> None:
    stage = Delivering(ToldDigests(takes_s={"open": 1}), limit=320)
    await stage.carry(*names(320))
    opened = [(at_s, len(openings)) for at_s, (_, openings, *_) in stage.digests.called("open")]
    assert opened == [(0, 100), (0, 100), (0, 100), (0, 20)]


@simulated
async def test_each_digest_has_an_id_of_its_own_and_its_routes_instants() -> None:
    stage = Delivering(ToldDigests(), routes={"r": "out", "s": "out"})
    made = stage.deliveries([*stage.claims("a", "b"), *stage.claims("c", route="s")])
    await stage.opener.open(0, made)
    await stage.quiet()
    ((_, (partition, openings, next_earliest_ms)),) = stage.digests.called("open")
    assert len({opening.new_id for opening in openings}) == 3
    assert partition == 0
    assert next_earliest_ms == {"r": [NOW_MS + 60_000], "s": [NOW_MS + 60_000]}
    assert {UUID(opening.new_id).int >> 80 for opening in openings} == {NOW_MS}
    assert [opening.claim.timeline for opening in openings] == ["a", "b", "c"]


@simulated
async def test_what_is_read_at_once_is_bounded_by_what_records_have_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opener, "READ_BYTES", 10_000)
    value = b'"' + b"x" * 998 + b'"'
    stage = Delivering(ToldDigests(records={name: many(2, value) for name in names(12)}), limit=20)
    await stage.carry(*names(5))
    # Nothing is known of their size: 2 kB a record are assumed.
    assert [call[1] for _, call in stage.digests.called("read")] == [names(2), names(5)[2:]]
    await stage.carry(*names(12))
    assert [len(call[1]) for _, call in stage.digests.called("read")][2:] == [5, 5, 2]


@simulated
async def test_no_more_than_the_first_reads_are_larger_than_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opener, "READ_BYTES", 300_000)
    value = b'"' + b"x" * 9_998 + b'"'
    digests = ToldDigests(records={name: many(1, value) for name in names(800)}, takes_s={"read": 1})
    stage = Delivering(digests, limit=800)
    await stage.carry(*names(800))
    reads = [(at_s, len(call[1])) for at_s, call in digests.called("read")]
    assert reads[:2] == [(0, 100), (0, 100)]
    assert max(at_once for _, at_once in reads[2:]) == 30
    assert len(stage.sink.sent) == 800


@simulated
async def test_as_many_as_fit_are_read_at_once_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opener, "READ_BYTES", 2 * 2 * 2048)
    value = b'"' + b"x" * 2046 + b'"'
    stage = Delivering(ToldDigests(records={name: many(2, value) for name in names(6)}), limit=20)
    await stage.carry(*names(6))
    assert [call[1] for _, call in stage.digests.called("read")] == [names(6)[:2], names(6)[2:4], names(6)[4:]]


@pytest.mark.parametrize(("count", "call"), [(READ_WHOLE_RECORDS, "read"), (READ_WHOLE_RECORDS + 1, "page")])
@simulated
async def test_up_to_so_many_records_are_read_whole_and_more_page_by_page(count: int, call: str) -> None:
    stage = Delivering(ToldDigests(records={"a": many(count)}))
    await stage.carry("a")
    assert {each.name for each in stage.digests.calls} & {"read", "page"} == {call}
    assert stage.sink.sent[0].body.count(b'"key"') == count


@simulated
async def test_a_record_larger_than_usual_is_remembered_at_once_and_forgotten_slowly() -> None:
    stage = Delivering(ToldDigests())
    note = stage.opener._note_size
    note("r", 100)
    assert stage.opener._average_bytes == {"r": 100}
    note("r", 1000)
    assert stage.opener._average_bytes == {"r": 1000}
    note("r", 100)
    assert stage.opener._average_bytes == {"r": 910}
    note("s", 5)
    assert stage.opener._average_bytes == {"r": 910, "s": 5}


@simulated
async def test_bodies_beyond_the_bytes_that_may_wait_are_read_when_their_turn_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlet, "READY_BYTES", 600)
    monkeypatch.setattr(opener, "READ_BYTES", 1)  # each is read by itself
    stage = Delivering(ToldDigests(), limit=1)
    stage.sink.takes_s = 1
    await stage.open(*names(6))
    assert [call[1] for _, call in stage.digests.called("read")] == [["t0"], ["t1"], ["t2"]]
    assert stage.outlet.ready_bytes < 2 * 600
    await stage.quiet()
    assert stage.sink.timelines == names(6)
    assert [(at_s, call[0]) for at_s, call in stage.digests.called("page")] == [(3, "t3"), (4, "t4"), (5, "t5")]
    assert {len(digest.body) for digest in stage.sink.sent} == {len(stage.sink.sent[0].body)}
    assert stage.outlet.ready_bytes == 0


@simulated
async def test_a_group_reaches_the_body_however_it_is_read() -> None:
    for group, expected in (("g", b'"groups":['), ("", b'"records":[')):
        for count in (2, READ_WHOLE_RECORDS + 1):
            stage = Delivering(ToldDigests(records={"a": many(count, b'{"g":1}')}), group=group)
            await stage.carry("a")
            (digest,) = stage.sink.sent
            assert expected in digest.body
            assert (b'"groups"' in digest.body) is bool(group)


@pytest.mark.parametrize("count", [1, 2, READ_WHOLE_RECORDS, READ_WHOLE_RECORDS + 1, 600])
@simulated
async def test_the_body_names_its_oldest_and_its_newest_record(count: int) -> None:
    stage = Delivering(ToldDigests(records={"a": many(count)}))
    await stage.carry("a")
    (digest,) = stage.sink.sent
    assert b'"first":1,"last":%d,"total":%d,' % (count, count) in digest.body
    assert digest.records == count


# -- pages


@simulated
async def test_a_digest_of_many_records_is_read_page_by_page_when_its_turn_comes() -> None:
    stage = Delivering(ToldDigests(records={"big": many(600)}), limit=1)
    stage.sink.takes_s = 3
    await stage.carry("a", "big")
    pages = stage.digests.called("page")
    assert {at_s for at_s, _ in pages} == {3}
    assert [call[1] for _, call in stage.digests.called("read")] == [["a"]]
    assert sum(count for _, (_, _, count) in pages) == 600
    assert stage.sink.sent[1].body.count(b'"key"') == 600


@simulated
async def test_a_large_digest_is_read_no_further_than_its_body_has_room() -> None:
    stage = Delivering(ToldDigests(records={"big": many(5000, b'"' + b"x" * 100 + b'"')}), max_body_bytes=16_384)
    await stage.carry("big")
    read = sum(count for _, (_, _, count) in stage.digests.called("page"))
    assert read < 1000
    assert len(stage.sink.sent[0].body) <= 16_384
    assert stage.sink.sent[0].records == 5000
    assert len(stage.digests.called("oldest")) == 1


@simulated
async def test_of_a_large_digest_with_groups_every_record_is_counted() -> None:
    records = many(5000, b'{"g":1,"x":"%s"}' % (b"x" * 100))
    stage = Delivering(ToldDigests(records={"big": records}), group="g", max_body_bytes=16_384)
    await stage.carry("big")
    (digest,) = stage.sink.sent
    assert b'"groups":[{"group":1,"count":5000,"records":[' in digest.body
    assert len(digest.body) <= 16_384


@simulated
async def test_a_lease_is_renewed_between_pages_when_it_has_to_be_and_not_before() -> None:
    """The first page takes 20 of 60 s, which leaves less than a send may take; the others take nothing."""
    stage = Delivering(ToldDigests(records={"big": many(100)}, takes_s={"page": 20}), timeout_ms=50_000)
    asyncio.get_running_loop().call_later(10, stage.digests.takes_s.update, {"page": 0})
    await stage.carry("big")
    assert len(stage.digests.called("page")) >= 2
    assert [at_s for at_s, _ in stage.digests.called("renew")] == [20]
    assert stage.sink.timelines == ["big"]


@simulated
async def test_a_lease_that_is_lost_at_any_page_ends_the_work_unsent(logged: Callable[[str], int]) -> None:
    """Each look at the lease finds it too short for a send, and renews it."""

    async def carried(renews: list[bool]) -> Delivering:
        stage = Delivering(ToldDigests(records={"big": many(300)}, renews=renews), timeout_ms=60_001)
        await stage.carry("big")
        return stage

    looks = len((await carried([])).digests.called("renew"))
    assert looks >= 4  # before, behind each page, and at the end
    for lost in range(looks):
        stage = await carried([*[True] * lost, False])
        assert stage.sink.sent == []
        assert len(stage.digests.called("renew")) == lost + 1
        assert stage.metrics.value("digests_stale_total", route="r") == 1
        assert stage.digests.called("finish") == []
    assert logged("scheduler.digest.stale") == looks


@simulated
async def test_pages_of_large_records_are_small() -> None:
    value = b'"' + b"x" * 20_000 + b'"'
    stage = Delivering(ToldDigests(records={"big": many(300, value)}), max_body_bytes=100 << 20)
    await stage.carry("big")
    counts = [count for _, (_, _, count) in stage.digests.called("page")]
    assert sum(counts) == 300
    assert max(counts[1:]) * len(value) <= BYTES_PER_CALL


@simulated
async def test_a_page_of_what_is_not_ours_any_more_ends_the_work_unsent() -> None:
    stage = Delivering(ToldDigests(heads={"big": HEAD._replace(total=300)}, records={"big": None}))
    await stage.carry("big")
    assert stage.sink.sent == []
    assert stage.metrics.value("digests_stale_total", route="r") == 1


@pytest.mark.parametrize("call", ["page", "oldest", "renew"])
@simulated
async def test_a_page_that_redis_does_not_give_within_the_lease_is_left(
    call: str, logged: Callable[[str], int]
) -> None:
    digests = ToldDigests(records={"big": many(300)}, fails={call: [failure() for _ in range(1000)]})
    stage = Delivering(digests, timeout_ms=60_001 if call == "renew" else 5000)
    await stage.carry("big", "small", lease_ms=7000)
    assert 2 <= len(digests.called(call)) < 500
    assert stage.metrics.value("store_errors_total", reason="redis-timeout") == (2 if call == "renew" else 1)
    assert logged("scheduler.digest.left") >= 1
    assert stage.sink.timelines == ([] if call == "renew" else ["small"])


# -- values that Redis lost


@pytest.mark.parametrize("count", [2, READ_WHOLE_RECORDS + 1])
@simulated
async def test_a_value_that_redis_lost_is_logged_and_the_others_go_out(
    count: int, logged: Callable[[str], int]
) -> None:
    stage = Delivering(ToldDigests(records={"a": [None, *many(count)[1:]]}))
    await stage.carry("a")
    (digest,) = stage.sink.sent
    assert digest.body.count(b'"key"') == count - 1
    assert b'"last":%d,' % (count - 1) in digest.body
    assert logged("scheduler.digest.values_missing") == 1


@pytest.mark.parametrize("count", [1, READ_WHOLE_RECORDS + 1])
@simulated
async def test_of_a_digest_with_all_its_values_nothing_is_logged_as_missing(
    count: int, logged: Callable[[str], int]
) -> None:
    stage = Delivering(ToldDigests(records={"a": many(count)}))
    await stage.carry("a")
    assert logged("scheduler.digest.values_missing") == 0


@pytest.mark.parametrize("count", [2, READ_WHOLE_RECORDS + 1])
@simulated
async def test_a_digest_without_any_value_is_buried_and_is_no_fault_of_the_receivers(
    count: int, logged: Callable[[str], int]
) -> None:
    stage = Delivering(ToldDigests(records={"a": [None] * count}))
    await stage.carry("a", "b")
    assert stage.sink.timelines == ["b"]
    assert stage.metrics.value("digests_buried_total", sink="out", reason="values-lost") == 1
    assert stage.outlet.history.buried_since == 0
    assert logged("scheduler.digest.values_missing") == 1


@simulated
async def test_a_digest_without_any_value_is_buried_once_whatever_its_sink_does_meanwhile() -> None:
    stage = Delivering(ToldDigests(records={"a": [None, None]}, takes_s={"read": 2}))
    asyncio.get_running_loop().call_later(1, stage.step_back)
    await stage.carry("a", "b")
    assert stage.digests.all_finished() == [("bury", "a"), ("wait", "b")]
    assert sorted(stage.ended) == ["a", "b"]


# -- what is not opened


@simulated
async def test_what_was_claimed_before_its_sink_stepped_back_goes_back_unopened_in_one_call() -> None:
    stage = Delivering(ToldDigests())
    await stage.carry("a", "b", epoch=stage.outlet.controller.decision.epoch + 1)
    assert [call.name for call in stage.digests.calls] == ["finish"]
    assert stage.digests.finished() == [[("wait", "a"), ("wait", "b")]]
    assert {(ending.after.base_ms, ending.posts) for ending in stage.digests.endings()} == {(NOW_MS - 5000, 0)}


@simulated
async def test_of_a_mixture_only_what_is_still_wanted_is_opened() -> None:
    stage = Delivering(ToldDigests())
    old = stage.deliveries(stage.claims("old"), epoch=7)
    await stage.opener.open(0, [*old, *stage.deliveries(stage.claims("new"))])
    await stage.quiet()
    assert stage.sink.timelines == ["new"]
    assert stage.digests.all_finished() == [("close", "new"), ("wait", "old")]


@simulated
async def test_stale_empty_and_damaged_ones_stop_no_neighbour(logged: Callable[[str], int]) -> None:
    heads = {"s": NotOpened.STALE, "e": NotOpened.EMPTY, "d": NotOpened.DAMAGED}
    stage = Delivering(ToldDigests(heads=dict(heads)))
    await stage.carry("a", "s", "e", "d", "b")
    assert stage.sink.timelines == ["a", "b"]
    assert sorted(stage.ended) == ["a", "b", "d", "e", "s"]
    assert stage.metrics.value("digests_stale_total", route="r") == 1
    assert stage.metrics.value("store_errors_total", reason="redis-script") == 1
    assert (logged("scheduler.digest.stale"), logged("scheduler.digest.left")) == (1, 1)


@simulated
async def test_what_one_call_has_too_much_work_with_is_opened_by_the_next_under_the_same_ids() -> None:
    stage = Delivering(ToldDigests(per_call={"open": 2}))
    await stage.carry("a", "b", "c")
    assert sorted(stage.sink.timelines) == ["a", "b", "c"]
    first, second = ([each.new_id for each in openings] for _, (_, openings, _) in stage.digests.called("open"))
    assert second == first[2:]


@simulated
async def test_what_expired_is_buried_without_a_post_and_with_our_own_word() -> None:
    stage = Delivering(ToldDigests(heads={"a": HEAD._replace(attempts=2, tries=2)}), max_attempts=2)
    await stage.carry("a")
    assert stage.sink.sent == []
    (ending,) = stage.digests.endings()
    details = Details.decode(ending.details)
    assert (details.reason, details.cause, details.head.attempts) == ("too-many-attempts", "", 2)
    assert [call.name for call in stage.digests.calls] == ["open", "finish"]
    assert stage.outlet.history.why == "too-many-attempts"


@simulated
async def test_a_digest_is_too_old_by_when_its_first_attempt_was_opened() -> None:
    heads = {"old": HEAD._replace(since_ms=NOW_MS - 1000), "young": HEAD._replace(since_ms=NOW_MS - 999)}
    stage = Delivering(ToldDigests(heads=dict(heads)), max_age_ms=1000)
    await stage.carry("old", "young")
    assert stage.sink.timelines == ["young"]


@simulated
async def test_a_digest_that_is_gone_when_it_is_read_is_left_unsent() -> None:
    stage = Delivering(ToldDigests(records={"a": None}))
    await stage.carry("a", "b")
    assert stage.sink.timelines == ["b"]
    assert stage.metrics.value("digests_stale_total", route="r") == 1
    assert [call.name for call in stage.digests.calls] == ["open", "read", "finish"]  # and is not looked for again


# -- Redis fails


@pytest.mark.parametrize("call", ["open", "read"])
@simulated
async def test_redis_is_asked_again_after_pauses_that_grow_until_two_seconds(call: str) -> None:
    stage = Delivering(ToldDigests(fails={call: [failure() for _ in range(6)]}), highest=True)
    await stage.carry("a", "b")
    steps_s = [0.3, 0.9, 2.0, 2.0, 2.0, 2.0]
    assert [at_s for at_s, _ in stage.digests.called(call)] == pytest.approx([sum(steps_s[:n]) for n in range(7)])
    assert stage.windows == [(100, 1000 * step_s) for step_s in steps_s]
    assert sorted(stage.sink.timelines) == ["a", "b"]
    assert stage.metrics.total("store_errors_total") == 0


@simulated
async def test_asked_again_it_asks_for_the_same_ids() -> None:
    stage = Delivering(ToldDigests(fails={"open": [failure()]}))
    await stage.carry("a", "b")
    first, second = (openings for _, (_, openings, *_) in stage.digests.called("open"))
    assert first == second


@pytest.mark.parametrize("call", ["open", "read"])
@simulated
async def test_what_redis_does_not_do_within_the_lease_is_left(call: str, logged: Callable[[str], int]) -> None:
    stage = Delivering(ToldDigests(fails={call: [failure() for _ in range(1000)]}), lease_ms=1000)
    await stage.carry("a", "b")
    assert now_s() < 1.2
    assert 5 < len(stage.digests.called(call)) <= 10
    assert stage.metrics.value("store_errors_total", reason="redis-timeout") == 2
    assert logged("scheduler.digest.left") == 1  # of two, the other counted
    assert stage.sink.sent == []
    assert stage.digests.called("finish") == []


@simulated
async def test_a_call_is_asked_again_no_longer_than_the_shortest_of_its_leases() -> None:
    stage = Delivering(ToldDigests(fails={"open": [failure() for _ in range(1000)]}))
    made = [*stage.deliveries(stage.claims("long")), *stage.deliveries(stage.claims("short"), 500)]
    await stage.opener.open(0, made)
    assert now_s() < 0.6
    assert stage.held == 0


@pytest.mark.parametrize(("timeout_ms", "renewals"), [(14_999, 0), (15_001, 1)])
@simulated
async def test_the_lease_counts_from_before_the_claim_however_long_the_open_takes(
    timeout_ms: int, renewals: int
) -> None:
    """Asked for 25 s after the claim, the open takes 20 of 60 s."""
    stage = Delivering(ToldDigests(takes_s={"open": 20}), timeout_ms=timeout_ms)
    made = stage.deliveries(stage.claims("a"))
    await asyncio.sleep(25)
    await stage.opener.open(0, made)
    await stage.quiet()
    assert len(stage.digests.called("renew")) == renewals


# -- one bad timeline


@pytest.mark.parametrize("call", ["open", "read"])
@simulated
async def test_a_call_that_breaks_off_is_divided_until_the_bad_one_stands_alone(
    call: str, logged: Callable[[str], int]
) -> None:
    stage = Delivering(ToldDigests(damaged={call: {"t11"}}), limit=16)
    await stage.carry(*names(16))
    assert sorted(stage.sink.timelines) == sorted(set(names(16)) - {"t11"})
    sizes = [len(arguments[1]) for _, arguments in stage.digests.called(call)]
    assert sizes == [16, 8, 8, 4, 2, 2, 1, 1, 4]
    assert logged("scheduler.digest.left") == 1
    assert stage.metrics.value("store_errors_total", reason="redis-script") == 1
    assert stage.windows == []  # it is not asked for again


@pytest.mark.parametrize("call", ["open", "read"])
@simulated
async def test_what_is_damaged_is_not_asked_for_again(call: str) -> None:
    stage = Delivering(ToldDigests(fails={call: [DAMAGE] * 3}))
    await stage.carry("a", "b")
    assert len(stage.digests.called(call)) == 3
    assert stage.sink.sent == []
    assert now_s() < 1


@simulated
async def test_a_record_that_cannot_be_rendered_stops_no_neighbour(logged: Callable[[str], int]) -> None:
    stage = Delivering(ToldDigests(records={"bad": [StoredRecord(b"\xff", 1, b"{}")]}))
    await stage.carry("a", "bad", "b")
    assert stage.sink.timelines == ["a", "b"]
    assert logged("scheduler.digest.bug") == 1


@simulated
async def test_a_record_that_cannot_be_rendered_is_left_once_whatever_its_sink_does_meanwhile() -> None:
    bad = [StoredRecord(b"\xff", 1, b"{}")]
    stage = Delivering(ToldDigests(records={"bad": bad}, takes_s={"read": 2}))
    asyncio.get_running_loop().call_later(1, stage.step_back)
    await stage.carry("bad", "b")
    assert stage.digests.all_finished() == [("wait", "b")]
    assert sorted(stage.ended) == ["b", "bad"]


@simulated
async def test_a_large_digest_that_cannot_be_rendered_stops_no_neighbour(logged: Callable[[str], int]) -> None:
    stage = Delivering(ToldDigests(records={"bad": [StoredRecord(b"\xff", 1, b"{}")] * 100}))
    await stage.carry("a", "bad", "b")
    assert sorted(stage.sink.timelines) == ["a", "b"]
    assert logged("scheduler.digest.bug") == 1


@simulated
async def test_a_bug_is_fenced_logged_and_leaves_nothing_held(
    logged: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    stage = Delivering(ToldDigests())
    monkeypatch.setattr(stage.digests, "open", broken)
    await stage.carry("a", "b")
    assert logged("scheduler.digest.bug") == 2
    assert (stage.ended, stage.outlet.held) == (["a", "b"], 0)


@simulated
async def test_a_bug_of_one_sinks_queue_leaves_its_digests_and_another_sink_gets_its_own(
    logged: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    sinks = {"bad": ToldSink(), "good": ToldSink()}
    digests = ToldDigests(records={"read later": many(65)})
    stage = Delivering(digests, sinks=sinks, routes={"r": "bad", "s": "good"})
    monkeypatch.setattr(stage.outlets["bad"], "put", broken)
    made = stage.deliveries([*stage.claims("a", "read later"), *stage.claims("b", "c", route="s")])
    await stage.opener.open(0, made)
    await stage.quiet()
    assert (sinks["bad"].timelines, sorted(sinks["good"].timelines)) == ([], ["b", "c"])
    assert logged("scheduler.digest.bug") == 2
    assert [outlet.held for outlet in stage.outlets.values()] == [0, 0]


@simulated
async def test_a_bug_behind_one_that_is_concluded_is_not_logged_of_that_one(
    logged: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(verdicts, "expired", broken)
    stage = Delivering(ToldDigests(heads={"empty": NotOpened.EMPTY}))
    await stage.carry("empty", "a")
    assert logged("scheduler.digest.bug") == 1
    assert stage.ended == ["empty", "a"]


@simulated
async def test_a_bug_behind_one_that_waits_for_its_sink_already_does_not_end_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    sinks = {"out": ToldSink(), "other": ToldSink()}
    stage = Delivering(ToldDigests(), sinks=sinks, routes={"r": "out", "s": "other"})
    monkeypatch.setattr(stage.outlets["other"], "put", broken)
    await stage.opener.open(0, stage.deliveries([*stage.claims("a"), *stage.claims("b", route="s")]))
    await asyncio.sleep(1)  # simulated: all that can happen has happened
    assert stage.ended.count("a") == 1
    assert (stage.sink.timelines, stage.digests.all_finished()) == (["a"], [("close", "a")])


@simulated
async def test_a_failure_behind_some_that_are_concluded_leaves_each_once(logged: Callable[[str], int]) -> None:
    digests = ToldDigests(
        heads={"empty": NotOpened.EMPTY}, fails={"read": [failure("redis-connection") for _ in range(100)]},
        ended={"empty": Ended.DONE},
    )  # fmt: skip
    stage = Delivering(digests, lease_ms=500)
    await stage.carry("empty", "a")
    assert stage.ended == ["empty", "a"]
    assert stage.metrics.value("store_errors_total", reason="redis-connection") == 1


@simulated
async def test_a_record_is_read_as_it_was_stored() -> None:
    stage = Delivering(ToldDigests())
    await stage.carry("a")
    assert stage.sink.sent[0].body.count(b'"value":%s' % RECORD.value) == 2
    assert stage.sink.sent[0].id == "id of a"
