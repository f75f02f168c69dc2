"""Writes docs/backoff.md and its pictures from the table of transitions and the real controller: `make backoff-page`.

What is said between the generated parts stands here too, so that the page has one source. An event or a pair of states
that this does not know ends it with an error: then it wants words, or a place in the picture, first.
`--check` writes nothing and exits with 1 when the files in docs/ are not what would be written.
"""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from bench.drawing import CHARACTER, WIDTH, Frame, colours, path, rect, svg, text
from bench.pages import prose
from nsqdigest.backoff import (
    PROBE_MESSAGE_WITHIN_S,
    TRANSITIONS,
    Controller,
    Curve,
    Decision,
    Event,
    Level,
    State,
    Transition,
    longest_recovery_s,
)
from scripts import pages
from scripts.pages import DOCS

CURVE = Curve(base_s=1.0, max_duration_s=30.0)
MAX_IN_FLIGHT = 2500
REDIS_TIMEOUT_S = 5.0

EVENTS = {
    Event.SUCCESS: "the probe was stored, and a level is left",
    Event.WELL: "the probe was stored, and no level is left",
    Event.STEP: "as many successes as the limit, or 5 s without a failure",
    Event.FULL: "the step that reaches `max_in_flight`",
    Event.FAILURE: "the store failed, or was so slow that nsqd had taken the message back",
    Event.VOID: "no verdict: connection gone, dead letter, given back without a failure",
    Event.BEGAN: "the probe has its message",
    Event.TIMER: "the backoff is over",
    Event.STALE: "a result of an earlier epoch",
    Event.ANSWERED: "Redis has answered the scheduler again; once in a backoff, which then ends within 1 s",
    Event.PAUSE: "the operator pauses, or the daemon drains",
    Event.RESUME: "the operator resumes",
}
HERE = {
    (State.PROBING, Event.FULL): "the probe was stored, no level is left, and there is no slow start",
    (State.PROBING, Event.TIMER): "no message within 2 s, or no verdict within `msg_timeout`",
}
"""Where an event means something of its own."""
LEVELS = {
    Level.NONE: "level 0",
    Level.FIRST: "level 1",
    Level.UP: "level + 1",
    Level.DOWN: "level down",
    Level.SAME: "",
}
LIMITS = {
    State.FLOWING: "max_in_flight",
    State.BACKOFF: "nothing",
    State.PROBING: "one message",
    State.RAMPING: "1, 2, 4 …",
    State.PAUSED: "nothing",
}
CSS = {
    State.FLOWING: "flowing",
    State.BACKOFF: "backoff",
    State.PROBING: "probing",
    State.RAMPING: "ramping",
    State.PAUSED: "paused",
}
STYLE = colours(
    flowing=("#1a7f5a", "#3fb984"),
    backoff=("#c4503c", "#e5755f"),
    probing=("#d9a514", "#ffd24d"),
    ramping=("#0969da", "#58a6ff"),
    paused=("#59636e", "#9aa4af"),
)

# -- the table in words

PAGE = """\
# Backing off: the controller

Written by `make backoff-page` from the table in `nsqdigest/backoff.py`.

Each topic has a controller, and so has each sink. It decides one number: how much may be in flight. While all is well
that is `max_in_flight`. When the store fails, nothing may be; after a backoff one message is let through, the *probe*,
and its result alone decides what comes next. The [planner](how-it-works.md) turns the number into the RDY of each
connection. What the options do, and which to choose, is in [tuning](tuning.md).

![the states of the controller and what leads from one to another](pictures/backoff-states.svg)

## What holds always

- **One change a backoff.** A decision begins a new *epoch*; a message bears the epoch in which it was handed over. Of
  fifty messages that fail together one counts; results of an earlier epoch are counted and ignored.
- **The level has a cap**: the first level whose wait without jitter is `max_duration`. A long outage does not make the
  way back longer.
- **A success steps the level down by one.** Each successful probe lowers the level by one, until none is left. With
  `recovery = "halve"` it halves the level: a healthy store is in use again sooner.
- **The wait is drawn once a backoff**, after the level is known and from 0.1 s on, so that jitter is left at both ends.
  When Redis has answered another part of the daemon again, a small wait of at least 0.1 s may replace it, once.
- **A receiver that names a time gets it.** No backoff of a sink ends before the `Retry-After` of its receiver, cut to
  `retry_after_max`. A reload that rebuilds the sink begins anew.
- **Every probe leads on.** Whatever becomes of it, a verdict or a timer ends it, and where it was lost another one
  follows.
- **What the table does not know is an error**, raised before anything has changed.

{bound}

## One outage

{told}

![state, level, limit and requests of one daemon through an outage](pictures/backoff-timeline.svg)

## The table

*Epoch* says whether a new one begins; *reason* is the word in the logs and metrics.
"""


def table(state: State) -> list[str]:
    known = TRANSITIONS[state]
    lines = [
        f"### {state}: {LIMITS[state].replace('max_in_flight', '`max_in_flight`')}",
        "",
        "| when | leads to | level | epoch | reason |",
        "|---|---|---|---|---|",
    ]
    stays = []
    for event, transition in known.items():
        if transition is None:
            stays.append(event)
            continue
        to = transition.to or "the state before"
        level = LEVELS[transition.level] or "same"
        epoch = "new" if transition.new_epoch else "same"
        meaning = HERE.get((state, event), EVENTS[event])
        lines.append(f"| **{event}**: {meaning} | {to} | {level} | {epoch} | `{transition.reason}` |")
    if stays:
        lines += ["", f"Ignored here: {', '.join(stays)}."]
    never = [event for event in Event if event not in known]
    lines += ["", f"Cannot happen here: {', '.join(never)}."]
    return lines


def bound() -> str:
    waits_s, level = [], CURVE.level_cap
    while level:
        waits_s.append(CURVE.longest_s(level))
        level = CURVE.below(level)
    answer_s = PROBE_MESSAGE_WITHIN_S + REDIS_TIMEOUT_S
    first_s = longest_recovery_s(CURVE, MAX_IN_FLIGHT, answer_s, slow_start=False)
    whole_s = longest_recovery_s(CURVE, MAX_IN_FLIGHT, answer_s)
    waits = " + ".join(f"{wait_s:g}" for wait_s in waits_s)
    return prose(
        f"""From any of these states the way to *flowing* is bounded once the store answers (`longest_recovery_s`): a
        probe that is out may still fail, then each level on the way down takes a whole wait and a probe, then the ramp
        goes by time alone. With the defaults the waits are {waits} s, and a probe takes {answer_s:g} s at most:
        {PROBE_MESSAGE_WITHIN_S:g} s until a message comes, then {REDIS_TIMEOUT_S:g} s (`redis.timeout`) until Redis
        answers. All of it is {first_s:.0f} s at the worst until messages flow again, and {whole_s:.0f} s until all of
        `max_in_flight` is allowed where the topic is so quiet that the ramp waits for its timer.
        Jitter makes the waits half as long on average. The daemon says its own bound when it starts
        (`longest_recovery_s` of `daemon.started`)."""
    )


def page(told: str) -> str:
    parts = [PAGE.format(told=told, bound=bound()).rstrip()]
    parts += ["\n".join(table(state)) for state in State]
    return "\n\n".join(parts) + "\n"


# -- the picture of the states

BOX_WIDTH, BOX_HEIGHT = 176, 62
BOXES = {
    State.FLOWING: (110, 110),
    State.BACKOFF: (574, 110),
    State.RAMPING: (110, 344),
    State.PROBING: (574, 344),
    State.PAUSED: (342, 500),
}
"""Left and top of each."""
GROUP = (24, 72, 812, 386)
"""Left, top, width and height of the frame around what can be paused."""


@dataclass(frozen=True, slots=True)
class Way:
    """How an arrow runs, and where its words stand."""

    points: tuple[tuple[float, float], ...]
    words_at: tuple[float, float]
    anchor: str = "start"


SAID = {(State.PROBING, Event.FULL): "full, without slow_start"}
WAYS: dict[tuple[State, State], Way] = {
    (State.FLOWING, State.BACKOFF): Way(((286, 141), (574, 141)), (430, 131), "middle"),
    (State.BACKOFF, State.BACKOFF): Way(((630, 110), (630, 84), (694, 84), (694, 110)), (704, 95)),
    (State.BACKOFF, State.PROBING): Way(((630, 172), (630, 344)), (622, 296), "end"),
    (State.PROBING, State.BACKOFF): Way(((694, 344), (694, 172)), (704, 240)),
    (State.PROBING, State.PROBING): Way(((630, 406), (630, 434), (694, 434), (694, 406)), (704, 428)),
    (State.PROBING, State.RAMPING): Way(((574, 385), (286, 385)), (430, 405), "middle"),
    (State.PROBING, State.FLOWING): Way(((574, 350), (270, 172)), (502, 330), "end"),
    (State.RAMPING, State.RAMPING): Way(((166, 406), (166, 434), (230, 434), (230, 406)), (240, 428)),
    (State.RAMPING, State.FLOWING): Way(((166, 344), (166, 172)), (158, 262), "end"),
    (State.RAMPING, State.BACKOFF): Way(((286, 352), (590, 172)), (522, 228)),
}


def _words(state: State, event: Event, transition: Transition) -> str:
    if (state, event) in SAID:
        return SAID[state, event]
    level = LEVELS[transition.level]
    return f"{event}: {level}" if level and level != LEVELS[Level.NONE] else str(event)


def _arrow(points: tuple[tuple[float, float], ...], css: str) -> str:
    return path(points, css).replace("/>", ' marker-end="url(#tip)"/>')


def states_svg() -> str:
    by_way: dict[tuple[State, State], list[str]] = defaultdict(list)
    paused: list[State] = []
    for state, known in TRANSITIONS.items():
        for event, transition in known.items():
            if transition is None or transition.to is None:
                continue
            if event is Event.PAUSE:
                paused.append(state)
            else:
                by_way[state, transition.to].append(_words(state, event, transition))
    if set(by_way) != set(WAYS) or set(paused) != set(State) - {State.PAUSED}:
        raise SystemExit(f"backoff_page: the picture has no place for {set(by_way) ^ set(WAYS)}: give it one in WAYS")
    left, top, width, height = GROUP
    body = [
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" class="faint"/></marker></defs>',
        text(20, 34, "How much may be in flight", "ink head"),
        rect(left, top, width, height, "group", radius=12),
    ]
    for pair, words in by_way.items():
        way = WAYS[pair]
        body.append(_arrow(way.points, "arrow"))
        x, y = way.words_at
        body += [text(x, y + 17 * number, line, "ink small", way.anchor) for number, line in enumerate(words)]
    paused_x, paused_y = BOXES[State.PAUSED]
    bottom = top + height
    body += [
        _arrow(((paused_x + 60, bottom), (paused_x + 60, paused_y)), "arrow"),
        text(paused_x + 52, bottom + 25, str(Event.PAUSE), "ink small", "end"),
        _arrow(((paused_x + 116, paused_y), (paused_x + 116, bottom)), "arrow"),
        text(paused_x + 124, bottom + 25, f"{Event.RESUME}: to the state before", "ink small"),
    ]
    for state, (x, y) in BOXES.items():
        body += [
            rect(x, y, BOX_WIDTH, BOX_HEIGHT, "panel", radius=9),
            rect(x, y, BOX_WIDTH, BOX_HEIGHT, f"{CSS[state]}-wash", radius=9),
            rect(x, y, BOX_WIDTH, BOX_HEIGHT, f"{CSS[state]}-line", radius=9),
            text(x + BOX_WIDTH / 2, y + 27, state.upper(), "ink strong", "middle"),
            text(x + BOX_WIDTH / 2, y + 47, LIMITS[state], "faint", "middle"),
        ]
    style = (
        f"{STYLE}\n  .arrow{{stroke:#59636e;fill:none;stroke-width:1.5}}"
        ".group{fill:none;stroke:#d0d7de;stroke-dasharray:5 5}"
        "\n  @media (prefers-color-scheme:dark){.arrow{stroke:#9aa4af}.group{stroke:#3d444d}}"
    )
    return svg(paused_y + BOX_HEIGHT + 24, "The states of the controller", body, style)


# -- one outage

SEED = 3
DOWN_S = (5.0, 95.0)
LASTS_S = 180.0
ASKS_EVERY_S = 0.25
ANSWERS_IN_S = 0.05
MSG_TIMEOUT_S = 60.0
COMES_IN = 100
"""Messages a second."""


@dataclass(slots=True)
class Outage:
    """What one daemon did through it."""

    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    asks: list[tuple[float, bool]] = field(default_factory=list)


def outage() -> Outage:
    """A daemon with a store that is down for a while, in steps of simulated time: it asks four times a second with what
    came meanwhile, as far as the limit allows."""
    controller = Controller(MAX_IN_FLIGHT, CURVE, random.Random(SEED).uniform)
    seen = Outage([(0.0, controller.decision)])
    now_s = 0.0
    while now_s < LASTS_S:
        decision = controller.decision
        if decision.limit:
            epoch, answered_s = decision.epoch, now_s + ANSWERS_IN_S
            if decision.state is State.PROBING:
                controller.began(epoch, now_s, now_s + MSG_TIMEOUT_S)
            is_well = not DOWN_S[0] <= now_s < DOWN_S[1]
            seen.asks.append((now_s, is_well))
            if is_well:
                controller.succeeded(epoch, answered_s, min(decision.limit, int(COMES_IN * ASKS_EVERY_S)))
            else:
                controller.failed(epoch, answered_s)
            now_s = answered_s if controller.decision.state is State.BACKOFF else now_s + ASKS_EVERY_S
        wake_at_s = controller.decision.wake_at_s
        if controller.decision.state is State.BACKOFF and wake_at_s is not None:
            _note(seen, now_s, controller.decision)
            now_s = wake_at_s
        controller.tick(now_s)
        _note(seen, now_s, controller.decision)
    return seen


def _note(seen: Outage, now_s: float, decision: Decision) -> None:
    if decision != seen.decisions[-1][1]:
        seen.decisions.append((now_s, decision))


def told(seen: Outage) -> str:
    backoffs = [decision for _, decision in seen.decisions if decision.state is State.BACKOFF]
    back_s = next(at_s for at_s, decision in seen.decisions if at_s > DOWN_S[1] and decision.state is State.RAMPING)
    flows_s = next(at_s for at_s, decision in seen.decisions if at_s > DOWN_S[1] and decision.state is State.FLOWING)
    failed = sum(not is_well for _, is_well in seen.asks)
    return prose(
        f"""The store is down for {DOWN_S[1] - DOWN_S[0]:.0f} s. The daemon asks it {failed} times meanwhile and climbs
        to level {max(each.level for each in backoffs)}, where the wait is drawn from 0 to {CURVE.max_duration_s:.0f} s.
        {back_s - DOWN_S[1]:.0f} s after the store is back the last probe has succeeded, and
        {flows_s - DOWN_S[1]:.0f} s after it the whole of `max_in_flight` is allowed again: with {COMES_IN} messages a
        second the first steps of the ramp are quick, and the later ones take 5 s each, because there are not so many
        messages. It is the real controller, in simulated time, with `base` {CURVE.base_s:g} s."""
    )


def timeline_svg(seen: Outage) -> str:
    left, width = 108, WIDTH - 108 - 34
    state_frame = Frame(left, 84, width, 34, LASTS_S, 1)
    level_frame = Frame(left, 160, width, 90, LASTS_S, CURVE.level_cap)
    limit_frame = Frame(left, 292, width, 90, LASTS_S, _doublings(MAX_IN_FLIGHT))
    asks_frame = Frame(left, 424, width, 30, LASTS_S, 1)
    body = [text(20, 34, "One outage through the controller", "ink head")]
    body.append(text(left + width, 34, "yellow: probing; asks: green stored, red failed", "faint small", "end"))
    from_x, _ = state_frame.at(DOWN_S[0], 0)
    to_x, _ = state_frame.at(DOWN_S[1], 0)
    body += [
        rect(from_x, 56, to_x - from_x, 424 + 30 - 56, "paused-wash"),
        text((from_x + to_x) / 2, 73, "the store is down", "faint small", "middle"),
    ]
    ends_s = [at_s for at_s, _ in seen.decisions[1:]] + [LASTS_S]
    spans = [
        (at_s, min(end_s, LASTS_S), decision) for (at_s, decision), end_s in zip(seen.decisions, ends_s, strict=True)
    ]
    for state, at_s, end_s in _merged(spans):
        x, _ = state_frame.at(at_s, 0)
        until_x, _ = state_frame.at(end_s, 0)
        body.append(rect(x, 84, max(until_x - x, 2.5), 34, CSS[state]))
        if until_x - x > CHARACTER * len(state) + 6:
            body.append(text((x + until_x) / 2, 106, state, "on strong", "middle"))
    body.append(text(20, 106, "state", "ink"))
    body += level_frame.axes([], [(level, f"{level}") for level in range(CURVE.level_cap + 1)])
    body.append(text(20, 180, "level", "ink"))
    body.append(level_frame.curve(_steps([(a, e, d.level) for a, e, d in spans]), "backoff-line"))
    body += limit_frame.axes([], [(_doublings(limit), f"{limit:,}") for limit in (0, 16, 256, MAX_IN_FLIGHT)])
    body.append(text(20, 318, "limit", "ink"))
    body.append(limit_frame.curve(_steps([(a, e, _doublings(d.limit)) for a, e, d in spans]), "ramping-line"))
    body += asks_frame.axes([(s, f"{s} s") for s in range(0, int(LASTS_S) + 1, 15)], [])
    body.append(text(20, 444, "asks", "ink"))
    for at_s, is_well in seen.asks:
        x, bottom = asks_frame.at(at_s, 0)
        body.append(
            path([(x, bottom), (x, bottom - (20 if is_well else 30))], "flowing-line" if is_well else "backoff-line")
        )
    style = f"{STYLE}\n  .on{{fill:#fff}}\n  @media (prefers-color-scheme:dark){{.on{{fill:#161b22}}}}"
    return svg(424 + 30 + 36, "State, level, limit and requests of one daemon through an outage", body, style)


def _doublings(limit: int) -> float:
    return math.log2(limit) + 1 if limit else 0


def _merged(spans: list[tuple[float, float, Decision]]) -> list[tuple[State, float, float]]:
    """One for each time in a state; the short ones last, so that they are seen."""
    merged: list[tuple[State, float, float]] = []
    for at_s, end_s, decision in spans:
        if merged and merged[-1][0] is decision.state:
            merged[-1] = (decision.state, merged[-1][1], end_s)
        else:
            merged.append((decision.state, at_s, end_s))
    return sorted(merged, key=lambda span: span[1] - span[2])


def _steps(spans: list[tuple[float, float, float]]) -> list[tuple[float, float]]:
    return [point for at_s, end_s, value in spans for point in ((at_s, value), (end_s, value))]


# -- files


def files() -> dict[Path, str]:
    seen = outage()
    return {
        DOCS / "backoff.md": page(told(seen)),
        DOCS / "pictures" / "backoff-states.svg": states_svg(),
        DOCS / "pictures" / "backoff-timeline.svg": timeline_svg(seen),
    }


if __name__ == "__main__":
    sys.exit(pages.main(sys.argv[1:], files, "backoff-page"))
