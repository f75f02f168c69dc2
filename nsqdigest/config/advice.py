"""Advice: what is allowed, works, and is hardly ever meant. Each piece of it has the line that says what is meant.

A rule that finds a mistake stands in `rules`; `check`, `run` and the doctor show both. Advice is silent on what the
file writes on purpose: an option that it names, a text behind "= ".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nsqdigest.base.templates import Template
from nsqdigest.config.problems import Spot, show, toml
from nsqdigest.config.units import format_size

Values = dict[str, Any]

EPHEMERAL = "#ephemeral"
MOST_HELD_BYTES = 1 << 30

# Each is a whole value. The text of one that matches is compared as it stands.
_PATTERN_LIKE = re.compile(r"^~|^/[^/]+/[gimsux]*$|\.[*+].|^\.[*+]|\.\+$|^[*].|^\^")
_NEGATION = re.compile(r"!(?![=~]) *(\S.*)", re.DOTALL)
_ALTERNATIVES = re.compile(r"[\w.-]+(?: *([|,]) *[\w.-]+(?: *\1 *[\w.-]+)*)")
_CLASS = re.compile(r"([1-9])xx", re.IGNORECASE)
_RANGE = re.compile(r"([0-9]{1,15}) *(?:-|\u2013|\.\.) *([0-9]{1,15})")


def condition(text: str, spot: Spot) -> None:
    """Advises on a text of `match`, `urgent` or `cancel` that looks like more than a text."""
    if found := _advice_on(text):
        looks_like, remedy = found
        spot.warning(f"{show(text)} looks like {looks_like}", f"{remedy}; {show(f'= {text}')} is this text")


def _advice_on(text: str) -> tuple[str, str] | None:
    if _PATTERN_LIKE.search(text):
        pattern = "a pattern, of which only a * at the end has a meaning"
        return pattern, 'list the values, or write how they begin, "err*"'
    if found := _NEGATION.fullmatch(text):
        return "a negation", f"write {show(f'!= {found[1]}')}"
    if found := _ALTERNATIVES.fullmatch(text):
        return "several values", f"write {toml([each.strip() for each in text.split(found[1])])}"
    if found := _CLASS.fullmatch(text):
        first = int(found[1]) * 100
        return "a range of numbers", f'write ">= {first} and < {first + 100}"'
    if (found := _RANGE.fullmatch(text)) and int(found[1]) < int(found[2]):
        return "a range of numbers", f'write ">= {found[1]} and <= {found[2]}"'
    return None


def whole_file(
    nsq: Values, limits: Values, routes: Sequence[Values], policies: Mapping[str, Values], root: Spot
) -> None:
    """Advises on what several options say together."""
    _channel(nsq, root / "nsq" / "channel")
    _memory(nsq, limits, routes, root)
    for index, route in enumerate(routes):
        _route(route, root / "routes" / index)
    for name, policy in policies.items():
        _zone(policy, root / "policies" / name)


def _channel(nsq: Values, spot: Spot) -> None:
    if nsq.get("channel", "").endswith(EPHEMERAL):
        spot.warning(
            "nsqd drops this channel, and the events in it, whenever no daemon is connected",
            f'write channel = "{nsq["channel"].removesuffix(EPHEMERAL)}", unless these events may be lost',
        )


def _memory(nsq: Values, limits: Values, routes: Sequence[Values], root: Spot) -> None:
    """Looks at options that the file writes alone: with many topics the defaults hold more, and that is no choice."""
    spot = (root / "nsq").first_written("max_in_flight")
    if not spot.written and (root / "limits" / "event").written:
        spot = root / "limits" / "event"
    if not spot.written or "max_in_flight" not in nsq or "event_bytes" not in limits:
        return
    topics = len({route["topic"] for route in routes if "topic" in route}) or 1
    held_bytes = topics * nsq["max_in_flight"] * limits["event_bytes"]
    if held_bytes > MOST_HELD_BYTES:
        fits = max(1, MOST_HELD_BYTES // (topics * limits["event_bytes"]))
        several = f"{topics} topics times " if topics > 1 else ""
        spot.warning(
            f"lets a daemon hold {held_bytes / (1 << 30):,.1f} GiB of events: {several}max_in_flight "
            f"{nsq['max_in_flight']:,} times limits.event {format_size(limits['event_bytes'])}",
            f"write max_in_flight = {fits} or less, a smaller limits.event, or give the daemon this memory",
        )


def _route(route: Values, spot: Spot) -> None:
    if route.get("topic", "").endswith(EPHEMERAL):
        spot.first_written("topic").warning(
            "nsqd keeps this topic in memory alone, and drops it with its events whenever it has no channel",
            f'write topic = "{route["topic"].removesuffix(EPHEMERAL)}", unless these events may be lost',
        )
    if not route.get("key") or not route.get("timeline") or route.get("cancel"):
        return  # with cancel, a timeline for each key shows how it stands
    key, timeline = (set(Template.parse(route[option]).fields) for option in ("key", "timeline"))
    if key <= timeline:
        spot.first_written("key").warning(
            "has no field that timeline lacks: all events of a timeline have the same key, and only the newest is kept",
            'leave key out, or name what tells two events of a timeline apart, as key = "{id}"',
        )


def _zone(policy: Values, spot: Spot) -> None:
    """`at` and `quiet` are times of day of some place."""
    if (spot / "zone").written or (spot / "zone_default").written or "zone" not in policy:
        return  # zone_default alone is told of by the rules of a policy
    for option in ("at", "quiet"):
        if policy.get(option):
            (spot / option).warning(
                "goes by UTC: no zone is written", 'write zone = "Europe/Berlin" or the like; "UTC" if that is meant'
            )
            return
