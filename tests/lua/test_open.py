"""open.lua: a digest begins, or is taken up again. What it holds is frozen: one id, one set of records."""

from __future__ import annotations

import pytest

from support.store import LEASE_MS, NOW_MS, Claim, Opened, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"


def begin(store: Scripts, records: int = 1, timeline: bytes = T) -> None:
    store.add(*(Rec(timeline, b"%d" % n, NOW_MS - 10 + n, b"v%d" % n) for n in range(records)))


def round_of(store: Scripts, digest_id: str) -> Opened:
    """One digest from its first record to its close."""
    store.add(Rec(T, b"k", NOW_MS))
    opened = store.opened(claim := store.claim_one(T), digest_id)
    store.close(claim, digest_id, base_ms=NOW_MS)
    return opened


# -- a new digest


def test_the_records_become_the_snapshot(store: Scripts) -> None:
    begin(store, 3)
    records = store.open_set(T)
    opened = store.opened(store.claim_one(T))
    assert (opened.word, opened.total) == ("opened", 3)
    assert store.snapshot(T) == records
    assert store.open_set(T) == {}


@pytest.mark.parametrize("kind", ["digest", "digest-values"])
def test_what_stands_in_the_way_of_the_records_is_nobodys_and_goes(store: Scripts, kind: str) -> None:
    begin(store, 3)
    records = store.open_set(T)
    claim = store.claim_one(T)
    store.command("COPY", store.key("set" if kind == "digest" else "values", "r", T), store.key(kind, "r", T))
    store.command(
        *(
            ("ZADD", store.key(kind, "r", T), 1, "old")
            if kind == "digest"
            else ("HSET", store.key(kind, "r", T), "old", "v")
        )
    )
    assert store.opened(claim).word == "opened"
    assert store.snapshot(T) == records
    assert store.command("EXISTS", store.key("set", "r", T), store.key("values", "r", T)) == 0
    values = store.command("HKEYS", store.key("digest-values", "r", T))
    assert sorted(values) == sorted(records)


def test_it_answers_all_that_is_stored_beside_the_snapshot(store: Scripts) -> None:
    begin(store, 3)
    opened = store.opened(store.claim_one(T), "some-id", [NOW_MS + 50])
    assert opened == Opened(
        word="opened", now_ms=NOW_MS, id="some-id", opened_ms=NOW_MS, iteration=1, total=3,
        superseded=0, over_capacity=0, next_earliest_ms=NOW_MS + 50,
        since_ms=NOW_MS, attempts=0, tries=0,
    )  # fmt: skip


def test_the_ledger_moves_them_from_open_to_snapshots(store: Scripts) -> None:
    begin(store, 3)
    store.opened(store.claim_one(T))
    assert store.ledger() == {"added": 3, "snapshots": 3}


def test_the_lease_stays_as_it_was(store: Scripts) -> None:
    begin(store)
    claim = store.claim_one(T)
    before = store.leased()
    store.now_ms = NOW_MS + 7
    store.opened(claim)
    assert store.leased() == before


def test_the_schedule_counts_no_records_any_more(store: Scripts) -> None:
    begin(store, 3)
    store.opened(store.claim_one(T))
    assert store.schedule(T) == (NOW_MS, NOW_MS, 0)


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    begin(store)
    store.now_ms = None
    seconds, microseconds = store.command("TIME")
    opened = store.opened(store.claim_one(T))
    assert 0 <= opened.now_ms - (seconds * 1000 + microseconds // 1000) < 10_000
    assert opened.opened_ms == opened.now_ms


def test_what_was_lost_since_the_digest_before_is_told_once(store: Scripts) -> None:
    store.add(Rec(T, b"k", 1), Rec(T, b"k", 2), Rec(T, b"k", 3), Rec(T, b"l", 4), capacity=1)
    opened = store.opened(claim := store.claim_one(T))
    assert (opened.superseded, opened.over_capacity) == (2, 1)
    assert store.losses() == {}
    store.close(claim, base_ms=NOW_MS)
    after = round_of(store, "id-2")
    assert (after.superseded, after.over_capacity) == (0, 0)


def test_losses_of_another_timeline_stay(store: Scripts) -> None:
    for name in (b"t", b"st", b"ct"):
        store.add(Rec(name, b"k", 1), Rec(name, b"k", 2))
    store.opened(store.claim_one(T))
    assert store.losses() == {b"sst": 1, b"sct": 1}


def test_the_iteration_counts_the_digests_of_a_timeline_from_1(store: Scripts) -> None:
    assert [round_of(store, f"id-{n}").iteration for n in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("table", "chosen"),
    [([11], [11, 11, 11, 11]), ([11, 12], [11, 12, 12, 12]), ([11, 12, 13], [11, 12, 13, 13])],
)
def test_the_earliest_next_digest_is_chosen_by_iteration(store: Scripts, table: list[int], chosen: list[int]) -> None:
    for iteration, after_ms in enumerate(chosen):
        store.add(Rec(T, b"k", NOW_MS))
        opened = store.opened(claim := store.claim_one(T), f"{iteration}", [NOW_MS + entry for entry in table])
        assert opened.next_earliest_ms == NOW_MS + after_ms
        store.close(claim, f"{iteration}", base_ms=NOW_MS)


# -- an unfinished one


def test_taken_up_again_it_is_the_same_digest(store: Scripts) -> None:
    begin(store, 2)
    first = store.opened(claim := store.claim_one(T), "first")
    frozen = store.snapshot(T)
    store.fail(claim, NOW_MS)
    store.add(Rec(T, b"0", NOW_MS, b"newer"), Rec(T, b"new", NOW_MS), Rec(T, b"new", NOW_MS + 1))
    store.now_ms = NOW_MS + 5
    again = store.opened(store.claim_one(T, token="second"), "not taken", [NOW_MS + 99])
    assert again == first._replace(word="again", now_ms=NOW_MS + 5, attempts=1, tries=1)
    assert store.snapshot(T) == frozen


def test_what_came_since_waits_for_the_next_digest(store: Scripts) -> None:
    begin(store)
    store.opened(claim := store.claim_one(T))
    store.add(Rec(T, b"new", NOW_MS), Rec(T, b"new", NOW_MS + 1))
    store.open(claim)
    assert set(store.open_set(T)) == {b"new"}
    assert store.losses() == {b"s" + T: 1}
    assert store.schedule(T) == (NOW_MS, NOW_MS, 1)


def test_opened_again_after_a_lost_reply_it_is_the_same_attempt(store: Scripts) -> None:
    begin(store)
    claim = store.claim_one(T)
    first = store.opened(claim)
    assert [store.opened(claim, "not taken") for _ in range(3)] == 3 * [first._replace(word="again")]
    assert store.ledger() == {"added": 1, "snapshots": 1}


def test_after_a_lost_lease_another_takes_the_same_digest_up(store: Scripts) -> None:
    begin(store)
    first = store.opened(store.claim_one(T))
    store.now_ms = NOW_MS + LEASE_MS
    assert store.maintenance() == 1
    again = store.opened(store.claim_one(T, token="other"), "not taken")
    assert (again.word, again.id, again.attempts) == ("again", first.id, 0)


# -- nothing to open


def test_with_nothing_to_send_the_timeline_is_forgotten(store: Scripts) -> None:
    round_of(store, "id-1")
    memory = store.key("shown", "r", T)
    assert store.open(store.claim_one(T)) == "empty"
    assert set(store.dump()) == {memory, store.key("ledger", "r"), store.key("count")}
    assert store.timeline_count() == 0


def test_a_timeline_forgotten_begins_again_with_iteration_1(store: Scripts) -> None:
    assert round_of(store, "id-1").iteration == 1
    assert store.open(store.claim_one(T)) == "empty"
    assert round_of(store, "id-2").iteration == 1


def test_forgetting_one_leaves_the_others(store: Scripts) -> None:
    begin(store, timeline=b"other")
    round_of(store, "id-1")
    store.open(store.claim_one(T))
    assert (store.leased(), store.timeline_count()) == ({b"other": NOW_MS + LEASE_MS}, 1)


@pytest.mark.parametrize("token", ["another", ""])
def test_with_a_stale_token_nothing_happens(store: Scripts, token: str) -> None:
    begin(store)
    store.claim_one(T)
    before = store.dump()
    assert store.open(Claim("r", T, NOW_MS, token)) == "stale"
    assert store.dump() == before


@pytest.mark.parametrize("token", ["token", ""])
def test_a_timeline_that_is_not_leased_is_not_opened(store: Scripts, token: str) -> None:
    begin(store)
    before = store.dump()
    assert store.open(Claim("r", T, NOW_MS, token)) == "stale"
    assert store.open(Claim("r", b"unknown", NOW_MS, token)) == "stale"
    assert store.dump() == before


@pytest.mark.parametrize("lost", ["values", "set values"])
def test_where_all_values_are_gone_others_are_not_held_up(store: Scripts, lost: str) -> None:
    """Only a loss of data can bring that about. A timeline whose records are gone too is forgotten."""
    store.is_sound = False
    begin(store, 2)
    store.command("DEL", *store.keys(lost, "r", T))
    opened = store.open(claim := store.claim_one(T))
    if lost == "set values":
        assert opened == "empty"
    else:
        assert isinstance(opened, Opened)
        assert opened.total == 2
        assert store.close(claim) == "closed"


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    round_of(store, "id-1")
    store.open(store.claim_one(T))
    assert store.watch is not None
    expected = {
        *store.keys("waiting leased tokens schedule heads losses ledger", "r"),
        *map(store.key, ["count", "agenda"]),
        *store.keys("set values digest digest-values", "r", T),
    }
    assert store.watch.touched["open"] == expected
