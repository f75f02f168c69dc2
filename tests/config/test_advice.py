"""What `check` advises on although it is allowed, and what it leaves alone."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.config import advice as config_advice
from nsqdigest.config import parse_text
from nsqdigest.delivery.sinks.table import KINDS
from support.daemon import toml
from support.tree import ROOT

pytestmark = pytest.mark.unit

SINK = {"sinks.out": {"type": "log", "path": "/tmp/out.log"}}
NSQ = {"nsqd_tcp_addresses": ["h:4150"]}
ROUTE = {"name": "r", "topic": "events", "timeline": "{service}", "sink": "out"}
ZONE = "goes by UTC"


def advice(route: dict[str, Any] | None = None, **tables: dict[str, Any]) -> list[tuple[str, str]]:
    """The path and the whole text of each piece."""
    merged: dict[str, dict[str, Any]] = {"nsq": NSQ, **SINK}
    for underscored, table in tables.items():
        name = underscored.replace("_", ".")
        merged[name] = {**merged.get(name, {}), **table}
    config = parse_text(toml(merged, [{**ROUTE, **(route or {})}]), "f", {}, KINDS)
    return [(each.path, f"{each.problem}; {each.remedy}") for each in config.warnings]


# -- keys


@pytest.mark.parametrize(
    ("timeline", "key"), [("{service}", "{service}"), ("{a.b}-{c}", "{c}/{a.b}"), ("{a}{b}", "{b}")]
)
def test_a_key_whose_fields_are_all_in_the_timeline_keeps_one_record(timeline: str, key: str) -> None:
    ((path, text),) = advice({"timeline": timeline, "key": key})
    assert path == "routes[0].key"
    assert "only the newest is kept" in text
    assert "leave key out, or name what tells two events of a timeline apart" in text


@pytest.mark.parametrize(
    "route",
    [
        {"timeline": "{service}", "key": "{id}"},
        {"timeline": "{service}", "key": "{service}{id}"},
        {"timeline": "{service}"},
        {"timeline": "{id}", "key": "{id}", "cancel": {"status": "resolved"}},
    ],
)
def test_a_key_that_tells_events_apart_gets_none(route: dict[str, Any]) -> None:
    assert advice(route) == []


# -- conditions


@pytest.mark.parametrize("option", ["match", "urgent", "cancel"])
@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("!error", 'write "!= error"'),
        ("! error", 'write "!= error"'),
        ("a|b", 'write ["a", "b"]'),
        ("error, fatal", 'write ["error", "fatal"]'),
        ("error,fatal,panic", 'write ["error", "fatal", "panic"]'),
        ("5xx", 'write ">= 500 and < 600"'),
        ("4XX", 'write ">= 400 and < 500"'),
        ("400-499", 'write ">= 400 and <= 499"'),
        ("400..499", 'write ">= 400 and <= 499"'),
        ("^err", 'write how they begin, "err*"'),
    ],
)
def test_a_text_that_looks_like_more_gets_the_condition_that_is_meant(option: str, value: str, remedy: str) -> None:
    ((path, text),) = advice({"key": "{id}", option: {"field": value}})
    assert path == f"routes[0].{option}.field"
    assert remedy in text
    assert text.endswith(f'; "= {value}" is this text')


@pytest.mark.parametrize(
    "value",
    [
        *("error", "!= error", "err*", ">= 400 and < 500", "= a|b", "= 5xx", "= !x", "2026-05", "499-400", "a b"),
        *("a-b", "xx", "10.0.0.1", "Disk full, again and again", "user@example.com", "!", 5, True, ["a", "b"]),
    ],
)
def test_a_value_that_is_one_gets_none(value: Any) -> None:
    assert advice({"match": {"field": value}}) == []


# -- nsqd


def test_what_nsqd_drops_by_itself_is_told() -> None:
    ((path, text),) = advice(nsq={"channel": "digest#ephemeral"})
    assert (path, "whenever no daemon is connected" in text) == ("nsq.channel", True)
    assert 'write channel = "digest"' in text
    ((path, text),) = advice({"topic": "events#ephemeral"})
    assert (path, "whenever it has no channel" in text) == ("routes[0].topic", True)
    assert 'write topic = "events"' in text


def test_memory_beyond_a_gibibyte_is_told_if_the_file_asks_for_it() -> None:
    ((path, text),) = advice(nsq={"max_in_flight": 1_000_000})
    assert path == "nsq.max_in_flight"
    assert "61.0 GiB of events: max_in_flight 1,000,000 times limits.event 64KiB" in text
    assert "write max_in_flight = 16384 or less" in text
    ((path, _),) = advice(limits={"event": "1MiB"})
    assert path == "limits.event"
    assert advice(nsq={"max_in_flight": 16_384}) == []


def test_the_http_port_of_nsqd_is_no_nsqlookupd() -> None:
    ((path, text),) = advice(nsq={"lookupd_http_addresses": ["h:4151"]})
    assert path == "nsq.lookupd_http_addresses[0]"
    assert "an nsqd stands in nsqd_tcp_addresses" in text


# -- times of day


@pytest.mark.parametrize("option", [{"at": ["0 9 * * *"]}, {"quiet": "22:00-07:00"}])
def test_times_of_day_without_a_zone_go_by_utc(option: dict[str, Any]) -> None:
    ((path, text),) = advice(policies_default=option)
    assert path == f"policies.default.{next(iter(option))}"
    assert ZONE in text
    for zone in ("UTC", "Europe/Berlin", "{user.zone}"):
        assert advice(policies_default={**option, "zone": zone}) == []


# -- no false advice


BLOCK = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in PAGES
    for number, text in enumerate(BLOCK.findall(page.read_text("utf-8")))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_of_the_pages_get_none(text: str) -> None:
    tree = tomllib.loads(text)
    for route in tree.get("routes", [{}]):
        route.pop("sink", None)
        route.pop("policy", None)
        assert advice(route) == []
    for policy in tree.get("policies", {}).values():
        assert [each for each in advice(policies_default=policy) if ZONE in each[1]] == []
    if "nsq" in tree:
        nsq = {key: value for key, value in tree["nsq"].items() if key in ("channel", "max_in_flight")}
        assert advice(nsq=nsq) == []


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.toml")), ids=lambda path: path.name)
def test_the_files_of_config_get_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warnings() -> tuple[str, ...]:
        return parse_text(path.read_text("utf-8"), str(path), {}, KINDS, without_secrets=True).warnings

    with_advice = warnings()
    for name in ("condition", "whole_file"):
        monkeypatch.setattr(config_advice, name, lambda *_: None)
    assert with_advice == warnings()
