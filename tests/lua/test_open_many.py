"""open.lua with many timelines in a call, of several routes: each has its own answer, and what is wrong with one
concerns no other."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.store import LEASE_MS, NOW_MS, Claim, Opened, Rec, Scripts

pytestmark = pytest.mark.script

BOTH = (("r", 1, 0), ("s", 1, 0))


def begin(store: Scripts, *names: bytes, route: str = "r", records: int = 1) -> None:
    store.add(
        *(Rec(name, b"%d" % number, NOW_MS, b"v%d" % number) for name in names for number in range(records)),
        route=route,
    )


def claimed(store: Scripts, token: str = "token") -> dict[tuple[str, bytes], Claim]:
    return {(claim.route, claim.timeline): claim for claim in store.claim(routes=BOTH, token=token).claims}


def test_each_has_its_own_digest_whatever_route_it_is_of(store: Scripts) -> None:
    begin(store, b"a", b"b")
    begin(store, b"a", route="s", records=3)
    claims = claimed(store)
    wanted = [(claims["s", b"a"], "id-1"), (claims["r", b"a"], "id-2"), (claims["r", b"b"], "id-3")]
    answers = store.open_many(wanted)
    assert [(each.id, each.total) for each in answers if isinstance(each, Opened)] == [
        ("id-1", 3), ("id-2", 1), ("id-3", 1),
    ]  # fmt: skip
    assert (len(store.snapshot(b"a", "s")), len(store.snapshot(b"a", "r"))) == (3, 1)
    assert store.ledger("r") == {"added": 2, "snapshots": 2}
    assert store.ledger("s") == {"added": 3, "snapshots": 3}
    assert store.leased("r") == {b"a": NOW_MS + LEASE_MS, b"b": NOW_MS + LEASE_MS}


def test_asked_again_all_answers_are_the_same_and_nothing_changes(store: Scripts) -> None:
    begin(store, b"a", b"b", b"c")
    wanted = [(claim, f"id-{number}") for number, claim in enumerate(claimed(store).values())]
    first = store.open_many(wanted)
    before = store.dump()
    again = store.open_many([(claim, "not taken") for claim, _ in wanted])
    assert again == [each._replace(word="again") for each in first if isinstance(each, Opened)]
    assert store.dump() == before


def test_a_mixture_has_an_answer_of_its_own_kind_for_each(store: Scripts) -> None:
    begin(store, b"again", b"fresh", b"empty", b"stale", b"burying")
    claims = {name: claim for (_, name), claim in claimed(store).items()}
    first = store.opened(claims[b"again"], "old")
    store.opened(claims[b"empty"], "e")
    store.close(claims[b"empty"], "e", base_ms=NOW_MS)
    claims[b"empty"] = store.claim_one(b"empty")
    store.opened(claims[b"burying"], "b")
    head = store.command("HGET", store.key("heads", "r"), b"burying")
    store.command("HSET", store.key("heads", "r"), b"burying", head + b" burying=b")
    claims[b"stale"] = claims[b"stale"]._replace(token="another")
    store.is_sound = False
    answers = store.open_many([(claims[name], f"new-{name.decode()}") for name in claims])
    words = dict(zip(claims, [each.word if isinstance(each, Opened) else each for each in answers], strict=True))
    assert words == {
        b"again": "again", b"fresh": "opened", b"empty": "empty", b"stale": "stale", b"burying": "burying",
    }  # fmt: skip
    assert isinstance(answers[0], Opened)
    assert answers[0].id == first.id


def test_merged_ones_and_fresh_ones_go_together(store: Scripts) -> None:
    begin(store, b"a", b"b")
    claims = claimed(store)
    store.open_many([(claims["r", b"a"], "id-1")], merge_capacity=10)
    store.add(Rec(b"a", b"new", NOW_MS))
    merged, fresh = store.open_many([(claims["r", b"a"], "id-2"), (claims["r", b"b"], "id-3")], merge_capacity=10)
    assert isinstance(merged, Opened)
    assert isinstance(fresh, Opened)
    assert (merged.word, merged.id, merged.total) == ("merged", "id-2", 2)
    assert (fresh.word, fresh.id, fresh.total) == ("opened", "id-3", 1)
    assert store.ledger() == {"added": 3, "snapshots": 3}


@pytest.mark.parametrize("kind", ["set", "digest"])
def test_a_timeline_whose_key_has_another_type_is_damaged_and_its_neighbours_are_opened(
    store: Scripts, kind: str
) -> None:
    begin(store, b"a", b"bad", b"c")
    claims = claimed(store)
    if kind == "digest":
        store.opened(claims["r", b"bad"], "bad")
    store.is_sound = False
    store.command("DEL", store.key(kind, "r", b"bad"))
    store.command("SET", store.key(kind, "r", b"bad"), "planted")
    before = {name: value for name, value in store.dump().items() if name.endswith(b":bad")}
    answers = store.open_many([(claims["r", name], f"id-{name.decode()}") for name in (b"a", b"bad", b"c")])
    assert [each.id if isinstance(each, Opened) else each for each in answers] == ["id-a", "damaged", "id-c"]
    assert {name: value for name, value in store.dump().items() if name.endswith(b":bad")} == before


@pytest.mark.parametrize("kind", ["values", "digest-values", "shown"])
def test_a_key_that_is_only_moved_may_have_any_type(store: Scripts, kind: str) -> None:
    begin(store, b"a", b"bad")
    claims = claimed(store)
    store.is_sound = False
    store.command("DEL", store.key(kind, "r", b"bad"))
    store.command("SET", store.key(kind, "r", b"bad"), "planted")
    answers = store.open_many([(claims["r", name], f"id-{name.decode()}") for name in (b"bad", b"a")])
    assert [each.id for each in answers if isinstance(each, Opened)] == ["id-bad", "id-a"]


@pytest.mark.parametrize("kind", ["tokens", "heads", "schedule", "waiting", "leased", "losses", "ledger", "agenda"])
def test_a_shared_key_of_another_type_stops_the_call_before_its_first_write(store: Scripts, kind: str) -> None:
    begin(store, b"a")
    begin(store, b"b", route="s")
    claims = claimed(store)
    store.is_sound = False
    key = store.key(kind) if kind == "agenda" else store.key(kind, "s")
    store.command("DEL", key)
    store.command("SET", key, "planted")
    before = store.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        store.open_many([(claims["r", b"a"], "id-1"), (claims["s", b"b"], "id-2")])
    assert store.dump() == before


def test_500_are_opened_in_one_call(store: Scripts) -> None:
    store.watch = None
    names = [b"t%d" % number for number in range(500)]
    begin(store, *names)
    claims = claimed(store)
    answers = store.open_many([(claims["r", name], f"id-{name.decode()}") for name in names])
    assert [each.id for each in answers if isinstance(each, Opened)] == [f"id-{name.decode()}" for name in names]
    assert store.ledger() == {"added": 500, "snapshots": 500}


def test_a_route_none_of_whose_timelines_may_be_opened_is_left_alone(store: Scripts) -> None:
    begin(store, b"a")
    begin(store, b"b", route="s")
    claims = claimed(store)

    def of_s() -> dict[bytes, Any]:
        return {name: value for name, value in store.dump().items() if b":s:" in name or name.endswith(b":s")}

    before = of_s()
    stale = claims["s", b"b"]._replace(token="another")
    answers = store.open_many([(claims["r", b"a"], "id-1"), (stale, "id-2")])
    assert answers[1] == "stale"
    assert of_s() == before


def test_merges_beyond_what_one_call_may_do_are_left_to_the_next(store: Scripts) -> None:
    """Each takes 1,200 records in; the fresh one beside them costs nothing."""
    store.watch = None
    names = [b"a", b"b", b"c", b"d", b"e"]
    begin(store, *names)
    claims = {name: claim for (_, name), claim in claimed(store).items()}
    store.open_many([(claims[name], f"old-{name.decode()}") for name in names])
    for name in names:
        for first in range(0, 1200, 400):
            store.add(*(Rec(name, b"new-%d" % n, NOW_MS) for n in range(first, first + 400)), capacity=2000)
    begin(store, b"fresh")
    claims[b"fresh"] = store.claim_one(b"fresh")
    wanted = [(claims[name], f"new-{name.decode()}") for name in [*names, b"fresh"]]
    before = store.dump()
    answers = store.open_many(wanted, merge_capacity=2000)
    assert [each if isinstance(each, str) else each.word for each in answers] == [
        "merged", "merged", "merged", "merged", "later", "opened",
    ]  # fmt: skip
    assert {name for name, value in store.dump().items() if name.endswith(b":e") and value != before[name]} == set()
    (last,) = store.open_many(wanted[4:5], merge_capacity=2000)
    assert isinstance(last, Opened)
    assert (last.word, last.total) == ("merged", 1201)


def test_one_merge_alone_is_never_left_to_later(store: Scripts) -> None:
    store.watch = None
    begin(store, b"a")
    (claim,) = claimed(store).values()
    store.opened(claim, "old")
    for first in range(0, 2000, 400):
        store.add(*(Rec(b"a", b"new-%d" % n, NOW_MS) for n in range(first, first + 400)), capacity=2000)
    (merged,) = store.open_many([(claim, "new")], merge_capacity=1)
    assert isinstance(merged, Opened)
    assert (merged.word, merged.total) == ("merged", 1)
