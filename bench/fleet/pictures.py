"""Runs to pictures (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.drawing import WIDTH, Frame, colours, dot, legend, path, svg, text
from bench.fleet.compare import CHOSEN, DURATIONS, LONG, Choice
from bench.fleet.model import CAPACITY, Run
from bench.fleet.report import Results, longest_text

STYLE = colours(
    ours=("#1a7f5a", "#3fb984"),
    other=("#9a6700", "#d4a72c"),
    third=("#5b5bd6", "#a5a5f5"),
    bad=("#c4503c", "#e5755f"),
    store=("#59636e", "#9aa4af"),
)
CSS = {"one by one": "ours", "halved": "bad", "to level 1": "other", "straight to 0": "third"}


def alone_svg(results: Results) -> str:
    """A line from the median to the worst for each way down, by max_duration; both in the middle of the seeds."""
    step, gap, top, left, right = 22, 16, 84, 130, 250
    worst_s = max(one.left_alone_s[-1] for runs in results.alone.values() for one in runs)
    groups = list(dict.fromkeys(choice.longest_s for choice in DURATIONS))
    rows = len(DURATIONS)
    height = rows * step + (len(groups) - 1) * gap
    frame = Frame(left, top, WIDTH - left - right, height, -(-worst_s // 30) * 30, 1)
    body = [
        text(20, 32, "How long a healthy store is left alone after an outage, in seconds", "ink head"),
        text(20, 54, "dot: median of the daemons; end of the line: the slowest", "faint"),
        text(WIDTH - 20, 54, "asks/s of the dead store", "faint", "end"),
    ]
    for second in range(0, int(frame.last_x) + 1, 30):
        x, _ = frame.at(second, 0)
        body += [
            path([(x, top - 8), (x, top + height)], "rule"),
            text(x, top + height + 20, f"{second}", "faint small", "middle"),
        ]
    y = top + step / 2
    for longest_s in groups:
        choices = [choice for choice in DURATIONS if choice.longest_s == longest_s]
        middle = y + step * (len(choices) - 1) / 2
        is_chosen = longest_s == CHOSEN.longest_s
        body.append(text(20, middle + 4.5, f"max {longest_text(longest_s)}", "ink strong" if is_chosen else "ink"))
        asks = statistics.median(one.asks_per_s for one in results.alone[choices[0]])
        body.append(text(WIDTH - 20, middle + 4.5, f"{asks:.0f}", "ink strong" if is_chosen else "ink", "end"))
        for choice in choices:
            css = CSS[choice.descent]
            median_s = statistics.median(statistics.median(one.left_alone_s) for one in results.alone[choice])
            slowest_s = statistics.median(one.left_alone_s[-1] for one in results.alone[choice])
            (from_x, _), (to_x, _) = frame.at(median_s, 0), frame.at(slowest_s, 0)
            words = f"{choice.descent}: {median_s:.0f}, at worst {slowest_s:.0f}"
            body += [
                path([(from_x, y), (to_x, y)], f"{css}-line"),
                dot(from_x, y, 5, css),
                text(to_x + 10, y + 4.5, words, "ink strong halo" if choice == CHOSEN else "faint halo"),
            ]
            y += step
        y += gap
    return svg(top + height + 36, "How long a healthy store is left alone after an outage", body, STYLE)


def recovery_svg(results: Results, daemons: int) -> str:
    """Part of the daemons that flow, by the second, in the middle of the seeds."""
    last_s, left, top = 240, 60, 84
    frame = Frame(left, top, WIDTH - left - 190, 250, last_s, 100)
    lines = {
        Choice(descent="straight to 0"): "third-line",
        Choice(descent="halved"): "other-line",
        CHOSEN: "ours-line",
        Choice(descent="halved", longest_s=120): "store-line",
        Choice(longest_s=120): "bad-line",
    }
    body = [
        text(20, 32, "Daemons that flow again, %", "ink head"),
        text(20, 54, "seconds since a store came back that had been down for a quarter of an hour", "faint"),
        *frame.axes([(s, f"{s}") for s in range(0, last_s + 1, 30)], [(p, f"{p}") for p in range(0, 101, 25)]),
    ]
    for number, (choice, css) in enumerate(lines.items()):
        runs = results.runs[LONG.key, choice]
        body.append(frame.curve([(0.0, 0.0), *_flowing(runs, daemons, last_s)], css))
        y = top + 14 + number * 24
        words = f"{longest_text(choice.longest_s)}, {choice.descent}"
        body += legend(left + frame.width + 18, y, [(css, words)])
    return svg(top + 250 + 36, "Daemons that flow again after an outage", body, STYLE)


def _flowing(runs: Sequence[Run], daemons: int, last_s: int) -> list[tuple[float, float]]:
    """Where a run ended, all flowed."""
    return [
        (
            second + 1.0,
            100 * statistics.median(run.flowing[min(second, len(run.flowing) - 1)] for run in runs) / daemons,
        )
        for second in range(last_s)
    ]


PANELS = {
    "no jitter": Choice(jitter="none"),
    "full jitter, straight to 0": Choice(descent="straight to 0"),
    "full jitter, one by one: the defaults": CHOSEN,
    "decorrelated, one by one": Choice(jitter="decorrelated"),
}


def load_svg(results: Results) -> str:
    """What was asked for in each second beside what the store could do, in the first seed."""
    last_s, most, width, height, top = 60, 4, 365, 130, 100
    body = [
        text(20, 32, "Work asked of a store that comes back, in multiples of what it can do when healthy", "ink head"),
        *legend(20, 60, [("bad-line", "all at once"), ("ours-line", "slow start"), ("store-wash", "what it can do")]),
        text(WIDTH - 20, 60, "seconds since it came back", "faint", "end"),
    ]
    for number, (words, choice) in enumerate(PANELS.items()):
        left, panel_top = 50 + number % 2 * (width + 55), top + number // 2 * (height + 62)
        frame = Frame(left, panel_top, width, height, last_s, most)
        body.append(text(left, panel_top - 10, words, "ink strong"))
        body += frame.axes([(s, f"{s}") for s in range(0, last_s + 1, 15)], [(n, f"{n}") for n in range(most + 1)])
        slow, fast = (results.runs[LONG.key, choice._replace(slow_start=slow)][0] for slow in (True, False))
        body += [
            frame.area([(second + 0.5, slow.capacity[second] / CAPACITY) for second in range(last_s)], "store-wash"),
            frame.curve([(second + 0.5, fast.asked[second] / CAPACITY) for second in range(last_s)], "bad-line"),
            frame.curve([(second + 0.5, slow.asked[second] / CAPACITY) for second in range(last_s)], "ours-line"),
        ]
    return svg(top + 2 * height + 62 + 36, "Work asked of a store that comes back", body, STYLE)
