"""resp.py: what it writes is what the driver writes."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.store.servers.resp import Arguments, Words, count_of, encode, reader, script_call

pytestmark = pytest.mark.unit

driver: Any = hiredis.pack_command  # its types know of tuples of one
TEXTS = st.lists(st.one_of(st.binary(max_size=20), st.integers(0, 5000).map(bytes)), max_size=30)


@given(st.lists(st.one_of(st.binary(max_size=40), st.text(st.characters(codec="utf-8"), max_size=9), st.integers())))
def test_a_command_is_written_as_the_driver_writes_it(command: list[bytes | str | int]) -> None:
    assert encode([b"SET", *command]) == driver((b"SET", *command))


@given(TEXTS, TEXTS)
def test_arguments_that_are_named_together_are_arguments_like_others(some: list[bytes], others: list[bytes]) -> None:
    command: Words = [b"MSET", Arguments(some), 7, Arguments(others), b"last"]
    assert encode(command) == driver((b"MSET", *some, 7, *others, b"last"))
    assert count_of(command) == 3 + len(some) + len(others)


def test_each_text_stands_behind_each_prefix() -> None:
    prefixed = Arguments([b"x", b"yy", b"z" * 5000], (b"a:", b"bb:"))
    keys = (b"a:x", b"bb:x", b"a:yy", b"bb:yy", b"a:" + b"z" * 5000, b"bb:" + b"z" * 5000)
    assert encode([b"DEL", prefixed]) == driver((b"DEL", *keys))
    assert count_of([prefixed]) == len(keys)


def test_texts_of_one_length_are_no_special_case() -> None:
    prefixed = Arguments([b"x", b"y"], (b"a:", b"b:"))
    assert encode([b"DEL", prefixed]) == driver((b"DEL", b"a:x", b"b:x", b"a:y", b"b:y"))


def test_of_no_texts_there_are_no_arguments() -> None:
    assert encode([b"DEL", Arguments([], (b"a:", b"b:")), Arguments([])]) == driver((b"DEL",))


def test_what_is_encoded_already_stays_as_it_is() -> None:
    assert encode(encode([b"GET", b"k"])) == encode(*reader(b"GET")(b"", [b"k"])) == driver((b"GET", b"k"))


def test_a_call_of_a_script_counts_its_keys() -> None:
    keys: Words = [b"k", Arguments([b"x", b"y"], (b"a:", b"b:"))]
    called = (b"EVALSHA", b"sha", 5, b"k", b"a:x", b"b:x", b"a:y", b"b:y", b"first", 7)
    assert script_call(b"sha", keys, [b"first", 7]) == driver(called)
