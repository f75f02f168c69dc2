"""One sentence on how a daemon is, for somebody who has just been woken up (pure): the worst first, and since when.

The health is no better than that of `/readyz`: what makes the daemon unready is a failure, what somebody should look at
is a trouble. Names are as the file and publishers wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nsqdigest.admin.views import Health, SinkView, StatusView, TopicView
from nsqdigest.backoff import State
from nsqdigest.base.moments import span
from nsqdigest.base.reasons import SinkState
from nsqdigest.base.words import counted, listed
from nsqdigest.delivery.sink_state import clock_text

LAG_S = 1.0
"""An event loop that is so late delays everything."""
LATE_S = 60.0
"""Events that are stored so long after they were published are behind."""
LOST_SHOWN_S = 3600.0
"""So long after it was found a loss of Redis is a trouble that somebody should look at."""
_OWN_WORDS = {"nsqlookupd": "is out of reach", "config": "was not reloaded", "descriptors": "are nearly used up"}
"""Of checks that no part of the view stands for."""
_OTHERS_SHOWN = 2
_NAMES_SHOWN = 4


class Trouble(NamedTuple):
    health: Health
    subject: str
    """Of what it is: "sink slack"."""
    text: str
    """What is wrong with it."""

    @property
    def sentence(self) -> str:
        return f"{self.subject[:1].upper()}{self.subject[1:]} {self.text}"


def verdict(view: StatusView) -> tuple[Health, str]:
    """`view`: all of it but these two."""
    if view.health is Health.DRAINING:
        in_flight = sum(topic.in_flight for topic in view.topics)
        sending = sum(sink.sending for sink in view.sinks)
        waits = f"{counted(in_flight, 'event')} in flight, {counted(sending, 'digest')} being sent"
        return Health.DRAINING, f"It drains, and then ends: {waits}"
    troubles = [*_troubles(view)]
    if not troubles:
        return Health.WELL, _well(view)
    worst, *others = sorted(troubles, key=lambda each: each.health is not Health.FAILING)
    if not others:
        return worst.health, f"{worst.sentence}; everything else is well"
    text = f"{worst.sentence}. Also: " + "; ".join(f"{each.subject} {each.text}" for each in others[:_OTHERS_SHOWN])
    if more := [each.subject for each in others[_OTHERS_SHOWN:]]:
        text += f"; and trouble with {_several(more, 'other')}"
    return worst.health, text


def _several(names: Sequence[str], what: str) -> str:
    """All of them, or the first and how many more."""
    more = len(names) - _NAMES_SHOWN
    return listed(names if more <= 1 else [*names[:_NAMES_SHOWN], counted(more, what)])


def _troubles(view: StatusView) -> Iterator[Trouble]:
    """Those of one health in the order in which somebody should look at them."""
    if view.store.health is not Health.WELL:
        yield Trouble(view.store.health, "Redis", _of_store(view))
    if view.store.lost_ms is not None and view.now_ms - view.store.lost_ms < LOST_SHOWN_S * 1000:
        yield Trouble(Health.TROUBLE, "Redis", _of_loss(view.store.lost_ms, view))
    for topic in view.topics:
        if topic.health is not Health.WELL and topic.paused_since_ms is None:
            yield Trouble(topic.health, f"topic {topic.name}", _of_topic(topic, view))
    for check in view.checks:
        if check.health is not Health.WELL and check.name in _OWN_WORDS:
            yield Trouble(check.health, check.name, f"{_OWN_WORDS[check.name]}: {check.detail}")
    for state in (SinkState.STOPPED, SinkState.REFUSING, SinkState.BEHIND, SinkState.DELIVERING):
        yield from _of_sinks(view, state)
    yield from _of_work(view)
    yield from _of_operators(view)
    for name, records in view.orphans.items():
        text = f"is not in the file: nobody delivers its {counted(records, 'record')}"
        yield Trouble(Health.TROUBLE, f"route {name}", text)


def _of_sinks(view: StatusView, state: SinkState) -> Iterator[Trouble]:
    for sink in view.sinks:
        if sink.state == state and sink.health is not Health.WELL:
            yield Trouble(sink.health, f"sink {sink.name}", _of_sink(sink, view.now_ms))


def _of_work(view: StatusView) -> Iterator[Trouble]:
    if view.event_loop_lag_s >= LAG_S:
        late = span(int(view.event_loop_lag_s * 1000))
        why = "too much work for one processor, or the machine stands still at times"
        yield Trouble(Health.TROUBLE, "the event loop", f"is {late} late: {why}")
    if view.message_age_s is not None and view.message_age_s >= LATE_S:
        late = span(int(view.message_age_s * 1000))
        yield Trouble(Health.TROUBLE, "intake", f"is behind: events are stored {late} after they were published")


def _of_operators(view: StatusView) -> Iterator[Trouble]:
    """What somebody paused, and perhaps forgot."""
    for topic in view.topics:
        if topic.paused_since_ms is not None:
            health = topic.health if topic.health is Health.FAILING else Health.TROUBLE
            waits = f"; {counted(topic.depth, 'event')} wait in nsqd" if topic.depth else ""
            yield Trouble(
                health, f"topic {topic.name}", f"is paused since {_clock(topic.paused_since_ms, view)}{waits}"
            )
    for route in view.routes:
        if route.paused_since_ms is not None:
            waits = f"; {_waiting(route.overdue, route.oldest_due_s)}" if route.overdue else ""
            text = f"is paused since {_clock(route.paused_since_ms, view)}{waits}"
            yield Trouble(Health.TROUBLE, f"route {route.name}", text)
    yield from _of_sinks(view, SinkState.PAUSED)


def _of_store(view: StatusView) -> str:
    if view.store.failing_since_ms is None:
        return "was not reached yet: nothing is stored or delivered, and events wait in nsqd"
    failing = span(max(0, view.now_ms - view.store.failing_since_ms))
    since = f"since {_clock(view.store.failing_since_ms, view)} ({failing})"
    return f"does not answer {since}: nothing is stored or delivered, and events wait in nsqd"


def _of_loss(lost_ms: int, view: StatusView) -> str:
    at, records = _clock(lost_ms, view), view.store.lost_records
    lost = f"lost up to {counted(records, 'record')}" if records else "lost what waited in it"
    what = f"was emptied, and {lost}" if view.store.lost_partitions else lost
    return f"{what} (found {at}): see store.data_lost in the log, and NsqdigestRecordsLost in the runbook"


def _of_topic(topic: TopicView, view: StatusView) -> str:
    if topic.health is Health.FAILING:
        return f"is cut off: {topic.detail}"
    probe = ""
    if topic.backoff.next_probe_ms is not None:
        probe = f", the next probe comes in {span(max(0, topic.backoff.next_probe_ms - view.now_ms))}"
    word = "probes with single events" if topic.backoff.state == State.PROBING else "takes nothing in"
    return f"{word} after failures (level {topic.backoff.level}){probe}"


def _of_sink(sink: SinkView, now_ms: int) -> str:
    since = "" if sink.since_ms is None else f" since {clock_text(sink.since_ms / 1000, now_ms / 1000)}"
    why = f": {sink.why}" if sink.why else ""
    waits = f"; {_waiting(sink.waits, sink.oldest_due_s)}" if sink.waits else ""
    buried = f"; {counted(sink.buried, 'digest')} given up" if sink.buried else ""
    if sink.state == SinkState.STOPPED:
        return f"is stopped{since}{why}{waits}: its receiver is gone, and it stays stopped until a reload"
    if sink.state == SinkState.REFUSING:
        return f"refuses{since}{why}{buried}{waits}"
    if sink.state == SinkState.BEHIND:
        return f"is behind{since}{waits}"
    if sink.state == SinkState.PAUSED:
        return f"is paused{since}{waits}"
    return f"is {sink.detail}"


def _waiting(count: int, oldest_s: float) -> str:
    oldest = f", the oldest for {span(int(oldest_s * 1000))}" if oldest_s >= 1 else ""
    return f"{counted(count, 'digest')} {'waits' if count == 1 else 'wait'}{oldest}"


def _clock(at_ms: int, view: StatusView) -> str:
    return clock_text(at_ms / 1000, view.now_ms / 1000)


def _well(view: StatusView) -> str:
    rates = view.rates
    if rates.events_in or rates.digests_out:
        does = f"{_per_s(rates.events_in)} events in and {_per_s(rates.digests_out)} digests out a second"
    else:
        does = "nothing came in the last minute"
    waits = sum(route.waiting for route in view.routes)
    text = f"All is well: {does}, {counted(waits, 'timeline')} {'waits' if waits == 1 else 'wait'}"
    if quiet := [route.name for route in view.routes if route.quiet_until_ms is not None]:
        text += f"; quiet hours hold {_several(quiet, 'other')}"
    if view.dead_digests:
        text += f"; {counted(view.dead_digests, 'digest')} in the dead list"
    differing = sum(daemon.differs for daemon in view.daemons)
    if differing:
        has = "has" if differing == 1 else "have"
        text += f"; {differing:,} of {counted(len(view.daemons), 'daemon')} {has} another file"
    return text


def _per_s(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
