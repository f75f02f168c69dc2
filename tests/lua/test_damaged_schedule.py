"""A schedule that something else wrote: its timeline is due at once, goes its way, and stops no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.store import NOW_MS, Rec, Scripts

pytestmark = pytest.mark.script

BAD, GOOD = b"bad", b"good"
GARBAGE = [b"", b"planted", b"x" * 19, b"x" * 21, b"\xff" * 20]


def planted(store: Scripts, garbage: bytes) -> None:
    store.is_sound = False
    store.command("HSET", store.key("schedule", "r"), BAD, garbage)


def begun(store: Scripts) -> None:
    store.add(Rec(BAD, b"k", NOW_MS), Rec(GOOD, b"k", NOW_MS))


def delivered(store: Scripts, token: str = "token") -> set[bytes]:
    """What is due now goes all its way."""
    claims = store.claim(budgets=[9], token=token).claims
    ids = {claim.timeline: f"id-{number}" for number, claim in enumerate(claims)}
    store.open_many([(claim, ids[claim.timeline]) for claim in claims])
    words, _ = store.finish(*(store.closing(claim, ids[claim.timeline]) for claim in claims))
    return {claim.timeline for claim, word in zip(claims, words, strict=True) if word == "closed"}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_timeline_with_it_is_claimed_with_its_neighbours_and_delivered(store: Scripts, garbage: bytes) -> None:
    begun(store)
    planted(store, garbage)
    assert delivered(store) == {BAD, GOOD}
    assert store.schedule(BAD) == (NOW_MS + 1000, NOW_MS + 1000, 0)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_one_that_is_planted_between_two_calls_is_put_right(store: Scripts, garbage: bytes) -> None:
    begun(store)
    claims = store.claim(budgets=[9]).claims
    planted(store, garbage)
    store.open_many([(claim, claim.timeline.decode()) for claim in claims])
    planted(store, garbage)
    words, _ = store.finish(*(store.closing(claim, claim.timeline.decode()) for claim in claims))
    assert words == ["closed", "closed"]
    assert store.schedule(BAD) == (NOW_MS + 1000, NOW_MS + 1000, 0)


def test_as_many_as_a_claim_looks_at_are_in_the_way_of_none(store: Scripts) -> None:
    bad = [b"bad%d" % number for number in range(40)]
    store.is_sound = False
    store.add(*(Rec(name, b"k", NOW_MS) for name in bad), base_ms=NOW_MS - 1)
    store.add(Rec(GOOD, b"k", NOW_MS))
    for name in bad:
        store.command("HSET", store.key("schedule", "r"), name, b"\xff" * 20)
    found = [name for number in range(50) for name in store.claim(budgets=[1], token=str(number)).timelines]
    assert sorted(found) == sorted([*bad, GOOD])


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_lease_that_runs_out_over_it_gives_the_timeline_back(store: Scripts, garbage: bytes) -> None:
    begun(store)
    store.claim(budgets=[9], lease_ms=1)
    planted(store, garbage)
    store.now_ms = NOW_MS + 1
    assert store.maintenance() == 2
    assert delivered(store, "another") == {BAD, GOOD}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_records_still_come_in(store: Scripts, garbage: bytes) -> None:
    begun(store)
    planted(store, garbage)
    store.add(Rec(BAD, b"new", NOW_MS), Rec(GOOD, b"new", NOW_MS))
    assert store.open_set(BAD).keys() == store.open_set(GOOD).keys() == {b"k", b"new"}
    assert delivered(store) == {BAD, GOOD}


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.flush(BAD),
        lambda store: store.adopt(BAD, "other"),
        lambda store: store.mend([BAD, GOOD]),
        lambda store: store.recount([BAD, GOOD]),
        lambda store: store.maintained(cursors={"r": b"all"}),
    ],
    ids=["flush", "adopt", "mend", "recount", "census"],
)
def test_operators_and_upkeep_get_through_it(store: Scripts, act: Callable[[Scripts], object]) -> None:
    begun(store)
    planted(store, b"planted")
    act(store)
    assert GOOD in delivered(store)
