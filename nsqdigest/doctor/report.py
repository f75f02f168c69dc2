"""What was found, as lines for people or as an object for scripts (pure).

Text of peers (a version, a broadcast address, the subject of a certificate) is shown without control characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nsqdigest.base.findings import Finding, State
from nsqdigest.base.screen import BOLD, DIM, GREEN, RED, WIDTH_OF_A_PIPE, YELLOW, painted, wrapped
from nsqdigest.base.shown import printable
from nsqdigest.doctor.findings import Part, is_well

_MARKS = {State.OK: "ok", State.NOTE: "note", State.WARN: "warn", State.FAIL: "FAIL"}
_COLOURS = {State.OK: GREEN, State.NOTE: DIM, State.WARN: YELLOW, State.FAIL: RED}
_WIDEST_WHAT = 32
_BEFORE_REMEDY = " " * 8


def as_json(parts: Sequence[Part], *, strict: bool) -> dict[str, Any]:
    """What is on the screen below a heading has it in front here."""
    findings = [(part.name, finding) for part in parts for finding in part.findings]
    checks = [
        {"what": f"{name} {each.what}", "state": each.state.value, "detail": each.detail, "remedy": each.remedy}
        for name, each in findings
    ]
    return {"ok": is_well((finding for _, finding in findings), strict=strict), "checks": checks}


def lines(parts: Sequence[Part], *, colour: bool = False, width: int = WIDTH_OF_A_PIPE) -> Iterator[str]:
    for part in parts:
        if not part.findings:
            continue
        yield painted(part.name, BOLD, colour)
        widest = min(_WIDEST_WHAT, max(len(printable(each.what)) for each in part.findings))
        for finding in part.findings:
            yield from _of_finding(finding, widest, colour, width)
        yield ""
    yield _sum([finding for part in parts for finding in part.findings])


def _of_finding(finding: Finding, widest: int, colour: bool, width: int) -> Iterator[str]:
    mark = f"{_MARKS[finding.state]:<4}"
    shown = painted(mark, _COLOURS[finding.state], colour)
    begin = f"  {mark}  {printable(finding.what):<{widest}}  "
    if width and len(begin) > width / 2:  # a narrow terminal: no column for the details
        first, others = begin.rstrip(), wrapped(printable(finding.detail), _BEFORE_REMEDY, _BEFORE_REMEDY, width)
    else:
        first, *others = wrapped(printable(finding.detail), begin, _BEFORE_REMEDY, width)
    yield first.replace(mark, shown, 1)
    yield from others
    if finding.remedy:
        yield from wrapped(printable(finding.remedy), f"{_BEFORE_REMEDY}-> ", f"{_BEFORE_REMEDY}   ", width)


def _sum(findings: Sequence[Finding]) -> str:
    counts = {state: sum(finding.state is state for finding in findings) for state in State}
    if is_well(findings):
        return f"nothing found: {counts[State.OK]} ok"
    said = [f"{counts[State.FAIL]} failed"] if counts[State.FAIL] else []
    if warned := counts[State.WARN]:
        said.append(f"{warned} warning{'' if warned == 1 else 's'}")
    return f"found: {', '.join(said)}, {counts[State.OK]} ok"
