"""Counts per group: exact also for records that the body has no room for, bounded, and the same from whatever pages."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.grouped import GroupedBuilder
from nsqdigest.store.record import StoredRecord
from support.delivering import HEAD

pytestmark = pytest.mark.unit

NAMES = Names("events", "user:42", "out")


def record(group: Any, length: int = 0) -> StoredRecord:
    return StoredRecord(b"k", 1, json.dumps({"g": group, "x": "x" * length}).encode())


def body(pages: list[list[StoredRecord]], limit_bytes: int) -> bytes:
    builder = GroupedBuilder(HEAD._replace(total=sum(map(len, pages))), NAMES, limit_bytes, ("g",))
    for page in pages:
        builder.add(page)
    return builder.body(1, 1)


def data(records: list[StoredRecord], limit_bytes: int = 1 << 20) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(body([records], limit_bytes))["data"]
    return parsed


def counts(digest: dict[str, Any]) -> dict[str, int]:
    return {group["group"]: group["count"] for group in digest["groups"]}


def test_each_group_has_the_number_of_its_records() -> None:
    digest = data([record(name) for name in "abacab"])
    assert counts(digest) == {"a": 3, "b": 2, "c": 1}
    assert [len(group["records"]) for group in digest["groups"]] == [3, 2, 1]


def test_the_count_is_of_all_records_also_those_that_are_not_shown() -> None:
    digest = data([record("ab"[number % 2], 100) for number in range(300)], 4_096)
    assert counts(digest) == {"a": 150, "b": 150}
    assert 10 < digest["shown"] == sum(len(group["records"]) for group in digest["groups"]) < 40


def test_a_group_of_which_no_record_is_shown_is_listed_with_its_count() -> None:
    digest = data([*(record("new", 100) for _ in range(100)), *(record("old") for _ in range(7))], 4_096)
    assert counts(digest) == {"new": 100, "old": 7}
    assert digest["groups"][1]["records"] == []


def test_such_groups_take_an_eighth_of_the_body_at_most_and_the_counts_tell_how_many_records_they_lack() -> None:
    records = [*(record("new", 100) for _ in range(100)), *(record(f"old {number}") for number in range(1_000))]
    whole = body([records], 8_192)
    digest = json.loads(whole)["data"]
    assert len(whole) <= 8_192
    listed = [group for group in digest["groups"] if not group["records"]]
    assert 5 < len(listed) < 30
    assert sum(len(json.dumps(group)) for group in listed) <= 8_192 // 8
    assert digest["total"] - sum(counts(digest).values()) == 1_000 - len(listed)
    assert digest["shown"] > 30


def test_a_name_as_long_as_an_event_leaves_the_records_their_room() -> None:
    records = [record("a", 100), *(record(f"{number}" * 60_000) for number in range(9)), record("a", 100)]
    assert counts(data(records, 4_096)) == {"a": 2}


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d" * 50, "e" * 500, None]), st.integers(0, 300)), max_size=60),
    st.integers(4_096, 9_000),
    st.integers(1, 60),
)
def test_counts_lengths_and_pages(chosen: list[tuple[Any, int]], limit_bytes: int, at_once: int) -> None:
    records = [record(group, length) for group, length in chosen]
    whole = body([records], limit_bytes)
    assert len(whole) <= limit_bytes
    digest = json.loads(whole)["data"]
    exact = Counter(group for group, _ in chosen)
    assert counts(digest).items() <= exact.items()
    assert digest["shown"] == sum(len(group["records"]) for group in digest["groups"])
    pages = [records[start : start + at_once] for start in range(0, len(records), at_once)]
    assert body(pages, limit_bytes) == whole
