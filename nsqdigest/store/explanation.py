"""Why a timeline goes out when it goes out, with the arithmetic (pure).

Redis holds base, bound and the number of records, and nothing of where they came from. So their origin is worked out
backwards from the policy, and named only where it fits what stands there: an operator, a retry, a claim that was put
back, or another policy may have set them.

Invariants:
- `due_ms` is the instant from which on a daemon may take the timeline: what `claim` does, while nothing else changes.
  It is in the past where nobody has taken it since. None: that cannot be said.
- Texts hold no instants but the sentence: each reason has its own, for whoever shows it in some zone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.backoff import tripled
from nsqdigest.base.local_time import is_zone
from nsqdigest.base.moments import format_duration, instant, span, until
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted, listed
from nsqdigest.store.head import opened_of
from nsqdigest.store.listing import State
from nsqdigest.store.route import orphan_remedy
from nsqdigest.store.schedule import EXEMPT_MS, Plan, due_ms

if TYPE_CHECKING:
    from nsqdigest.config import Policy, SinkSettings
    from nsqdigest.store.head import Head
    from nsqdigest.store.holds import Hold
    from nsqdigest.store.inspection import Known

_SNOOZE = "snooze"


class Terms(NamedTuple):
    """What the file says of a timeline's route."""

    policy: Policy
    sink: SinkSettings


class Reason(NamedTuple):
    text: str
    at_ms: int | None = None


class Explanation(NamedTuple):
    sentence: str
    due_ms: int | None
    reasons: tuple[Reason, ...]


class _Step(NamedTuple):
    """One on the way to the instant at which it is due."""

    text: str
    at_ms: int
    cause: str = ""
    """For the sentence "It goes out in 5m, …": the last one has the last word."""


def _in_its_zone(known: Known, terms: Terms) -> Terms:
    """As if the file named the timeline's own zone."""
    policy = terms.policy
    if not policy.is_zoned:
        return terms
    zone = known.zone if is_zone(known.zone) else policy.zone_default
    return terms._replace(policy=replace(policy, zone=zone))


def explain(known: Known, terms: Terms | None, hold: Hold | None = None, obstacles: Sequence[str] = ()) -> Explanation:
    """`terms`: None of an orphan. `obstacles`: what keeps daemons from taking what is due, as far as the caller knows:
    "sink hook is paused"."""
    if terms is None:
        sentence = f'Nobody delivers it: the file has no route "{printable(known.place.route)}".'
        return Explanation(sentence, None, (Reason(orphan_remedy(printable(known.place.route))),))
    if known.state is None:
        sentence = "It neither waits nor is delivered: the upkeep of a daemon mends that within a quarter of a lease."
        return Explanation(sentence, None, ())
    if known.state is State.LEASED:
        return _leased(known)
    terms = _in_its_zone(known, terms)
    plan = Plan(terms.policy)
    at_ms, steps = _due_ms(known, plan), [*_steps(known, terms, plan)]
    for step in _held_back(at_ms, known, terms.policy, plan, hold):
        steps.append(step)
        at_ms = step.at_ms
    reasons = [Reason(step.text, step.at_ms) for step in steps]
    if hold is not None and hold.kind != _SNOOZE:
        reasons.append(Reason(f"muted by {printable(hold.by)}: events that come before are not kept", hold.until_ms))
    if at_ms <= known.now_ms:
        reasons += [Reason(obstacle) for obstacle in obstacles]
    cause = next((step.cause for step in reversed(steps) if step.cause), "")
    return Explanation(_sentence(known, at_ms, cause, obstacles), at_ms, tuple(reasons))


def _sentence(known: Known, at_ms: int, cause: str, obstacles: Sequence[str]) -> str:
    when, because = f"{until(at_ms, known.now_ms)} ({instant(at_ms)})", f", {cause}" if cause else ""
    if known.state is State.IDLE:
        return f"Nothing waits in it; it is forgotten {when}. What comes before goes out then at the earliest."
    if at_ms > known.now_ms:
        return f"It goes out {when}{because}."
    late_ms = known.now_ms - at_ms
    due = f"has been due for {span(late_ms)} (since {instant(at_ms)})" if late_ms >= 1000 else "is due now"
    if obstacles:
        return f"It {due}{because}, and is not delivered: {listed(obstacles)}."
    return f"It {due}{because}: the next daemon that has room takes it."


def _leased(known: Known) -> Explanation:
    digest = known.digest
    what = "it" if digest is None else f"digest {digest.id} of {counted(digest.total, 'record')}"
    reasons = [Reason("the lease ends: unless it is renewed, the timeline is due again then", known.at_ms)]
    if known.records:
        reasons.append(Reason(f"{counted(known.records, 'record')} came since, for the digest after it"))
    if known.is_urgent_next:
        reasons.append(Reason("one of them is urgent: that digest follows at once"))
    sentence = f"A daemon is delivering {what}; its lease ends {until(known.at_ms, known.now_ms)}."
    return Explanation(sentence, None, tuple(reasons))


# -- when it is due, and how that comes about


def _due_ms(known: Known, plan: Plan) -> int:
    """But for what holds it back then."""
    if known.bound_ms <= EXEMPT_MS:
        return known.now_ms
    return due_ms(known.base_ms, known.bound_ms, plan.increment_ms, known.records)


def _steps(known: Known, terms: Terms, plan: Plan) -> Iterator[_Step]:
    if known.bound_ms <= EXEMPT_MS:
        what = "an urgent event came, an operator flushed it, or it was sent again from the dead list"
        yield _Step(f"due at once, also in quiet hours: {what}", known.now_ms, "exempt from its policy")
    elif known.digest is not None:
        yield from _of_retry(known, known.digest, terms.sink)
    else:
        yield from _origin(known, terms.policy, plan)
        yield from _postponed(known, plan.increment_ms)


def _origin(known: Known, policy: Policy, plan: Plan) -> Iterator[_Step]:
    """Where base comes from, as far as that can be said."""
    base_ms, bound_ms, number = known.base_ms, known.bound_ms, known.iteration
    after = f"digest {number:,}" if number else "its first event"
    delay_ms = plan.delay_ms(number)
    from_ms = base_ms - delay_ms
    if not number and policy.immediate and base_ms == bound_ms:
        yield _Step("its first event, which goes out at once (immediate)", base_ms)
    elif plan.has_calendar and base_ms == bound_ms:
        crons = listed((f'"{cron}"' for cron in policy.at), "or")
        text = f"the first instant of at = {crons} ({policy.zone}) after {after}"
        yield _Step(text, base_ms, f"the first instant of its calendar after {after}")
    elif bound_ms == from_ms + max(delay_ms, policy.maximum_delay_ms):
        yield _Step(_beginning(known, from_ms), from_ms)
        yield _Step(
            f"+ {_named_delay(policy, number, delay_ms)}: the earliest",
            base_ms,
            f"{format_duration(delay_ms)} after {after}",
        )
        if bound_ms > base_ms:
            yield _Step(f"+ maximum_delay {format_duration(policy.maximum_delay_ms)}: the latest", bound_ms)
    elif number and bound_ms - policy.maximum_delay_ms + delay_ms < base_ms < bound_ms:
        text = f"digest {number:,} named this instant to its receiver as the earliest next one"
        yield _Step(text, base_ms, f"as digest {number:,} promised")
    elif plan.quiet is not None and base_ms == bound_ms == plan.release_ms(base_ms - 1):
        windows = listed(map(str, policy.quiet))
        yield _Step(f"the end of quiet hours {windows} ({policy.zone})", base_ms, "when its quiet hours end")
    elif bound_ms <= base_ms:
        yield _Step("set to this very instant; the present policy does not say why", bound_ms)
    else:
        yield _Step("the earliest; the present policy does not say why", base_ms)
        yield _Step("the latest", bound_ms)


def _beginning(known: Known, from_ms: int) -> str:
    if not known.iteration:
        return "its first event came"
    is_opening = opened_of(known.last_id) == from_ms
    how = "was opened (counted from there, since the policy has changed)" if is_opening else "was delivered"
    return f"digest {known.iteration:,} {how}"


def _named_delay(policy: Policy, number: int, delay_ms: int) -> str:
    """Which option it is, and what comes of it. `number`: of the digest before; 0: there was none."""
    delay = format_duration(delay_ms)
    if number < len(policy.intervals_ms):
        return f"{delay}, number {number + 1} of intervals"
    if number and policy.growth == "exponential":
        doublings = min(number, policy.growth_steps)
        times = "once" if doublings == 1 else f"{doublings} times"
        return f"minimum_delay {format_duration(policy.minimum_delay_ms)}, doubled {times}: {delay}"
    return f"minimum_delay {delay}"


def _postponed(known: Known, increment_ms: int) -> Iterator[_Step]:
    if not known.records or not increment_ms or known.base_ms >= known.bound_ms:
        return
    records, total_ms = counted(known.records, "record"), increment_ms * known.records
    each = f"increment_delay {format_duration(increment_ms)} each"
    postponed_ms = known.base_ms + total_ms
    text = f"{records} postpone{'s' * (known.records == 1)} it by {each}: + {format_duration(total_ms)}"
    yield _Step(text, postponed_ms, f"postponed by {records}")
    if postponed_ms > known.bound_ms:
        yield _Step("but not beyond the latest", known.bound_ms, "at the latest that maximum_delay allows")


def _of_retry(known: Known, digest: Head, sink: SinkSettings) -> Iterator[_Step]:
    records = counted(digest.total, "record")
    yield _Step(f"digest {digest.id} (number {digest.iteration:,}, {records}) was opened", digest.opened_ms)
    if digest.tries:
        longest_ms = int(max(sink.retry_base_ms, tripled(sink.retry_base_ms, sink.retry_cap_ms, digest.tries)))
        drawn = f"{format_duration(sink.retry_base_ms)} to {span(longest_ms)}"
        text = (
            f"{counted(digest.tries, 'attempt')} did not deliver it: the next comes {drawn} after the last, drawn at "
            "random (retry_base, retry_cap), or when the receiver asked for it"
        )
        yield _Step(text, known.base_ms, f"as attempt {digest.attempt:,} of its digest")
    else:
        text = "no attempt of it counts yet: it was not sent, or a 410 stopped its sink"
        yield _Step(text, known.base_ms, "with a digest of which no attempt counts yet")
    if known.records:
        came = f"{counted(known.records, 'record')} that came since wait for the digest after it"
        yield _Step(f"{came}, and do not postpone this one", known.base_ms)


# -- what holds it back


def _held_back(at_ms: int, known: Known, policy: Policy, plan: Plan, hold: Hold | None) -> Iterator[_Step]:
    """The last one has the instant at which it goes out."""
    is_exempt = known.bound_ms <= EXEMPT_MS
    if hold is not None and hold.kind == _SNOOZE and hold.until_ms > at_ms:
        by, at_ms = printable(hold.by), hold.until_ms
        yield _Step(f"snoozed by {by}: nothing goes out before", at_ms, f"when the snooze by {by} ends")
    end_ms = plan.release_ms(at_ms)
    if end_ms < known.now_ms < plan.release_ms(known.now_ms):  # what is overdue meets the quiet hours of now
        end_ms = plan.release_ms(known.now_ms)
    if not is_exempt and end_ms > at_ms:
        windows = listed(map(str, policy.quiet))
        text = f"quiet hours {windows} ({policy.zone}): nothing goes out before they end"
        yield _Step(text, end_ms, "when its quiet hours end")
