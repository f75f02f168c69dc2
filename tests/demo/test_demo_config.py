"""The demo's file: one, in the package and in config/, and fit for what the demo promises."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import pytest

from nsqdigest.config import Address
from nsqdigest.delivery.sinks.webhook import WebhookSinkSettings
from nsqdigest.demo.receiver import new_secret
from nsqdigest.demo.settings import Places, settings
from nsqdigest.demo.stage import GATHERED_S

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
NSQD = Address("127.0.0.1", 5000)
PLACES = Places(NSQD, "redis://127.0.0.1:5001/0", "http://127.0.0.1:5002/digests", new_secret(b"x" * 24))
DEMO = settings(PLACES)


def test_the_file_in_config_is_the_one_in_the_package() -> None:
    packaged = importlib.resources.files("nsqdigest.demo") / "demo.toml"
    assert (ROOT / "config" / "demo.toml").read_text(encoding="utf-8") == packaged.read_text(encoding="utf-8")


def test_its_addresses_are_those_of_the_demo() -> None:
    sink = DEMO.sinks["team"]
    assert isinstance(sink, WebhookSinkSettings)
    assert DEMO.nsq.nsqd_tcp_addresses == (NSQD,)
    assert (DEMO.redis.url, sink.url) == ("redis://127.0.0.1:5001/0", "http://127.0.0.1:5002/digests")
    assert sink.secrets


def test_the_only_advice_is_that_all_warnings_share_a_timeline_and_that_is_meant() -> None:
    assert [warning.path for warning in DEMO.warnings] == ["routes[1].timeline"]


def test_the_secret_of_the_receiver_shows_nowhere() -> None:
    assert PLACES.secret not in repr(PLACES) + repr(DEMO)


def test_no_event_waits_longer_than_the_demo_allows_for() -> None:
    used = {route.policy for route in DEMO.routes}
    assert all(DEMO.policies[name].maximum_delay_ms <= GATHERED_S * 1000 for name in used)
