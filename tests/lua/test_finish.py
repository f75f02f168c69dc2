"""finish.lua with many digests in a call, of several routes and in any mixture: each has its own answer, and what is
wrong with one concerns no other."""

from __future__ import annotations

import pytest
import redis

from support.store import LEASE_MS, NOW_MS, Claim, End, Rec, Scripts

pytestmark = pytest.mark.script

BOTH = (("r", 1, 0), ("s", 1, 0))


def under_way(store: Scripts, *names: bytes, route: str = "r", records: int = 2) -> list[Claim]:
    """Adds, claims and opens; the id of each is its route and its name."""
    store.add(*(Rec(name, b"%d" % n, NOW_MS + n) for name in names for n in range(records)), route=route)
    found = {claim.timeline: claim for claim in store.claim(routes=((route, 1, 0),)).claims}
    claims = [found[name] for name in names]
    store.open_many([(claim, identity(claim)) for claim in claims])
    return claims


def identity(claim: Claim) -> str:
    return f"{claim.route}-{claim.timeline.decode()}"


def end(store: Scripts, kind: str, claim: Claim, base_ms: int = NOW_MS + 1000) -> End:
    match kind:
        case "close":
            return store.closing(claim, identity(claim), base_ms=base_ms)
        case "bury":
            return store.burying(claim, identity(claim), base_ms=base_ms, details=b"why")
        case _:
            return store.failing(claim, base_ms)


def test_a_mixture_of_two_routes_has_an_answer_for_each(store: Scripts) -> None:
    a, b, c = under_way(store, b"a", b"b", b"c")
    (d,) = under_way(store, b"d", route="s", records=3)
    words, dead = store.finish(
        end(store, "wait", c, NOW_MS + 5), end(store, "bury", d), end(store, "close", a), end(store, "bury", b)
    )
    assert (words, dead) == (["waiting", "buried", "closed", "buried"], 2)
    assert store.ledger("r") == {"added": 6, "delivered": 2, "buried": 2, "snapshots": 2}
    assert store.ledger("s") == {"added": 3, "buried": 3}
    assert store.waiting("r") == {b"a": NOW_MS + 1000, b"b": NOW_MS + 1000, b"c": NOW_MS + 5}
    assert store.waiting("s") == {b"d": NOW_MS + 1000}
    for route in ("r", "s"):
        assert (store.leased(route), store.tokens(route), store.unfinished(route)) == ({}, {}, {})
    assert (len(store.dead("s-d")), len(store.dead("r-b")), len(store.snapshot(b"c"))) == (3, 2, 2)
    assert store.head(b"c")[b"attempts"] == b"1"
    assert store.contents()[store.key("agenda")] == {
        store.key("waiting", "r"): NOW_MS + 5, store.key("waiting", "s"): NOW_MS + 1000,
    }  # fmt: skip


def test_neighbours_wait_each_by_its_own_records_and_end(store: Scripts) -> None:
    claims = under_way(store, b"a", b"b", b"c", b"d")
    store.add(*(Rec(name, b"new", NOW_MS + 9) for name in (b"b", b"c")))
    store.add(Rec(b"c", b"newer", NOW_MS + 10))
    base_ms = {b"a": NOW_MS + 100, b"b": NOW_MS + 100, b"c": NOW_MS + 100, b"d": NOW_MS + 200}
    ends = [store.closing(c, identity(c), base_ms=base_ms[c.timeline], bound_ms=NOW_MS + 999) for c in claims]
    assert store.finish(*ends, increment_ms=10)[0] == ["closed"] * 4
    assert store.waiting() == {
        b"a": NOW_MS + 100, b"b": NOW_MS + 110, b"c": NOW_MS + 120, b"d": NOW_MS + 200,
    }  # fmt: skip
    assert [(store.schedule(name) or (0, 0, 0))[2] for name in base_ms] == [0, 1, 2, 0]


@pytest.mark.parametrize("digest_id", ["0", "iteration=1", "r-", "-a", "=r-a", "r-a opened", ""])
def test_a_part_of_what_a_head_says_is_no_id(store: Scripts, digest_id: str) -> None:
    (claim,) = under_way(store, b"a")
    before = store.dump()
    assert store.finish(store.closing(claim, digest_id))[0] == ["stale"]
    assert store.dump() == before


def test_what_is_left_of_a_digest_that_was_dropped_before_its_burial_was_done_again_goes(store: Scripts) -> None:
    """Who does it again has no details, and its entry would be one that nobody can read, replay or ask a route of."""
    dropped, kept = under_way(store, b"dropped", b"kept")
    store.command("DEL", store.key("digest-values", "r", b"dropped"))  # it was on its way, and its values went first
    words, dead = store.finish(
        store.burying(dropped, identity(dropped), details=b""), store.burying(kept, identity(kept), details=b"why")
    )
    assert (words, dead) == (["buried", "buried"], 1)
    assert store.snapshot(b"dropped") == store.dead("r-dropped") == {}
    assert store.ledger("r") == {"added": 4, "deleted": 2, "buried": 2}
    assert (store.leased("r"), store.unfinished("r")) == ({}, {})
    assert set(store.waiting("r")) == {b"dropped", b"kept"}


def test_a_burial_that_was_cut_off_before_its_details_were_kept_is_none(store: Scripts) -> None:
    """Whoever does it again has no details. The digest goes on, and the next attempt decides anew."""
    (claim,) = under_way(store, b"t")
    records = store.snapshot(b"t")
    head = store.command("HGET", store.key("heads", "r"), b"t")
    store.command("HSET", store.key("heads", "r"), b"t", head + b" burying=" + identity(claim).encode())
    store.command("ZADD", store.key("dead"), 1, identity(claim))
    assert store.finish(store.burying(claim, identity(claim), details=b"")) == (["waiting"], 0)
    assert store.snapshot(b"t") == records
    assert store.command("HGET", store.key("heads", "r"), b"t") == head
    assert store.waiting() == {b"t": NOW_MS}


@pytest.mark.parametrize("kind", ["dead", "dead:details", "exempt"])
def test_a_shared_key_of_another_type_stops_only_what_uses_it(store: Scripts, kind: str) -> None:
    """A burial needs the dead store; nothing needs the retries that are exempt from quiet hours."""
    store.is_sound = False
    closed, retried, buried = under_way(store, b"closed", b"retried", b"buried")
    store.command("SET", store.key(kind), "of something else")
    ends = [end(store, "close", closed), store.failing(retried, NOW_MS + 5, is_retry=True)]
    assert store.finish(*ends)[0] == ["closed", "waiting"]
    burial = end(store, "bury", buried)
    if kind == "exempt":
        assert store.finish(burial)[0] == ["buried"]
    else:
        with pytest.raises(redis.ResponseError, match=f"WRONGTYPE.*{store.key(kind).decode()}"):
            store.finish(burial)


def test_dead_digests_come_under_their_own_ids_whatever_stands_between_them(store: Scripts) -> None:
    claims = under_way(store, b"a", b"b", b"c", b"d")
    kinds = ("bury", "close", "wait", "bury")
    store.finish(*(end(store, kind, claim) for kind, claim in zip(kinds, claims, strict=True)))
    assert set(store.contents()[store.key("dead")]) == {b"r-a", b"r-d"}
    assert set(store.dead("r-a")) == set(store.dead("r-d")) == {b"0", b"1"}


def test_said_twice_what_ended_is_already_ended_and_what_waits_is_stale(store: Scripts) -> None:
    claims = under_way(store, b"a", b"b", b"c")
    ends = [end(store, kind, claim) for kind, claim in zip(("close", "bury", "wait"), claims, strict=True)]
    assert store.finish(*ends) == (["closed", "buried", "waiting"], 1)
    before = store.dump()
    assert store.finish(*ends) == (["already", "already", "stale"], 1)
    assert store.dump() == before


def test_what_an_earlier_call_did_and_what_it_did_not_go_together(store: Scripts) -> None:
    a, b = under_way(store, b"a", b"b")
    store.finish(end(store, "close", a))
    assert store.finish(end(store, "close", a), end(store, "close", b))[0] == ["already", "closed"]
    assert store.ledger() == {"added": 4, "delivered": 4}


def test_stale_ones_stop_no_neighbour(store: Scripts) -> None:
    a, _, c = under_way(store, b"a", b"b", b"c")
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    taken = {claim.timeline: claim for claim in store.claim(token="second").claims}
    words, _ = store.finish(end(store, "close", a), end(store, "close", taken[b"b"]), end(store, "wait", c))
    assert words == ["stale", "closed", "stale"]
    assert set(store.tokens()) == {b"a", b"c"}


@pytest.mark.parametrize("kind", ["digest", "shown"])
@pytest.mark.parametrize("how", ["close", "bury"])
def test_a_digest_whose_key_has_another_type_is_damaged_and_its_neighbours_end(
    store: Scripts, kind: str, how: str
) -> None:
    a, bad, c = under_way(store, b"a", b"bad", b"c")
    store.is_sound = False
    store.command("DEL", store.key(kind, "r", b"bad"))
    store.command("SET", store.key(kind, "r", b"bad"), "planted")
    head = store.head(b"bad")
    words, _ = store.finish(end(store, how, a), end(store, how, bad), end(store, "wait", c))
    assert words == ["closed" if how == "close" else "buried", "damaged", "waiting"]
    assert set(store.tokens()) == {b"bad"}
    assert store.head(b"bad") == head
    assert b"bad" not in store.waiting()
    assert store.unfinished() == {}


def test_a_digest_whose_key_has_another_type_can_wait(store: Scripts) -> None:
    (bad,) = under_way(store, b"bad")
    store.is_sound = False
    store.command("SET", store.key("digest", "r", b"bad"), "planted")
    assert store.finish(end(store, "wait", bad))[0] == ["waiting"]


@pytest.mark.parametrize(
    "kind",
    ["tokens", "heads", "schedule", "waiting", "leased", "losses", "ledger", "agenda", "dead", "dead:details"],
)
def test_a_shared_key_of_another_type_stops_the_call_before_its_first_write(store: Scripts, kind: str) -> None:
    (a,) = under_way(store, b"a")
    (b,) = under_way(store, b"b", route="s")
    store.is_sound = False
    key = (
        store.key(kind, "s")
        if kind in {"tokens", "heads", "schedule", "waiting", "leased", "losses", "ledger"}
        else store.key(kind)
    )
    store.command("DEL", key)
    store.command("SET", key, "planted")
    before = store.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        store.finish(end(store, "close", a), end(store, "bury", b))
    assert store.dump() == before


@pytest.mark.parametrize("kind", ["close", "wait", "bury"])
def test_500_end_in_one_call(store: Scripts, kind: str) -> None:
    store.watch = None
    claims = under_way(store, *(b"t%d" % number for number in range(500)), records=1)
    words, dead = store.finish(*(end(store, kind, claim) for claim in claims))
    assert (len(words), len(set(words)), dead) == (500, 1, 500 if kind == "bury" else 0)
    assert (store.tokens(), store.leased(), len(store.waiting())) == ({}, {}, 500)
    field = {"close": "delivered", "wait": "snapshots", "bury": "buried"}[kind]
    assert store.ledger() == {"added": 500, field: 500}


def test_a_route_with_nothing_to_end_is_left_alone(store: Scripts) -> None:
    (a,) = under_way(store, b"a")
    (b,) = under_way(store, b"b", route="s")
    before = {name: value for name, value in store.dump().items() if b":s:" in name or name.endswith(b":s")}
    words, _ = store.finish(end(store, "close", a), end(store, "close", b._replace(token="another")))
    assert words == ["closed", "stale"]
    assert {name: value for name, value in store.dump().items() if b":s:" in name or name.endswith(b":s")} == before


def test_ends_beyond_what_one_call_may_copy_are_left_to_the_next(store: Scripts) -> None:
    """A burial copies its keys into the memory; a first close renames them, and a retry touches none."""
    store.watch = None
    names = [b"%d" % number for number in range(6)]
    for name in names:
        for first in range(0, 1200, 400):
            store.add(*(Rec(name, b"%d" % n, NOW_MS) for n in range(first, first + 400)), capacity=2000)
    found = {claim.timeline: claim for claim in store.claim(routes=(("r", 1, 0),)).claims}
    claims = [found[name] for name in names]
    store.open_many([(claim, identity(claim)) for claim in claims])
    memory = (600_000, 2400)
    ends = [end(store, "bury", claim)._replace(memory=memory) for claim in claims[:5]]
    closing = end(store, "close", claims[5])._replace(memory=memory)
    words, dead = store.finish(*ends, closing)
    assert (words, dead) == (["buried"] * 4 + ["later", "closed"], 4)
    assert len(store.snapshot(names[4])) == 1200
    assert store.finish(ends[4]) == (["buried"], 5)
    assert store.ledger() == {"added": 7200, "buried": 6000, "delivered": 1200}
