"""What the server around the scripts may do: be full, compare by a language's rules, forget scripts, refuse keys."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from support.servers import RedisServer
from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts, inconsistencies, own_timeline

pytestmark = pytest.mark.script

T = b"t"


@pytest.fixture
def own_store(redis_server: RedisServer) -> Iterator[Scripts]:
    """On a server of the test's own."""
    with redis_server.client() as client:
        store = Scripts(client)
        yield store
        assert inconsistencies(store.tag, store.contents()) == []


# -- a full Redis (noeviction)


def fill(store: Scripts) -> None:
    """From here on every command that may need memory is refused."""
    store.command("CONFIG", "SET", "maxmemory", "1")


@pytest.fixture
def full(own_store: Scripts) -> Scripts:
    """With timelines in each state: waiting, leased, opened, delivered lately, buried."""
    store = own_store
    claims = {}
    for name in ("delivered", "buried", "open"):
        store.add(Rec(name.encode(), b"k", NOW_MS - 1), Rec(name.encode(), b"l", NOW_MS))
        store.opened(claim := store.claim_one(name.encode(), token=name), name)
        claims[name] = claim
    store.close(claims["delivered"], "delivered", base_ms=NOW_MS + 5)
    store.bury(claims["buried"], "buried", base_ms=NOW_MS + 5)
    store.add(Rec(b"leased", b"k", NOW_MS))
    store.claim_one(b"leased", token="leased")
    store.add(Rec(b"waiting", b"k", NOW_MS), Rec(b"waiting", b"l", NOW_MS), bound_ms=NOW_MS + 9)
    # The schedule that came with the records is one increment ahead of the score: a claim has to score it anew.
    store.add(Rec(b"postponed", b"k", NOW_MS), bound_ms=NOW_MS + 9)
    fill(store)
    return store


@pytest.mark.parametrize(
    "records",
    [
        [Rec(b"new", b"k", NOW_MS)],
        [Rec(b"waiting", b"new", NOW_MS + 5), Rec(b"new", b"k", NOW_MS)],
        [Rec(b"waiting", b"k", NOW_MS + 5)],
        [Rec(b"waiting", b"k", NOW_MS - 5)],
        [Rec(b"waiting", b"k", NOW_MS, b"{}larger")],
        [Rec(b"waiting", b"old", NOW_MS - 5)],
        [Rec(b"open", b"k", NOW_MS - 1, repeat=True)],
        [Rec(b"delivered", b"k", NOW_MS - 1, repeat=True)],
        [Rec(b"waiting", b"k", NOW_MS), Rec(b"waiting", b"k", NOW_MS - 5)],
    ],
    ids=[
        "new",
        "many",
        "newer",
        "older",
        "larger",
        "refused",
        "repeat of a snapshot",
        "repeat of memory",
        "copy first",
    ],
)
@pytest.mark.parametrize("capacity", [2, 100])
def test_a_full_redis_refuses_an_add_whole(full: Scripts, records: list[Rec], capacity: int) -> None:
    before = full.dump()
    with pytest.raises(Exception, match="used memory > 'maxmemory'"):
        full.add(*records, capacity=capacity)
    assert full.dump() == before


def test_a_full_redis_refuses_an_add_beyond_the_limit_of_timelines(full: Scripts) -> None:
    before = full.dump()
    with pytest.raises(Exception, match="used memory > 'maxmemory'"):
        full.add(Rec(b"new", b"k", NOW_MS), limit=1)
    assert full.dump() == before


def test_a_full_redis_lets_a_digest_go_all_its_way(full: Scripts) -> None:
    claim = full.claim_one(b"waiting")
    assert full.opened(claim).total == 2
    assert full.renew(claim) == "renewed"
    assert full.fail(claim, NOW_MS) == "waiting"
    assert full.opened(again := full.claim_one(b"waiting", token="again"), "not taken").attempts == 1
    assert full.close(again) == "closed"
    assert full.ledger()["delivered"] == 4


def test_a_full_redis_lets_claims_score_anew(full: Scripts) -> None:
    claimed = full.claim(routes=[("r", 1, 3)])
    assert claimed.claims == []
    assert full.waiting() == {
        b"waiting": NOW_MS + 6, b"postponed": NOW_MS + 3, b"delivered": NOW_MS + 5, b"buried": NOW_MS + 5,
    }  # fmt: skip


def test_a_full_redis_lets_digests_be_buried_and_dropped(full: Scripts) -> None:
    full.opened(claim := full.claim_one(b"waiting"))
    assert full.bury(claim) == ("buried", 2)
    assert full.drop_dead("id-1") == ("dropped", 2)


def test_a_full_redis_lets_leases_be_taken_back(full: Scripts) -> None:
    full.now_ms = NOW_MS + LEASE_MS
    assert full.maintenance() == 2


def test_a_full_redis_lets_timelines_be_forgotten(full: Scripts) -> None:
    full.now_ms = NOW_MS + 5
    assert full.open(full.claim_one(b"delivered")) == "empty"


def test_a_full_redis_lets_a_lost_claim_be_made_again(full: Scripts) -> None:
    assert full.claim_again("leased").timelines == [b"leased"]


def test_a_full_redis_lets_newer_records_be_merged(full: Scripts) -> None:
    full.command("CONFIG", "SET", "maxmemory", "0")
    full.add(Rec(b"open", b"new", NOW_MS + 5), Rec(b"open", b"k", NOW_MS + 5))
    fill(full)
    merged = full.opened(Claim("r", b"open", NOW_MS, "open"), "union", merge_capacity=2)
    assert (merged.word, merged.total) == ("merged", 2)


def test_a_full_redis_lets_timelines_be_deleted(full: Scripts) -> None:
    for name in (b"waiting", b"leased", b"open", b"delivered", b"buried"):
        assert full.delete(name)[0] == "deleted"


def test_a_full_redis_lets_timelines_be_flushed(full: Scripts) -> None:
    assert full.flush(b"delivered") == "due"


def test_a_full_redis_lets_digests_be_revived(full: Scripts) -> None:
    assert full.revive("buried", b"buried") == ("revived", 2)
    full.opened(claim := full.claim_one(own_timeline("buried", b"buried")), "not taken")
    assert full.close(claim, "buried") == "closed"


def test_a_full_redis_lets_timelines_be_adopted(full: Scripts) -> None:
    for name in (b"waiting", b"leased", b"open", b"delivered", b"buried"):
        assert full.adopt(name, "other")[0] == "adopted"


def test_a_full_redis_lets_daemons_start(full: Scripts) -> None:
    for _ in range(2):
        assert full.hello(routes=["r"])[2] == b"epoch"


def test_a_full_redis_gives_turns_of_upkeep(full: Scripts) -> None:
    assert [full.turn(), full.turn()] == [True, False]


def test_a_full_redis_takes_scripts_it_does_not_have(full: Scripts) -> None:
    full.command("SCRIPT", "FLUSH")
    assert full.claim().timelines == [b"postponed", b"waiting"]


def test_with_room_again_records_are_taken_again(full: Scripts) -> None:
    full.command("CONFIG", "SET", "maxmemory", "0")
    assert full.add(Rec(b"new", b"k", NOW_MS)).counts == {"added": 1}


# -- languages


def installed_language() -> str | None:
    """A locale whose order of letters is not that of their bytes."""
    try:
        said = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False).stdout.split()
    except FileNotFoundError:
        return None
    return next((name for name in said if "_" in name and name.lower().endswith(("utf8", "utf-8"))), None)


def test_values_and_keys_are_compared_by_their_bytes_in_every_language(
    redis_factory: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    language = installed_language()
    if language is None:
        pytest.skip("no locale but C is installed here")
    monkeypatch.setenv("LC_ALL", language)
    with redis_factory().client() as client:
        store = Scripts(client)
        assert store.command("EVAL", "return ('B' < 'a') and 1 or 0", 0) == 0, "the trap is not set"
        for value in (b"B", b"a", b"\xc3\xa4", b"Z"):
            store.add(Rec(T, b"k", NOW_MS, value))
        assert store.open_set(T) == {b"k": (NOW_MS, b"\xc3\xa4")}
        store.add(*(Rec(b"u", key, NOW_MS) for key in (b"B", b"a", b"\xc3\xa4", b"Z")), capacity=2)
        assert set(store.open_set(b"u")) == {b"a", b"\xc3\xa4"}


# -- rights


def test_a_user_with_the_rights_of_one_namespace_can_do_all(redis_server: RedisServer) -> None:
    with redis_server.client() as admin:
        commands = (
            "@connection evalsha script|load time zadd zrem zrange zrangebyscore zscore zcard zunionstore "
            "zremrangebyrank hset hsetnx hlen hget hmget hdel hexists hincrby get incrby decr rename renamenx "
            "unlink exists pexpire"
        )
        rights = [f"+{command}" for command in commands.split()]
        Scripts(admin).command("ACL", "SETUSER", "daemon", "on", ">secret", "~{test:*", *rights)
    with redis_server.client(username="daemon", password="secret") as client:
        store = Scripts(client)
        store.hello()
        for name in ("closed", "buried"):
            store.add(Rec(name.encode(), b"k", NOW_MS), Rec(name.encode(), b"k", NOW_MS + 1, repeat=True))
            store.opened(claim := store.claim_one(name.encode()), name)
            store.renew(claim)
            store.fail(claim, NOW_MS)
            store.opened(claim := store.claim_one(name.encode()), name)
            if name == "buried":
                assert store.bury(claim, name) == ("buried", 1)
            else:
                assert store.close(claim, name) == "closed"
        assert store.maintenance() == 0
        assert store.drop_dead("buried") == ("dropped", 1)


def test_a_user_without_the_right_to_a_key_is_refused_before_anything_is_written(redis_server: RedisServer) -> None:
    with redis_server.client() as admin:
        store = Scripts(admin)
        everything_but_memory = [
            b"~" + store.key(kind) + b"*"
            for kind in (
                "waiting",
                "leased",
                "tokens",
                "schedule",
                "heads",
                "losses",
                "ledger",
                "count",
                "agenda",
                "set",
                "values",
                "digest",
            )
        ]
        store.command("ACL", "SETUSER", "daemon", "on", ">secret", "+@all", *everything_but_memory)
        with redis_server.client(username="daemon", password="secret") as client:
            limited = Scripts(client)
            limited.add(Rec(T, b"k", NOW_MS))
            before = store.dump()
            with pytest.raises(Exception, match="permissions"):
                limited.add(Rec(T, b"l", NOW_MS), Rec(b"u", b"k", NOW_MS, repeat=True))
            assert store.dump() == before


@pytest.mark.parametrize("missing", ["hset", "hincrby", "incrby"])
def test_what_a_missing_right_broke_off_half_way_is_not_lost_when_it_comes_again(
    redis_server: RedisServer, missing: str
) -> None:
    """A user may lack the right to one command of a script: what was written before it stays, without its schedule."""
    records = [Rec(T, b"k", 1, b"old"), Rec(T, b"k", 2, b"new"), Rec(T, b"l", 3), Rec(b"u", b"k", 4)]
    with redis_server.client() as admin:
        store = Scripts(admin)
        store.command("ACL", "SETUSER", "daemon", "on", ">secret", "~*", "+@all", f"-{missing}")
        with redis_server.client(username="daemon", password="secret") as client:
            limited = Scripts(client)
            with pytest.raises(Exception, match="script"):
                limited.add(*records)
            store.command("ACL", "SETUSER", "daemon", f"+{missing}")
            limited.add(*records)
            assert limited.claim().timelines == [b"t", b"u"]
            assert limited.open_set(T) == {b"k": (2, b"new"), b"l": (3, b"{}")}
            assert limited.open_set(b"u") == {b"k": (4, b"{}")}
            if missing != "incrby":  # there the ledger stayed behind: that is what its audit is for
                assert inconsistencies(store.tag, store.contents()) == []
