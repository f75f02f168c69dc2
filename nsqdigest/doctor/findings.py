"""The parts of the doctor's report, and whether all of it is well (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nsqdigest.base.findings import Finding, State


class Part(NamedTuple):
    """Findings that the report shows together. What a finding is about is named within its part."""

    name: str
    findings: tuple[Finding, ...]


def is_well(findings: Iterable[Finding], *, strict: bool = True) -> bool:
    """Whether nobody has to do anything; not `strict`: whether everything works."""
    bad = (State.WARN, State.FAIL) if strict else (State.FAIL,)
    return not any(finding.state in bad for finding in findings)
