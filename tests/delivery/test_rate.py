"""`rate` of a webhook: how it is written, what its formats need, and which outlet it gets."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.errors import ConfigError
from nsqdigest.config import parse_text
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.paced import PacedOutlet, outlet_of
from nsqdigest.delivery.sinks.table import KINDS
from support.daemon import toml
from support.delivering import ToldSink
from support.settings import HOOK, SINK

pytestmark = pytest.mark.unit


def spacing_s(**options: Any) -> float:
    sink = {"type": "webhook", "url": "http://127.0.0.1:1/x", **options}
    tables: dict[str, dict[str, Any]] = {"nsq": {"nsqd_tcp_addresses": ["127.0.0.1:4150"]}, "sinks.hook": sink}
    routes = [{"topic": "t", "timeline": "{x}", "sink": "hook"}]
    return parse_text(toml(tables, routes), "f.toml", {}, KINDS).sinks["hook"].spacing_s


@pytest.mark.parametrize(
    ("options", "s"),
    [
        ({}, 0.0),
        ({"rate": "1/s"}, 1.0),
        ({"rate": "4/s"}, 0.25),
        ({"rate": "30/m"}, 2.0),
        ({"rate": "1/h"}, 3600.0),
        ({"rate": "none"}, 0.0),
        ({"format": "slack"}, 1.0),
        ({"format": "slack", "rate": ""}, 1.0),
        ({"format": "slack", "rate": "none"}, 0.0),
        ({"format": "slack", "rate": "30/m"}, 2.0),
        ({"format": "teams"}, 0.0),
    ],
)
def test_the_spacing_of_posts(options: dict[str, Any], s: float) -> None:
    assert spacing_s(**options) == s


LIKE = 'write one like "1/s", "30/m" or "500/h"'


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (1, '1 is not a rate; write "1/s"'),
        (0, '0 is not a rate; write "none"'),
        ("1", f'"1" is not a rate; {LIKE}'),
        ("1s", '"1s" is not a rate; write "1/s"'),
        ("1 / s", '"1 / s" is not a rate; write "1/s"'),
        ("1 per second", '"1 per second" is not a rate; write "1/s"'),
        ("30/min", '"30/min" is not a rate; write "30/m"'),
        ("500 an hour", '"500 an hour" is not a rate; write "500/h"'),
        ("0/s", '"0/s" would never post anything; write "none" for no limit, or nsqdigest pause sink NAME'),
        ("1001/s", '"1001/s" is more than 1000 a second; write "none"'),
        ("-1/s", f'"-1/s" is not a rate; {LIKE}'),
        (True, 'true is not text; write "true"'),
    ],
)
def test_mistakes_have_a_remedy(written: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spacing_s(rate=written)
    assert problem in str(caught.value)


def test_a_sink_without_a_rate_has_the_plain_outlet() -> None:
    controller = Controller(8, Curve(1.0, 10.0, jitter="none"), min)
    assert type(outlet_of(SINK, ToldSink(), controller)) is Outlet
    assert type(outlet_of(HOOK, ToldSink(), controller)) is Outlet
    assert type(outlet_of(replace(HOOK, own_spacing_s=1.0), ToldSink(), controller)) is PacedOutlet


async def test_one_that_takes_the_place_of_another_keeps_its_pace() -> None:
    """Otherwise a reload would post twice within the spacing."""
    settings = replace(HOOK, own_spacing_s=60.0)
    before, after = (outlet_of(settings, ToldSink(), Controller(8, Curve(1.0, 8.0), min)) for _ in range(2))
    assert isinstance(before, PacedOutlet)
    before._next_s = before._room_at_s = time.monotonic() + 60.0
    assert (before.room, after.room) == (0, 1)
    after.follow(before)
    assert after.room == 0
