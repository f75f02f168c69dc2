"""Whatever nsqlookupds answer and connections do, in any order: what is known is what the rules say."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqdigest.base.errors import LookupFailed
from nsqdigest.config import Address
from nsqdigest.nsq.directory import FORGET_AFTER_ANSWERS, MOST_PRODUCERS, Directory, read_answer

pytestmark = pytest.mark.property

ADDRESSES = [Address("10.0.0.1", port) for port in range(1, 6)]
FIXED = ADDRESSES[:2]
LOOKUPDS = ["a:4161", "b:4161", "c:4161"]
named = st.frozensets(st.sampled_from(ADDRESSES))


class Model(RuleBasedStateMachine):
    """Beside the directory, the whole history: what each nsqlookupd answered, and what is connected."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Directory(FIXED, 0.0)
        self.history: dict[str, list[frozenset[Address]]] = {lookupd: [] for lookupd in LOOKUPDS}
        self.links: set[Address] = set(FIXED)
        self.connected: set[Address] = set()

    def sources(self, address: Address) -> set[str]:
        """Those that named it in one of their last answers."""
        return {
            lookupd
            for lookupd, answers in self.history.items()
            if any(address in answer for answer in answers[-FORGET_AFTER_ANSWERS:])
        }

    @rule(lookupd=st.sampled_from(LOOKUPDS), addresses=named)
    def answered(self, lookupd: str, addresses: frozenset[Address]) -> None:
        before = set(self.links)
        change = self.directory.answered(lookupd, addresses, set(self.connected), 1.0)
        self.history[lookupd].append(addresses)
        assert set(change.found) == addresses - before
        assert set(change.returned) <= addresses & before
        assert not set(change.forgotten) & self.connected, "a live connection was dropped"
        self.links |= set(change.found)
        self.links -= set(change.forgotten)

    @precondition(lambda self: self.links - self.connected)
    @rule(data=st.data())
    def connects(self, data: st.DataObject) -> None:
        self.connected.add(data.draw(st.sampled_from(sorted(self.links - self.connected))))

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def breaks(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.connected)))
        self.connected.remove(address)
        if self.directory.forget_if_unsourced(address):
            self.links.remove(address)

    @invariant()
    def what_is_known_is_what_the_rules_say(self) -> None:
        expected = {
            address for address in ADDRESSES if address in FIXED or address in self.connected or self.sources(address)
        }
        assert set(self.directory.addresses) == self.links == expected

    @invariant()
    def sources_are_those_that_named_it_lately(self) -> None:
        for address in self.directory.addresses:
            of_file = {"file"} if address in FIXED else set()
            assert set(self.directory.entry(address).sources) == of_file | self.sources(address)


TestModel = Model.TestCase

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["producers", "data", "broadcast_address", "tcp_port", "status_code", "message", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)
statuses = st.sampled_from([200, 204, 301, 404, 500])


@given(statuses, st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_a_failure(status: int, body: bytes) -> None:
    with contextlib.suppress(LookupFailed):
        read_answer(status, body, None)


@given(statuses, json_values)
def test_any_json_is_an_answer_or_a_failure(status: int, value: Any) -> None:
    with contextlib.suppress(LookupFailed):
        read_answer(status, json.dumps(value).encode(), None)


@given(st.lists(st.tuples(st.text(max_size=40), st.integers(-5, 70_000)), max_size=20))
def test_every_address_that_is_taken_can_be_one(producers: list[tuple[str, int]]) -> None:
    body = json.dumps({"producers": [{"broadcast_address": host, "tcp_port": port} for host, port in producers]})
    answer = read_answer(200, body.encode("utf-8", "replace"), None)
    assert len(answer.addresses) + len(answer.unusable) <= len(producers) <= MOST_PRODUCERS
    for host, port in answer.addresses:
        assert 1 <= port <= 65535
        assert host
        assert not set(host) & set("[]/@ \n\r\t\0")
