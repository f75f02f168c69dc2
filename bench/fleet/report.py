"""Runs to a page of tables (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.fleet import model
from bench.fleet.compare import (
    CHOSEN,
    DESCENTS,
    DURATIONS,
    FAILING,
    FITS,
    JITTERS,
    LONG,
    SHORT,
    SLOW,
    Choice,
    Seen,
    seen,
)
from bench.fleet.model import Alone, Run, Trouble
from bench.pages import prose
from bench.throughput.report import TIMES, spread_of

HEADS = {
    "jitter": "jitter",
    "descent": "levels come down",
    "longest": "max_duration",
    "start": "after the last probe",
    "batch": "batch_size",
    "timeout": "redis.timeout",
    "waits": "a batch waits, s",
}


@dataclass(slots=True)
class Results:
    runs: dict[tuple[str, Choice], list[Run]] = field(default_factory=dict)
    """By the trouble's key and the choice, one for each seed."""
    alone: dict[Choice, list[Alone]] = field(default_factory=dict)

    def seen(self, trouble: Trouble, choice: Choice, daemons: int) -> list[Seen]:
        return [seen(run, daemons) for run in self.runs[trouble.key, choice]]


def longest_text(longest_s: int) -> str:
    return f"{longest_s // 60}m" if longest_s % 60 == 0 else f"{longest_s}s"


def words_of(choice: Choice) -> dict[str, str]:
    return {
        "jitter": choice.jitter,
        "descent": choice.descent,
        "longest": longest_text(choice.longest_s),
        "start": "slow start" if choice.slow_start else "all at once",
        "batch": f"{choice.batch_size}",
        "timeout": f"{choice.timeout_s:g}s",
        "waits": f"{waits_s(choice):.1f}",
    }


def waits_s(choice: Choice) -> float:
    """A batch, when every daemon has two under way and the store is healthy."""
    return model.DAEMONS * model.WRITES_UNDER_WAY * (choice.batch_size + model.BATCH_WORK) / model.CAPACITY


def figure(values: Iterable[float], form: str = ",.0f") -> str:
    """Median and spread; one number where they do not differ; and when it took longer than was watched."""
    spread = spread_of(values)
    if spread.high == math.inf:
        return f"> {model.WATCHED_S}"
    is_one = f"{spread.low:{form}}" == f"{spread.high:{form}}"
    return f"{spread.median:{form}}" if is_one else spread.text(form)


Columns = dict[str, Callable[[Sequence[Seen]], str]]
COLUMNS: Columns = {
    f"peak load, {TIMES} capacity": lambda runs: figure((one.peak for one in runs), ".1f"),
    "batches given up": lambda runs: figure(one.gave_up for one in runs),
    "store used in the first minute, %": lambda runs: figure(100 * one.used for one in runs),
    "stores what comes in, s": lambda runs: figure(one.back_s for one in runs),
    "half flow, s": lambda runs: figure(one.half_s for one in runs),
    "all flow, s": lambda runs: figure(one.all_s for one in runs),
}
AT_LAST: Columns = {
    **{head: COLUMNS[head] for head in ("batches given up", "half flow, s", "all flow, s")},
    "store used at last, %": lambda runs: figure(100 * one.used_at_last for one in runs),
}
USED: Columns = {
    "store used meanwhile, %": lambda runs: figure(100 * one.used_before for one in runs),
    "given up meanwhile": lambda runs: figure(one.gave_up_before for one in runs),
    "given up afterwards": lambda runs: figure(one.gave_up for one in runs),
    "all flow, s": COLUMNS["all flow, s"],
}


def table(
    results: Results,
    choices: Sequence[Choice],
    trouble: Trouble,
    daemons: int,
    columns: Columns = COLUMNS,
) -> list[str]:
    """One row a choice; what all rows have in common is no column."""
    told = [name for name in HEADS if len({words_of(choice)[name] for choice in choices}) > 1]
    lines = [
        f"| {' | '.join([*(HEADS[name] for name in told), *columns])} |",
        f"|{'---|' * len(told)}{'--:|' * len(columns)}",
    ]
    for choice in choices:
        runs = results.seen(trouble, choice, daemons)
        cells = [words_of(choice)[name] for name in told] + [column(runs) for column in columns.values()]
        if choice == CHOSEN:
            cells = [f"**{cell}**" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def alone_table(results: Results) -> list[str]:
    lines = [
        "| max_duration | levels come down | left alone, median, s | worst, s | asks/s of the dead store |",
        "|--:|---|--:|--:|--:|",
    ]
    for choice in DURATIONS:
        runs = results.alone[choice]
        words = words_of(choice)
        cells = [
            words["longest"],
            words["descent"],
            figure(statistics.median(one.left_alone_s) for one in runs),
            figure(one.left_alone_s[-1] for one in runs),
            figure(one.asks_per_s for one in runs),
        ]
        if choice == CHOSEN:
            cells = [f"**{cell}**" for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def markdown(results: Results, daemons: int, seeds: int) -> str:
    def page_table(choices: Sequence[Choice], trouble: Trouble, columns: Columns = COLUMNS) -> str:
        return "\n".join(table(results, choices, trouble, daemons, columns))

    parts = [
        "# Backing off as a fleet, simulated",
        prose(
            f"""Written by `make bench-fleet`: {daemons:,} daemons and one store, in simulated time, with the real
            controller. The numbers are the same on every machine. Medians of {seeds} seeds, and in brackets the
            smallest and the largest. In bold the defaults: full jitter, `max_duration` 30s, levels that come
            down one by one, slow start. [Tuning](../tuning.md) says what follows from it."""
        ),
        "## How long a healthy store is left alone",
        prose(
            """The store was down for a quarter of an hour and is whole again at once. How long until a daemon's
            backoffs are over, and what a short `max_duration` costs meanwhile: the single messages with which the
            whole fleet asks the dead store."""
        ),
        "![how long a healthy store is left alone, by max_duration and by how levels come down](fleet-alone.svg)",
        "\n".join(alone_table(results)),
        "## A store that comes back with little capacity",
        prose(
            f"""It was down for a quarter of an hour, can do a tenth of its work at first and all of it a minute
            later. A batch that waits longer than {model.TIMEOUT_S:g} s is given up, and is served all the same."""
        ),
        "![daemons that flow again, by the second](fleet-recovery.svg)",
        page_table(DURATIONS, LONG),
        "Jitter and slow start:",
        "![what the store is asked for beside what it can do](fleet-load.svg)",
        page_table(JITTERS, LONG),
        "The way down:",
        page_table(DESCENTS, LONG),
        "## A fleet that does not fit its store",
        prose(
            """With a backlog everywhere each daemon has two full batches under way, and the last waits for all before
            it. Where that is longer than the time-out, batches are given up again and again, and the store works for
            nobody. The same outage again:"""
        ),
        page_table(FITS, LONG, AT_LAST),
        "## A short outage",
        "Twenty to thirty seconds, then the same.",
        page_table(DURATIONS, SHORT),
        page_table(JITTERS, SHORT),
        "## A store that is slow",
        prose(
            f"""For two minutes it can do a tenth of its work, a fifth of what comes in; then all of it. A daemon
            steps back when a batch takes longer than {model.TIMEOUT_S:g} s. The first figure says how well what
            there was got used."""
        ),
        page_table(JITTERS, SLOW, USED),
        page_table(DESCENTS, SLOW, USED),
        "## A store that fails a part",
        "For a minute one batch of ten fails, at once. The first figure is of what came in.",
        page_table(DESCENTS, FAILING, USED),
        "## The model",
        "\n".join(f"- {prose(note, indent=2)}" for note in notes()),
    ]
    return "\n\n".join(parts) + "\n"


def notes() -> list[str]:
    return [
        f"""Each daemon: `max_in_flight` {model.MAX_IN_FLIGHT:,}, `batch_size` {model.BATCH_SIZE},
        {model.WRITES_UNDER_WAY} writes under way, `redis.timeout` {model.TIMEOUT_S:g} s. {model.COMES_IN}
        messages a second come into a backlog of its own, also during the trouble. What fails goes back into it
        at once.""",
        f"""The store: first come, first served, {model.CAPACITY:,} units of work a second when healthy. A message
        is one unit, a batch {model.BATCH_WORK} more. All that comes in is half of it. It serves also what a
        daemon has given up: Redis reads a request before it sees that the connection is gone.""",
        f"""With every daemon at the whole of its limit a batch waits {waits_s(CHOSEN):.1f} s: the fleet just fits the
        store.""",
        """A dead store refuses at once. An answer is on its way for 5 to 15 ms. A daemon that has caught up asks
        once a second.""",
        f"""Load is by the second: the work asked for in it, over what the store can do in it. *Flow* means FLOWING,
        the whole of `max_in_flight`, and holds for ten seconds. A run ends after {model.WATCHED_S} s, or when
        all have flowed for {model.SETTLED_S} s.""",
        """Not modelled: nsqd; connections and their set-up; consumers that share a channel (the others take what a
        daemon in a backoff leaves); a store that fails by its data.""",
    ]
