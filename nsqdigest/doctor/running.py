"""What a daemon that runs already says of itself, at /readyz?verbose (pure).

Its lines are `[+] name: detail`, with `-` where that makes it unready and `!` where somebody should look at it all the
same: a sink that refuses or is stopped, what an operator paused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nsqdigest.base.findings import Finding, State
from nsqdigest.base.reasons import SinkState

_ELSEWHERE = "write another address in admin.listen"
_READY = re.compile(r"^\[[+-]\] running: ", re.MULTILINE)
_NOT_WELL = re.compile(r"^\[-\] (.*)$", re.MULTILINE)
_TROUBLE = re.compile(r"^\[!\] ([^:\n]+): (.*)$", re.MULTILINE)
_REMEDIES = {
    SinkState.STOPPED: "send the daemon HUP once the receiver takes digests again",
    SinkState.BEHIND: "raise its concurrency, or see why its receiver is slow",
    SinkState.DELIVERING: "see scheduler.digest.failed in the daemon's log, and what the receivers in question answer",
    SinkState.REFUSING: "see scheduler.digest.failed in the daemon's log, and what the receiver answers",
}

_REMEDIES_OF_CHECKS = {
    "config": "correct the file, see `nsqdigest check`, and send HUP again",
    "descriptors": "see NsqdigestDescriptors in docs/runbook.md",
}
"""By the name of a check that is neither a sink nor paused."""


def of_silent_admin(address: str, within_s: float, pids: Sequence[int]) -> Finding:
    """`pids`: the daemons of the namespace that run on this machine."""
    who = f" (pid {' or '.join(map(str, pids))})" if pids else ""
    detail = f"something listens there and does not answer within {within_s:g} s: perhaps a daemon that hangs{who}"
    remedy = f"see whose it is (`ss -ltnp`, `ss -lxnp`); restart it if it is the daemon; else {_ELSEWHERE}"
    return Finding(address, State.FAIL, detail, remedy)


def of_used_admin(address: str, answer: str) -> list[Finding]:
    """`answer`: to /readyz?verbose, "" if it was no HTTP."""
    if not _READY.search(answer):
        detail = "in use, and not by a daemon of nsqdigest"
        return [Finding(address, State.FAIL, detail, f"end what listens there, or {_ELSEWHERE}")]
    found = [Finding(address, State.OK, "a daemon runs here already, and is ready")]
    if troubles := _NOT_WELL.findall(answer):
        detail = f"a daemon runs here and is not ready: {', '.join(troubles)}"
        found = [Finding(address, State.WARN, detail, f"look into its log, and at http://{address}/readyz?verbose")]
    return found + [
        Finding(what, State.WARN, detail, _remedy_of(what, detail)) for what, detail in _TROUBLE.findall(answer)
    ]


def _remedy_of(what: str, detail: str) -> str:
    if what in _REMEDIES_OF_CHECKS:
        return _REMEDIES_OF_CHECKS[what]
    found = next((remedy for state, remedy in _REMEDIES.items() if re.match(rf"{state}\b", detail)), None)
    return found or f"nsqdigest resume {what}, when it is to go on"
