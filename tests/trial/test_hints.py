"""Which field of an event is probably meant by one that it does not have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqdigest.trial.hints import of_missing

pytestmark = pytest.mark.unit


def hint(event: dict[str, Any], *fields: str) -> list[str]:
    return list(of_missing(json.dumps(event).encode(), fields))


@pytest.mark.parametrize(
    ("event", "field", "meant"),
    [
        ({"usr": 1}, "user", "usr"),
        ({"User": 1}, "user", "User"),
        ({"user_id": 1}, "user.id", "user_id"),
        ({"user": {"ID": 1}}, "user.id", "user.ID"),
        ({"user": {"uid": 1}, "id": 2}, "user.id", "user.uid"),  # in the same object before any other
        ({"a": {"user": {"id": 1}}}, "user.id", "a.user.id"),
        ({"meta": {"at": 1}}, "at", "meta.at"),
        ({"kind": 1, "order": {"id": 1}}, "order.kind", "kind"),
    ],
)
def test_one_that_is_spelt_alike_or_stands_elsewhere(event: dict[str, Any], field: str, meant: str) -> None:
    assert hint(event, field) == [f'it has no "{field}"; did you mean "{meant}"?']


def test_where_several_may_be_meant_none_is_named() -> None:
    assert hint({"a": {"at": 1}, "b": {"at": 2}}, "at") == ["it has the fields a, b"]


def test_what_it_has_is_named_where_nothing_is_alike() -> None:
    assert hint({"kind": 1}, "id") == ["it has the field kind"]
    assert hint({}, "id") == ["it has no fields"]
    assert hint({"id": 1}, "id") == []
    assert hint({"id": 1, "b": 1}, "id", "usr", "usr") == ["it has the fields id, b"]


def test_of_a_big_event_only_the_first_fields_are_looked_at() -> None:
    assert hint({f"f{number}": 0 for number in range(199)} | {"usr": 1}, "user") != []
    event = {"o": {f"f{number}": 0 for number in range(199)} | {"usr": 1}}
    assert "o.usr" not in hint(event, "o.user")[0]
    del event["o"]["f0"]
    assert hint(event, "o.user") == ['it has no "o.user"; did you mean "o.usr"?']
