"""What was found, as lines for people or as an object for scripts (pure).

Text of peers (a version, a broadcast address, the subject of a certificate) is shown without control characters.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from nsqdigest.base.findings import Finding, State
from nsqdigest.base.shown import printable
from nsqdigest.doctor.findings import Part, is_well

WIDTH_OF_A_PIPE = 0
"""Nothing is broken over several lines, so that a line can be searched for."""

_MARKS = {State.OK: "ok", State.NOTE: "note", State.WARN: "warn", State.FAIL: "FAIL"}
_COLOURS = {State.OK: "32", State.NOTE: "2", State.WARN: "33", State.FAIL: "31"}
_WIDEST_WHAT = 32
_BEFORE_REMEDY = " " * 8
_NARROWEST = 40


def as_json(parts: Sequence[Part]) -> dict[str, Any]:
    """What is on the screen below a heading has it in front here."""
    findings = [(part.name, finding) for part in parts for finding in part.findings]
    checks = [
        {"what": f"{name} {each.what}", "state": each.state.value, "detail": each.detail, "remedy": each.remedy}
        for name, each in findings
    ]
    return {"ok": is_well(finding for _, finding in findings), "checks": checks}


def lines(parts: Sequence[Part], *, colour: bool = False, width: int = WIDTH_OF_A_PIPE) -> Iterator[str]:
    for part in parts:
        if not part.findings:
            continue
        yield f"\x1b[1m{part.name}\x1b[0m" if colour else part.name
        widest = min(_WIDEST_WHAT, max(len(printable(each.what)) for each in part.findings))
        for finding in part.findings:
            yield from _of_finding(finding, widest, colour, width)
        yield ""
    yield _sum([finding for part in parts for finding in part.findings])


def _of_finding(finding: Finding, widest: int, colour: bool, width: int) -> Iterator[str]:
    mark = f"{_MARKS[finding.state]:<4}"
    shown = f"\x1b[{_COLOURS[finding.state]}m{mark}\x1b[0m" if colour else mark
    begin = f"  {mark}  {printable(finding.what):<{widest}}  "
    first, *others = _wrapped(printable(finding.detail), begin, " " * (6 + 2), width)
    yield first.replace(mark, shown, 1)
    yield from others
    if finding.remedy:
        yield from _wrapped(printable(finding.remedy), f"{_BEFORE_REMEDY}-> ", f"{_BEFORE_REMEDY}   ", width)


def _wrapped(text: str, begin: str, margin: str, width: int) -> list[str]:
    if not width:
        return [begin + text]
    return textwrap.wrap(
        text, max(width, _NARROWEST), initial_indent=begin, subsequent_indent=margin,
        break_long_words=False, break_on_hyphens=False,
    ) or [begin.rstrip()]  # fmt: skip


def _sum(findings: Sequence[Finding]) -> str:
    counts = {state: sum(finding.state is state for finding in findings) for state in State}
    if is_well(findings):
        return f"nothing found: {counts[State.OK]} ok"
    said = [f"{counts[State.FAIL]} failed"] if counts[State.FAIL] else []
    if warned := counts[State.WARN]:
        said.append(f"{warned} warning{'' if warned == 1 else 's'}")
    return f"found: {', '.join(said)}, {counts[State.OK]} ok"
