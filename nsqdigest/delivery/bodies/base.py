"""What a body is: a digest's JSON in, the bytes to post out (pure)."""

from __future__ import annotations

from collections.abc import Callable

JSON = "application/json"
MAIL = "message/rfc822"

Body = Callable[[bytes], bytes]
"""Raises `BodyFailed` where the operator has to change something."""


class BodyFailed(Exception):
    """A body could not be made of this digest. The fault is the template's, never the digest's.

    `problem` and `remedy` quote nothing of an event; `quoting` may.
    """

    def __init__(self, problem: str, remedy: str, line: int | None = None, quoting: str = "") -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.line = line
        """Of the template."""
        self.quoting = quoting
