"""redis_facts.py: what is refused at start, what is warned of, and how both are read from what Redis says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import pytest

from nsqdigest.store.servers.facts import ServerFacts, SetBack, StoreFacts

pytestmark = pytest.mark.unit

GOOD = {
    "redis_version": "7.0.15",
    "redis_mode": "standalone",
    "role": "master",
    "run_id": "abc",
    "master_replid": "def",
    "connected_slaves": "2",
    "maxmemory_policy": "noeviction",
    "maxmemory": "1000",
    "aof_enabled": "1",
}
SAFE = {"appendfsync": "always", "save": ""}


def facts(settings: Mapping[str, str] | None = SAFE, **info: str) -> ServerFacts:
    return ServerFacts.of("10.0.0.1:6379", {**GOOD, **info}, settings)


@pytest.mark.parametrize("version", ["6.2.0", "6.2.14", "7.0.15", "8.2.1", "10.0.0", "unknown", "255.255.255"])
def test_versions_that_serve(version: str) -> None:
    assert facts(redis_version=version).refusal("single", "fsync") is None


def test_valkey_says_its_mode_and_version_in_words_of_its_own() -> None:
    of_valkey = {name: value for name, value in GOOD.items() if name != "redis_mode"}
    said = {**of_valkey, "redis_version": "7.2.4", "valkey_version": "8.0.1", "server_mode": "cluster"}
    valkey = ServerFacts.of("10.0.0.1:6379", said, SAFE)
    assert (valkey.version, valkey.mode) == ("7.2.4 (Valkey 8.0.1)", "cluster")
    assert valkey.refusal("cluster", "fsync") is None


@pytest.mark.parametrize("version", ["6.0.16", "5.0.3", "2.8.24"])
def test_versions_that_do_not(version: str) -> None:
    assert facts(redis_version=version).refusal("single", "reply") == (
        f"10.0.0.1:6379 is Redis {version}; use 6.2 or newer"
    )


@pytest.mark.parametrize(
    ("info", "settings", "kind", "durability", "expected"),
    [
        ({"redis_mode": "cluster"}, SAFE, "single", "reply", r"write redis\+cluster:// instead of redis://"),
        ({}, None, "single", "fsync", r"may not ask .*; give it \+config\|get"),
        ({}, {"appendfsync": "everysec", "save": ""}, "single", "fsync", "set appendonly yes and appendfsync always"),
        ({"aof_enabled": "0"}, SAFE, "single", "fsync", "set appendonly yes and appendfsync always"),
        ({"aof_enabled": "0"}, None, "single", "fsync", "set appendonly yes and appendfsync always"),
    ],
)
def test_what_is_refused(
    info: dict[str, str],
    settings: Mapping[str, str] | None,
    kind: Literal["single", "sentinel", "cluster"],
    durability: str,
    expected: str,
) -> None:
    assert re.search(expected, facts(settings, **info).refusal(kind, durability) or "not refused")


def test_what_serves_is_not_warned_of() -> None:
    assert facts().warnings(2) == []
    assert facts(None, aof_enabled="1").warnings() == []


def test_where_it_may_not_be_asked_nobody_is_alarmed_about_persistence() -> None:
    assert facts(None, aof_enabled="0").warnings() == []


@pytest.mark.parametrize(
    ("info", "settings", "first_word"),
    [
        ({"maxmemory_policy": "volatile-lru"}, SAFE, "maxmemory-policy"),
        ({"maxmemory": "0"}, SAFE, "maxmemory"),
        ({"aof_enabled": "0"}, SAFE, "neither"),
        ({"connected_slaves": "1"}, SAFE, "redis.replicas"),
    ],
)
def test_what_may_lose_events_is_warned_of(info: dict[str, str], settings: dict[str, str], first_word: str) -> None:
    (said,) = facts(settings, **info).warnings(replicas_wanted=2)
    assert said.split()[0] == first_word


def test_a_replica_that_need_not_confirm_is_warned_of() -> None:
    for wanted in (1, 2):
        (said,) = facts(connected_slaves="3").warnings(wanted)
        assert said.startswith(f"redis.replicas is {wanted}, and 3 are connected")
        assert said.endswith("write replicas = 3")
    assert facts(connected_slaves="3").warnings(3) == facts(connected_slaves="3").warnings(0) == []


def test_snapshots_are_persistence_too() -> None:
    assert facts({"save": "900 1", "appendfsync": "everysec"}, aof_enabled="0").warnings() == []


def test_the_versions_of_several_servers_are_told_once_each() -> None:
    servers = [facts(), facts(redis_version="7.2.1"), facts()]
    assert StoreFacts(servers, []).version == "7.0.15, 7.2.1"


# -- its clock


def test_a_clock_that_goes_on_did_not_go_back() -> None:
    clock = SetBack()
    assert [clock.observe(at_s, at_s + 0.001, 1000 * at_s) for at_s in (5, 20, 35)] == [0, 0, 0]
    assert clock.observe(50, 50.001, 3_650_000) == 0, "it was put forward"


def test_a_clock_that_was_set_back_is_found_once_and_to_the_millisecond_or_so() -> None:
    clock = SetBack()
    clock.observe(100, 100.001, 3_700_000)
    assert clock.observe(115, 115.001, 3_715_000 - 3_591_000) == pytest.approx(3_591_000, abs=10)
    assert clock.observe(130, 130.001, 139_000) == 0


def test_slow_answers_are_no_step() -> None:
    """When it looked at the clock between the question and the answer is not known."""
    clock = SetBack()
    clock.observe(0, 5, 5_000)
    assert clock.observe(6, 30, 6_000) == 0
    assert clock.observe(31, 60, 59_000) == 0


@pytest.mark.parametrize(("back_ms", "found"), [(999, False), (1_001, True)])
def test_clocks_that_run_apart_and_corrections_below_a_second_are_no_step(back_ms: int, found: bool) -> None:
    clock = SetBack()
    clock.observe(0, 0, 10_000)
    assert bool(clock.observe(0, 0, 10_000 - back_ms)) == found
