"""hello.lua: the store remembers the layout that the first daemon gave it, and tells it to all others."""

from __future__ import annotations

import pytest

from support.store import NOW_MS, Scripts

pytestmark = pytest.mark.script


def test_the_first_daemon_gives_the_layout(store: Scripts) -> None:
    assert store.hello(1, 4, "epoch") == [b"1", b"4", b"epoch"]


def test_a_later_one_is_told_what_there_is_and_changes_nothing(store: Scripts) -> None:
    store.hello(1, 4, "epoch")
    before = store.dump()
    assert store.hello(2, 8, "other") == [b"1", b"4", b"epoch"]
    assert store.dump() == before


def test_after_a_loss_of_all_data_the_epoch_is_another(store: Scripts) -> None:
    store.hello(1, 4, "epoch")
    store.client.flushall()
    assert store.hello(1, 4, "other")[2] == b"other"


def test_its_routes_are_known_from_here_on_and_since_when(store: Scripts) -> None:
    store.hello(routes=["one", "two"])
    store.now_ms = NOW_MS + 5
    store.hello(routes=["two", "three"])
    assert store.contents()[store.key("routes")] == {
        b"one": b"%d" % NOW_MS, b"two": b"%d" % (NOW_MS + 5), b"three": b"%d" % (NOW_MS + 5),
    }  # fmt: skip


@pytest.mark.parametrize(("schema", "partitions"), [(4, 4), (2, 8)])
def test_routes_of_one_with_another_layout_are_not_taken_up(store: Scripts, schema: int, partitions: int) -> None:
    store.hello(2, 4, routes=["one"])
    before = store.dump()
    store.hello(schema, partitions, routes=["two"])
    assert store.dump() == before


def test_said_twice_nothing_changes(store: Scripts) -> None:
    store.hello(routes=["one"])
    before = store.dump()
    store.hello(routes=["one"])
    assert store.dump() == before


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    store.now_ms = None
    seconds, microseconds = store.command("TIME")
    store.hello(routes=["one"])
    started_ms = int(store.command("HGET", store.key("routes"), "one"))
    assert 0 <= started_ms - (seconds * 1000 + microseconds // 1000) < 10_000


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.hello(routes=["one"])
    assert store.watch is not None
    assert store.watch.touched["hello"] == {store.key("layout"), store.key("routes")}
