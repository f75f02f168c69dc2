"""Writes docs/policies.md and its pictures from the simulator: `make policies-page`.

Each kind of policy is a few lines of a file, read as the daemon reads them, and a stream of events; the digests of the
picture and the numbers below it are what the simulator makes of both.
`--check` writes nothing and exits with 1 when the files in docs/ are not what would be written.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from bench.drawing import colours, dot, path, rect, svg, text
from bench.pages import prose
from nsqdigest.base.moments import format_duration
from nsqdigest.base.words import counted
from nsqdigest.config import Policy
from nsqdigest.config.reading import parse_text
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.store.schedule import Plan
from nsqdigest.trial.simulator import Event, SimulatedDigest, Simulator
from scripts import pages
from scripts.pages import DOCS

BERLIN = ZoneInfo("Europe/Berlin")
STYLE = colours(event=("#59636e", "#9aa4af"), digest=("#0969da", "#58a6ff"), quiet=("#8250df", "#a371f7"))
_LEFT, _RIGHT, _HEIGHT = 30, 830, 148
_LINE_Y, _EVENTS_Y = 84, 96
_FILE = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:4150"]
[sinks.out]
type = "log"
[[routes]]
topic = "events"
timeline = "{user}"
sink = "out"
[policies.default]
"""

Stream = Callable[[random.Random, datetime, datetime], Sequence[datetime]]


def every(**span: float) -> Stream:
    """Events at random, on average one in so long."""

    def draw(drawn: random.Random, start: datetime, end: datetime) -> Sequence[datetime]:
        found, at, mean = [], start, timedelta(**span)
        while (at := at + drawn.expovariate(1) * mean) < end:
            found.append(at)
        return found

    return draw


def bursts(*minutes_and_counts: tuple[int, int]) -> Stream:
    """So many events within two minutes, from these minutes on."""

    def draw(drawn: random.Random, start: datetime, end: datetime) -> Sequence[datetime]:
        return sorted(
            start + timedelta(minutes=minute, seconds=drawn.uniform(0, 120))
            for minute, count in minutes_and_counts
            for _ in range(count)
        )

    return draw


@dataclass(frozen=True)
class Kind:
    name: str
    heading: str
    lines: str
    words: str
    stream: Stream
    hours: float
    start: datetime = datetime(2026, 11, 18, 9, tzinfo=BERLIN)
    mark: timedelta = timedelta(minutes=10)
    """Between two marks of the clock."""


KINDS_OF_POLICY = (
    Kind(
        "immediate",
        "At once, then gathered",
        "",
        """The default. The first event goes out at once; what follows is gathered. A digest comes `minimum_delay` after
        the one before, and each event that waits postpones it by `increment_delay`, up to `maximum_delay` after the
        digest before. So a burst becomes one digest soon after its end, and a stream that never ends one digest in half
        an hour. A timeline that got nothing new is forgotten when its next digest could go out; its next event is a
        first one again.""",
        bursts((5, 1), (7, 6), (50, 1), (52, 12), (58, 30), (64, 25), (70, 20)),
        2,
    ),
    Kind(
        "postponed",
        "Gathered from the first event on",
        "immediate = false",
        """The first event waits, too: `minimum_delay`, postponed by each event, `maximum_delay` after it at the
        latest.""",
        bursts((5, 1), (7, 6), (50, 1), (52, 12), (58, 30), (64, 25), (70, 20)),
        2,
    ),
    Kind(
        "minimum",
        "At most one in so long",
        'minimum_delay = "20m"\nincrement_delay = "0s"',
        """Without an increment nothing is postponed: at once, then every twenty minutes while events come.
        `minimum_delay` may stand alone: the default of `maximum_delay` is 30 minutes, or the largest delay where that
        is longer.""",
        every(minutes=3),
        2,
    ),
    Kind(
        "growth",
        "Less often while it goes on",
        'growth = "exponential"\ngrowth_steps = 3\nincrement_delay = "0s"',
        """The delay doubles with each digest of a timeline: after the first one twice `minimum_delay`, after the second
        four times, then eight times, `growth_steps` times in all. When a timeline is forgotten it begins anew. So who
        has a bad day gets fewer mails as it goes on, and learns of a new trouble at once.""",
        every(minutes=4),
        4,
        mark=timedelta(minutes=30),
    ),
    Kind(
        "intervals",
        "A table of delays",
        'immediate = false\nintervals = ["1m", "10m", "30m"]\nminimum_delay = "1h"\nincrement_delay = "0s"',
        """Before the first digest, after the first, after the second; from then on `minimum_delay`. (With `immediate`
        the first entry is not used.)""",
        every(minutes=2),
        4,
        mark=timedelta(minutes=30),
    ),
    Kind(
        "calendar",
        "At times of the day",
        'at = "0 9,17 * * 1-5"\nzone = "Europe/Berlin"',
        """A cron expression (or a list of them) in a `zone` of the IANA list stands instead of all delays: minute,
        hour, day of month, month, day of week. Each timeline that has something new goes out at the next such instant
        after its first event, and nothing comes in between: `immediate` is false here, unless it is written to be
        true. Events of the weekend come on Monday.""",
        every(hours=1.5),
        120,
        start=datetime(2026, 11, 19, 0, tzinfo=BERLIN),
        mark=timedelta(hours=12),
    ),
    Kind(
        "quiet",
        "Quiet hours",
        'quiet = "22:00-07:00"\nzone = "Europe/Berlin"',
        """Nothing is delivered inside, a retry neither; it waits, whatever the maximum, and goes out once when they
        end. Quiet hours come before the minimum, and that before the maximum. They go with every kind of policy,
        and may be a list. What is urgent, `nsqdigest flush` and `dead replay` are exempt, with their retries.
        `next_earliest` of a digest, `nsqdigest timelines` and the gauges of lag count with their end: what waits
        for the morning is not late.""",
        every(minutes=50),
        16,
        start=datetime(2026, 11, 18, 17, tzinfo=BERLIN),
        mark=timedelta(hours=1),
    ),
    Kind(
        "spring",
        "The night in which an hour is skipped",
        'at = "30 2 * * *"\nzone = "Europe/Berlin"',
        """On 29 March 2026 there is no 2:30 in Berlin. What the clock skips comes when it is put forward, at 3:00, and
        once: nothing is skipped.""",
        every(minutes=25),
        11,
        start=datetime(2026, 3, 28, 21, tzinfo=BERLIN),
        mark=timedelta(hours=1),
    ),
    Kind(
        "autumn",
        "The night in which an hour comes twice",
        'at = "30 2 * * *"\nzone = "Europe/Berlin"',
        """On 25 October 2026 it is 2:30 twice. The first time counts: nothing comes twice. (What comes in every hour
        follows the real hours on both nights.) Quiet hours that begin or end in such an hour
        last from the first to the second time.""",
        every(minutes=25),
        11,
        start=datetime(2026, 10, 24, 21, tzinfo=BERLIN),
        mark=timedelta(hours=1),
    ),
)

PAGE = """\
# Policies: when a digest goes out

Written by `make policies-page` from the simulator, which has the daemon's own schedule.

A *timeline* is whose digest an event is for, and the policy of its route says when that digest goes out. Below is one
timeline under each kind of policy: grey marks are events, blue dots digests, with the number of their records. Times
are Berlin's.

While a daemon and the receiver are well this holds, for every policy: two digests of a timeline are never closer than
it allows, and none is later than it allows, but for quiet hours. A digest that fails is sent again by the rules of its
sink, and what comes meanwhile waits for the next one.

"""


END = """\
## A zone for each timeline

`zone` may be a field of the event, so that nine o'clock and the night are those of whoever reads the digest:

    [policies.daily]
    at = "0 9 * * *"
    quiet = "22:00-07:00"
    zone = "{user.zone}"
    zone_default = "UTC"

- A timeline follows its newest event that names a zone of the IANA list; one that names none changes nothing. A
  timeline whose events never named one has `zone_default`.
- A name that is no zone counts as none: it is logged, with the name, and counted (`zones_unknown_total`). It is no dead
  letter, for the event itself is right.
- A timeline with a calendar that waits and gets another zone is due at the next instant there. What is due already, is
  being delivered or waits for another attempt stays as it is. Nights on which a clock changes are those of its own
  zone.
- What comes due in its quiet hours is put off until they end. What comes meanwhile goes out with it, and does not put
  it off any further.
- `nsqdigest show` has the zone of a timeline; `simulate` with `--route` reads it from recorded events.
- A daemon writes a batch to Redis in one call for each zone in it: such a route takes in events more slowly than
  others.

## Trying one

    nsqdigest simulate --rate 20/h --burst 200@9h --for 2d          # drawn events, the policy of the only route
    nsqdigest simulate --policy daily --rate 5/h --for 7d
    nsqdigest simulate yesterday.jsonl --route alerts               # recorded ones, through the route's templates
"""


def policy_of(lines: str) -> Policy:
    return parse_text(_FILE + lines + "\n", "policies_page", {}, KINDS).policies["default"]


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


@dataclass(frozen=True)
class Run:
    kind: Kind
    policy: Policy
    events: Sequence[int]
    digests: Sequence[SimulatedDigest]

    @property
    def start_ms(self) -> int:
        return ms(self.kind.start)

    @property
    def end_ms(self) -> int:
        return self.start_ms + round(self.kind.hours * 3_600_000)


def run_of(kind: Kind) -> Run:
    policy = policy_of(kind.lines)
    end = datetime.fromtimestamp(ms(kind.start) / 1000 + kind.hours * 3600, BERLIN)
    events = [ms(at) for at in kind.stream(random.Random(kind.name), kind.start, end)]
    simulator = Simulator(Plan(policy), policy.capacity)
    digests = [digest for at_ms in events for digest in simulator.add(Event(at_ms))]
    digests += simulator.finish(ms(end))
    return Run(kind, policy, events, digests)


# -- words


def clock(at_ms: int, *, with_day: bool = False) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, BERLIN)
    return f"{at:%a }{at.hour}:{at:%M}" if with_day else f"{at.hour}:{at:%M}"


def told(run: Run) -> str:
    longest_ms = max(digest.waited_ms for digest in run.digests)
    shown = [clock(digest.at_ms, with_day=run.kind.hours > 24) for digest in run.digests[:6]]
    more = " …" if len(run.digests) > len(shown) else "."
    waited = format_duration(round(longest_ms / 60_000) * 60_000)
    return prose(
        f"{counted(len(run.events), 'event')}, {counted(len(run.digests), 'digest')}: {', '.join(shown)}{more} "
        f"The longest wait of an event was {waited}."
    )


def page(runs: Sequence[Run]) -> str:
    parts = [PAGE]
    for run in runs:
        lines = run.kind.lines or "# the defaults"
        parts.append(f"## {run.kind.heading}\n\n{prose(run.kind.words)}\n\n")
        parts.append("".join(f"    {line}\n" for line in ("[policies.default]", *lines.splitlines())))
        parts.append(f"\n![{run.kind.heading.lower()}](pictures/policy-{run.kind.name}.svg)\n\n{told(run)}\n\n")
    return "".join(parts) + END


# -- pictures


def picture(run: Run) -> str:
    def across(at_ms: float) -> float:
        return _LEFT + (at_ms - run.start_ms) / (run.end_ms - run.start_ms) * (_RIGHT - _LEFT)

    body = [text(_LEFT, 28, run.kind.heading, "ink head"), *_quiet(run, across)]
    body.append(path([(_LEFT, _LINE_Y), (_RIGHT, _LINE_Y)], "rule"))
    at = run.kind.start
    while (at_ms := ms(at)) <= run.end_ms:
        x = across(at_ms)
        body.append(path([(x, _LINE_Y + 26), (x, _LINE_Y + 31)], "rule"))
        body.append(
            text(x, _LINE_Y + 46, clock(at_ms, with_day=run.kind.mark >= timedelta(hours=12)), "faint small", "middle")
        )
        at = datetime.fromtimestamp((at_ms + run.kind.mark / timedelta(milliseconds=1)) / 1000, BERLIN)
    body += [rect(across(at_ms) - 0.5, _EVENTS_Y, 1, 10, "event") for at_ms in run.events]
    for digest in run.digests:
        x = across(digest.at_ms)
        body.append(path([(x, _LINE_Y - 18), (x, _LINE_Y)], "digest-line"))
        body.append(dot(x, _LINE_Y - 18, 5, "digest"))
        body.append(text(x, _LINE_Y - 28, str(digest.records), "ink small halo", "middle"))
    return svg(_HEIGHT, f"{run.kind.heading}: events and digests", body, STYLE)


def _quiet(run: Run, across: Callable[[float], float]) -> list[str]:
    quiet, drawn = Plan(run.policy).quiet, list[str]()
    at_ms = run.start_ms
    while quiet is not None and at_ms < run.end_ms:
        if (end_ms := quiet.end_ms(at_ms)) is None:
            at_ms += 60_000
            continue
        left, right = across(at_ms), across(min(end_ms, run.end_ms))
        drawn.append(rect(left, 40, right - left, _LINE_Y + 24 - 40, "quiet-wash"))
        drawn.append(text((left + right) / 2, 54, "quiet", "faint small", "middle"))
        at_ms = end_ms
    return drawn


# -- files


def files() -> dict[Path, str]:
    runs = [run_of(kind) for kind in KINDS_OF_POLICY]
    pictures = {DOCS / "pictures" / f"policy-{run.kind.name}.svg": picture(run) for run in runs}
    return {DOCS / "policies.md": page(runs), **pictures}


if __name__ == "__main__":
    sys.exit(pages.main(sys.argv[1:], files, "policies-page"))
