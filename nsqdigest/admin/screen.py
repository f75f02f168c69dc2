"""A daemon's status on one screen of a terminal (pure): the verdict first, then what it rests on.

Invariants:
- Nothing of it is wider than the terminal. At 44 columns a row of a table becomes a block of lines.
- Names and details are printable text: whatever a publisher, a receiver or another daemon wrote, it is no command to
  the terminal.
- What is in trouble comes first in its table, so that it is seen where the screen is too short.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar

from nsqdigest.admin.views import Health, SinkView, StatusView, TopicView
from nsqdigest.base.moments import instant, span
from nsqdigest.base.screen import BOLD, DIM, GREEN, RED, YELLOW, Rows, painted, table, wrapped
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.delivery.sink_state import clock_text

_PAINTS = {
    Health.WELL: f"{BOLD};{GREEN}", Health.TROUBLE: f"{BOLD};{YELLOW}", Health.FAILING: f"{BOLD};{RED}",
    Health.DRAINING: f"{BOLD};{YELLOW}",
}  # fmt: skip
_MOST_CONNECTIONS = 8
_NARROW = 60
"""Columns; there only the connections in trouble are listed."""
_LONGEST_NAME = 60
_LONGEST_DETAIL = 200

T = TypeVar("T", TopicView, SinkView)


class Paper(NamedTuple):
    """What it is written on. `width`: in columns, 0: however wide."""

    width: int
    colour: bool = False


def lines(view: StatusView, paper: Paper) -> Iterator[str]:
    for line in wrapped(_text(view.verdict, 0), "", "", paper.width):
        yield painted(line, _PAINTS[view.health], paper.colour)
    yield ""
    yield from _topics(view, paper)
    yield from _connections(view, paper)
    yield from _routes(view, paper)
    yield from _sinks(view, paper)
    yield from _daemons(view, paper)
    for name, text in _facts(view):
        yield from wrapped(text, f"{name:<10}", " " * 10, paper.width)


# -- tables


def _topics(view: StatusView, paper: Paper) -> Iterator[str]:
    rows = [
        (
            _text(topic.name),
            _topic_state(topic, view.now_ms),
            _rate(topic.received_per_s),
            f"{topic.in_flight:,}/{topic.max_in_flight:,}",
            "?" if topic.depth is None else f"{topic.depth:,}",
            f"{sum(each.is_connected for each in topic.connections):,} of {len(topic.connections):,}",
        )
        for topic in _worst_first(view.topics)
    ]
    headings = ("topic", "state", "in/s", "in flight", "behind", "nsqds")
    yield from _section(headings, rows, paper, right={2, 3, 4}, flexible={0, 1})


def _topic_state(topic: TopicView, now_ms: int) -> str:
    if topic.paused_since_ms is not None:
        return f"paused since {_clock(topic.paused_since_ms, now_ms)}"
    if topic.health is Health.FAILING:
        return _text(topic.detail, _LONGEST_DETAIL)
    state, level = topic.backoff.state, topic.backoff.level
    text = f"{state}, level {level}" if level else state
    if topic.backoff.next_probe_ms is not None:
        text += f", probe in {span(max(0, topic.backoff.next_probe_ms - now_ms))}"
    return f"{text}, starved" if topic.is_starved else text


def _connections(view: StatusView, paper: Paper) -> Iterator[str]:
    found = [(each, topic.name) for topic in view.topics for each in topic.connections]
    shows_all = len(found) <= _MOST_CONNECTIONS and not 0 < paper.width < _NARROW
    shown = found if shows_all else [each for each in found if not each[0].is_connected]
    rows = [
        (
            _text(each.nsqd),
            _text(topic),
            f"{each.rdy:,}" if each.is_connected else "not connected",
            f"{each.in_flight:,}",
            _text(", ".join(each.sources), _LONGEST_DETAIL),
        )
        for each, topic in shown[:_MOST_CONNECTIONS]
    ]
    if rows:
        headings = ("nsqd", "topic", "rdy", "in flight", "named by")
        yield from _section(headings, rows, paper, right={2, 3}, flexible={0, 1, 4}, ends=False)
    if len(found) > len(rows):
        yield counted(len(found) - len(rows), "connection" if not rows else "more connection")
    if found:
        yield ""


def _routes(view: StatusView, paper: Paper) -> Iterator[str]:
    rows = [
        (
            _text(route.name),
            _text(route.sink),
            f"{route.waiting + route.leased:,}",
            f"{route.open_records:,}",
            f"{route.overdue:,}",
            _age(route.oldest_due_s),
            ", ".join(
                [
                    *([f"paused since {_clock(route.paused_since_ms, view.now_ms)}"] if route.paused_since_ms else []),
                    *([f"quiet until {_clock(route.quiet_until_ms, view.now_ms)}"] if route.quiet_until_ms else []),
                    *(f"{count:,} {_HELD.get(kind, _text(kind))}" for kind, count in sorted(route.held.items())),
                ]
            ),
        )
        for route in sorted(view.routes, key=lambda each: each.paused_since_ms is None)
    ]
    headings = ("route", "sink", "timelines", "records", "due", "oldest", "held back")
    yield from _section(headings, rows, paper, right={2, 3, 4, 5}, flexible={0, 1, 6})


_HELD = {"mute": "muted", "snooze": "snoozed"}


def _sinks(view: StatusView, paper: Paper) -> Iterator[str]:
    rows = [
        (
            _text(sink.name),
            _sink_state(sink, view.now_ms),
            _rate(sink.delivered_per_s),
            f"{sink.waits:,}" + (f" ({_age(sink.oldest_due_s)})" if sink.oldest_due_s >= 1 else ""),
            f"{sink.dead:,}",
            "none yet" if sink.last_delivery_ms is None else f"{_ago(sink.last_delivery_ms, view.now_ms)}",
        )
        for sink in _worst_first(view.sinks)
    ]
    headings = ("sink", "state", "out/s", "waiting", "dead", "last delivery")
    yield from _section(headings, rows, paper, right={2, 3, 4}, flexible={0, 1})


def _sink_state(sink: SinkView, now_ms: int) -> str:
    since = "" if sink.since_ms is None else f" since {_clock(sink.since_ms, now_ms)}"
    why = f" ({_text(sink.why, _LONGEST_DETAIL)})" if sink.why and sink.health is not Health.WELL else ""
    probe = ""
    if sink.backoff.next_probe_ms is not None:
        probe = f", probe in {span(max(0, sink.backoff.next_probe_ms - now_ms))}"
    return f"{_text(sink.state)}{why}{since}{probe}"


def _daemons(view: StatusView, paper: Paper) -> Iterator[str]:
    if len(view.daemons) < 2:
        return
    rows = [
        (
            _text(f"{daemon.host}, pid {daemon.pid}"),
            _text(daemon.version),
            span(max(0, view.now_ms - daemon.started_ms)),
            "this one" if daemon.is_this else _ago(daemon.seen_ms, view.now_ms),
            "another file" if daemon.differs else _text(daemon.config_hash),
        )
        for daemon in sorted(view.daemons, key=lambda each: (not each.is_this, not each.differs))
    ]
    yield from _section(("daemon", "version", "up", "seen", "file"), rows, paper, flexible={0, 4})


def _section(
    headings: Sequence[str],
    rows: Rows,
    paper: Paper,
    *,
    right: Collection[int] = (),
    flexible: Collection[int] = (),
    ends: bool = True,
) -> Iterator[str]:
    if not rows:
        return
    heading, *found = table(headings, rows, right=right, flexible=flexible, width=paper.width)
    if heading.startswith(f"{headings[0]} "):
        yield painted(heading, DIM, paper.colour)
        yield from found
    else:
        named = [(f"{headings[0]} {row[0]}", *row[1:]) for row in rows]
        yield from table(headings, named, right=right, flexible=flexible, width=paper.width)
    if ends:
        yield ""


# -- lines


def _facts(view: StatusView) -> Iterator[tuple[str, str]]:
    rates = view.rates
    intake = f"{_rate(rates.events_in)} events in and {_rate(rates.events_stored)} stored a second"
    if view.message_age_s is not None:
        intake += f", {_age(view.message_age_s, '0 ms')} after they were published"
    if rates.dead_letters:
        intake += f"; {_rate(rates.dead_letters)} dead letters a second"
    yield "intake", intake
    delivery = f"{_rate(rates.digests_out)} digests out a second with {_rate(rates.records_out)} records"
    if view.dead_digests:
        delivery += f"; {counted(view.dead_digests, 'digest')} in the dead list"
    yield "delivery", delivery
    store = view.store
    yield "redis", _text(f"{store.redis}, {store.version or 'version unknown'}: {store.detail}", _LONGEST_DETAIL)
    for name, records in view.orphans.items():
        yield "orphan", f"{counted(records, 'record')} of route {_text(name)}, which the file does not have"
    loop = f"the event loop is {_age(view.event_loop_lag_s, '0 ms')} late at most"
    reloaded = "" if view.reloaded_ms is None else f", file of {_ago(view.reloaded_ms, view.now_ms)}"
    yield "daemon", f"{view.version}, up {span(max(0, view.now_ms - view.started_ms))}{reloaded}; {loop}"
    yield "file", f"{_text(view.config, _LONGEST_DETAIL)} ({_text(view.config_hash)})"
    yield "as of", instant(view.now_ms)


# -- words


def _text(text: str, most: int = _LONGEST_NAME) -> str:
    return printable(text, most)


def _worst_first(views: Sequence[T]) -> list[T]:
    order = [Health.FAILING, Health.TROUBLE]
    return sorted(views, key=lambda each: order.index(each.health) if each.health in order else len(order))


def _rate(per_s: float) -> str:
    if 0 < per_s < 0.05:
        return "<0.1"
    return f"{per_s:,.0f}" if per_s >= 10 or not per_s else f"{per_s:.1f}"


def _age(seconds: float, none: str = "") -> str:
    return span(int(seconds * 1000)) if seconds >= 0.001 else none


def _ago(at_ms: int, now_ms: int) -> str:
    return f"{span(now_ms - at_ms)} ago" if now_ms - at_ms >= 1000 else "just now"


def _clock(at_ms: int, now_ms: int) -> str:
    return clock_text(at_ms / 1000, now_ms / 1000)
