"""The digest that `preview --sample` shows of a route: its events are such as the route takes and stores."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nsqdigest.delivery.bodies.sample import sample_of
from support.settings import ROUTE

pytestmark = pytest.mark.unit


def test_its_events_meet_the_conditions_and_have_nothing_that_the_route_drops() -> None:
    match = (("code", (">= 500",)), ("path", ("api.*", "web")), ("env", ("!= test",)), ("kind", ("error",)))
    route = replace(ROUTE, match=match, timeline="user:{user.mail}", drop=("user.mail", "kind"))
    data = json.loads(sample_of(route))["data"]
    assert data["timeline"] == "user:42"
    assert {json.dumps({**record["value"], "message": ""}) for record in data["records"]} == {
        json.dumps({"user": {}, "code": 500, "path": "api.1", "message": ""})
    }
