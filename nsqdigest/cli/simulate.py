"""`nsqdigest simulate`: a policy against a stream of events, recorded or drawn."""

from __future__ import annotations

import json
import os
import random
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import click

from nsqdigest.base.errors import EXIT_NO
from nsqdigest.base.moments import span
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config, terminal
from nsqdigest.cli.operating import TEXT, Duration, instant_as_json, json_option, limit_option, require_known

if TYPE_CHECKING:
    from nsqdigest.config import Config, Policy, Route
    from nsqdigest.trial.simulation import Simulation
    from nsqdigest.trial.simulator import Event
    from nsqdigest.trial.streams import Burst

T = TypeVar("T")
_STDIN = "-"
_MOST_DRAWN = 10_000_000
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PROGRESS_EVERY_S = 0.5


@click.command("simulate", short_help="See which digests a policy makes of a stream of events.")
@click.argument("events", required=False, default="")
@config_option
@click.option("--policy", type=TEXT, default="", metavar="NAME", help="One of [policies.NAME].")
@click.option("--route", type=TEXT, default="", metavar="ROUTE", help="Its policy; JSON goes through its templates.")
@click.option("--timestamp", type=TEXT, default="", metavar="FIELD", help="Of JSON events, where the route has none.")
@click.option("--rate", default="", metavar="RATE", help='Draw events: "20/h", per s, m, h or d, on average.')
@click.option("--burst", "bursts", multiple=True, metavar="N@AFTER", help='Draw so many within a minute: "50@2h".')
@click.option("--for", "length_ms", type=Duration(), default="1d", show_default=True, help="How long events are drawn.")
@click.option("--timelines", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="Draw so many.")
@click.option("--from", "start", default="", metavar="INSTANT", help="When drawn events begin. Without it: now.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed draws the same events.")
@limit_option(20, "So many digests are listed.")
@json_option
def command(
    *, events: str, path: Path | None, policy: str, route: str, timestamp: str, rate: str, bursts: tuple[str, ...],
    length_ms: int, timelines: int, start: str, seed: int, limit: int, as_json: bool,
) -> None:  # fmt: skip
    """See which digests a policy makes of a stream of events: when, how large, how long the events waited.

    Reads EVENTS, a file or "-" for stdin, in the order of their instants: on each line an event as JSON (with --route,
    by its templates and its timestamp), or INSTANT TIMELINE KEY, of which the last two may be left out. Or draws them:
    --rate, --burst. It uses the configuration alone, and connects to nothing. Receivers are taken to accept at once.

    Exit code 0: done; 1: no line of the input could be used; 78: the file has mistakes.

    \b
    Examples:
      nsqdigest simulate --rate 20/h --burst 200@9h --for 2d
      nsqdigest simulate yesterday.jsonl --route alerts
      nsqdigest simulate --policy daily --rate 5/h --for 7d --json
    """
    config = load_config(path, without_secrets=True)
    chosen_route = _route_of(config, route, timestamp, needed=not policy)
    chosen = _policy_of(config, policy, chosen_route)
    is_drawn = bool(rate or bursts)
    if is_drawn == bool(events):
        raise click.UsageError(
            "name a file with events, or - for stdin, or draw some with --rate 20/h"
            if not events
            else "--rate and --burst draw events, and a file has its own: leave one out"
        )

    from nsqdigest.store.schedule import Plan
    from nsqdigest.trial.simulation import Simulation
    from nsqdigest.trial.simulator import Simulator

    simulation, simulator = Simulation(chosen.name, chosen.common_zone, limit), Simulator(Plan(chosen), chosen.capacity)
    with nullcontext() if is_drawn else _opened(events) as file:
        stream = (
            _drawn(config, rate, bursts, length_ms, timelines=timelines, start=start, seed=seed)
            if file is None
            else _recorded(config, file, chosen_route)
        )
        for event in _with_progress(stream, _part_read(file) if file else None):
            for digest in simulator.add(event):
                simulation.add_digest(digest)
            simulation.add_event(event, simulator.waiting)
        for digest in simulator.finish():
            simulation.add_digest(digest)
    _show(simulation, as_json=as_json)


def _show(simulation: Simulation, *, as_json: bool) -> None:
    if not simulation.events:
        click.echo("no event to simulate with", err=True)
        sys.exit(EXIT_NO)
    if as_json:
        click.echo(json.dumps(simulation.as_json(instant_as_json)))
        return
    look = terminal.look_of_stdout()
    terminal.write(simulation.lines(look.width, span, is_ascii=not terminal.shows("▁●")), look)


# -- which policy


def _route_of(config: Config, name: str, timestamp: str, *, needed: bool) -> Route | None:
    routes = {route.name: route for route in config.routes}
    if name:
        require_known("route", name, routes, config.source)
    elif needed and len(routes) > 1:
        raise click.UsageError(f"the file has {len(routes)} routes; name one with --route, or a policy with --policy")
    elif not needed:
        return None
    route = routes[name] if name else config.routes[0]
    if not timestamp:
        return route

    from nsqdigest.config import texts

    return replace(route, timestamp=_read(texts.optional_field_path, timestamp, "--timestamp"))


def _policy_of(config: Config, name: str, route: Route | None) -> Policy:
    if name:
        require_known("policy", name, config.policies, config.source)
    assert name or route is not None
    return config.policies[name or (route.policy if route else "")]


# -- the stream


def _opened(name: str) -> BinaryIO | nullcontext[BinaryIO]:
    if name == _STDIN:
        if sys.stdin.isatty():
            click.echo("Type or paste events, one a line; Ctrl-D ends them.", err=True)
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{printable(name)}: {getattr(error, 'strerror', None) or error}") from None


def _recorded(config: Config, file: BinaryIO, route: Route | None) -> Iterator[Event]:
    from nsqdigest.daemon.routes import aims_of
    from nsqdigest.delivery.sinks.table import KINDS
    from nsqdigest.trial.streams import LONGEST_LINE_BYTES, Lines, NotUsed

    lines, unused, first = Lines(config, route, aims_of(config, KINDS)), 0, ""
    number = 0
    while line := file.readline(LONGEST_LINE_BYTES):
        number += 1
        if not line.strip():
            continue
        try:
            event = lines.event_of(line.strip())
        except NotUsed as why:
            unused += 1
            first = first or f"line {number} {why}"
            continue
        yield event
    if unused:
        click.echo(f"{counted(unused, 'line')} not used; {printable(first, 300)}", err=True)
    if lines.late:
        click.echo(f"{counted(lines.late, 'event')} older than the one before: taken to come with it", err=True)


def _drawn(
    config: Config, rate: str, bursts: Iterable[str], length_ms: int, *, timelines: int, start: str, seed: int
) -> Iterator[Event]:
    from nsqdigest.trial.streams import NotUsed, drawn, instant_of, of_any_time

    mean_ms = _read(_rate_of, rate, "--rate") if rate else 0.0
    read = [_read(_burst_of, text, "--burst") for text in bursts]
    many = sum(burst.events for burst in read) + (length_ms / mean_ms if mean_ms else 0)
    if many > _MOST_DRAWN:
        raise click.UsageError(f"that is about {many:,.0f} events; draw {_MOST_DRAWN:,} at most")
    start_ms = time.time_ns() // 1_000_000
    if start:
        try:
            start_ms = instant_of(start, of_any_time(config.limits))
        except NotUsed:
            raise click.UsageError(f"--from: {printable(start)} is no instant; write 2026-01-31T09:00:00Z") from None
    source = random.Random(seed)
    return drawn(
        start_ms, length_ms, mean_ms, read, exponential=source.expovariate,
        timeline=lambda: f"timeline {source.randrange(timelines) + 1}",
    )  # fmt: skip


def _read(read: Callable[[str], T], text: str, option: str) -> T:
    from nsqdigest.config.problems import Wrong

    try:
        return read(text)
    except Wrong as wrong:
        raise click.UsageError(f"{option}: {printable(text)} {wrong.mistake}; {wrong.remedy}") from None


def _rate_of(text: str) -> float:
    """The mean time between two events, of "20/h". Raises Wrong."""
    from nsqdigest.config.problems import Wrong

    count, separator, unit = text.partition("/")
    if not separator or unit not in _UNITS_MS or not _is_number(count) or float(count) <= 0:
        raise Wrong("is not a rate", 'write one like "20/h", per s, m, h or d')
    return _UNITS_MS[unit] / float(count)


def _burst_of(text: str) -> Burst:
    """Of "50@2h". Raises Wrong."""
    from nsqdigest.config.problems import Wrong
    from nsqdigest.config.units import duration_ms
    from nsqdigest.trial.streams import Burst

    count, separator, after = text.partition("@")
    if not separator or not count.isascii() or not count.isdigit() or not 0 < int(count) <= 1_000_000:
        raise Wrong("is not a burst", 'write one like "50@2h": so many events, so long after the beginning')
    return Burst(int(count), duration_ms(after))


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 12


def _part_read(file: BinaryIO) -> Callable[[], float] | None:
    """How much of a file was read, from 0 to 1. None: its length is not known, as that of a pipe."""
    try:
        about = os.fstat(file.fileno())
    except OSError:  # a stream in memory
        return None
    if not stat.S_ISREG(about.st_mode) or not about.st_size:
        return None
    return lambda: min(1.0, file.tell() / about.st_size)


def _with_progress(events: Iterable[Event], part: Callable[[], float] | None) -> Iterator[Event]:
    """On a terminal only, and only when it takes long."""
    if not sys.stderr.isatty():
        yield from events
        return
    shown_s, was_shown = time.monotonic(), False
    for number, event in enumerate(events):
        if number % 1000 == 0 and time.monotonic() - shown_s >= _PROGRESS_EVERY_S:
            shown_s, was_shown = time.monotonic(), True
            of_all = f", {part():.0%}" if part else ""
            click.echo(f"\r{number:,} events{of_all} ", nl=False, err=True)
        yield event
    if was_shown:
        click.echo("\r" + " " * 40 + "\r", nl=False, err=True)
