"""The parts of the doctor's report, and whether all of it is well (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nsqdigest.base.findings import Finding, State


class Part(NamedTuple):
    """Findings that the report shows together. What a finding is about is named within its part."""

    name: str
    findings: tuple[Finding, ...]


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether nobody has to do anything."""
    return all(finding.state in (State.OK, State.NOTE) for finding in findings)
