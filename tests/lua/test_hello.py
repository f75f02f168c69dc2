"""hello.lua: the store remembers the layout that the first daemon gave it, and tells it to all others."""

from __future__ import annotations

from support.store import Scripts


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


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.hello()
    assert store.watch is not None
    assert store.watch.touched["hello"] == {store.key("layout")}
