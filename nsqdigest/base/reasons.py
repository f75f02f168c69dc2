"""Closed sets of values that a log field, a metric label and the output of a command share.

The module that decides chooses one; they stand here together because the table of metrics needs all of them, and may
import nothing from the rooms that decide.
"""

from __future__ import annotations

from enum import StrEnum


class DeadLetterReason(StrEnum):
    """Why a message can never succeed, whatever is tried again."""

    NOT_UTF8 = "not-utf8"
    NOT_JSON = "not-json"
    NOT_AN_OBJECT = "not-an-object"
    TOO_DEEP = "too-deep"
    TOO_LARGE = "too-large"
    MISSING_FIELD = "missing-field"
    BAD_FIELD = "bad-field"
    BAD_TIMESTAMP = "bad-timestamp"
    NO_TARGET = "no-target"
    """It does not say where the sink of its route sends it."""
    REFUSED_BY_STORE = "refused-by-store"
    BUG = "bug"
    """The program made a mistake at it. Its traceback is in the log."""


class SkipReason(StrEnum):
    """Why a route does not file an event that it takes."""

    TOO_OLD = "too-old"
    """Older than its max_event_age."""


class ConnectionLoss(StrEnum):
    """Why an open connection to nsqd ended."""

    SILENT = "silent"
    """No bytes for two heartbeats."""
    REFUSED = "refused"
    """nsqd refused a command, and with it the connection."""
    GARBAGE = "garbage"
    """nsqd sent bytes that are not its protocol."""
    CLOSED = "closed"
    """Anything else: nsqd or the network ended it."""


class LookupProblem(StrEnum):
    UNREACHABLE = "unreachable"
    SLOW = "slow"
    STATUS = "status"
    TOO_LARGE = "too-large"
    GARBAGE = "garbage"


class Verdict(StrEnum):
    DELIVERED = "delivered"
    UNAVAILABLE = "unavailable"
    """The receiver as a whole is unwell: nothing about this digest."""
    AGAIN = "again"
    """This attempt failed; the next may succeed."""
    REFUSED = "refused"
    """The receiver does not want this digest; a few attempts more, then it is dead."""
    GONE = "gone"
    """The receiver is no more (410)."""
    UNRENDERED = "unrendered"
    """The sink's template made no body of it: nothing was sent, and it waits for another template."""
    NO_TARGET = "no-target"
    """None of its records says where it goes: nothing was sent."""
    DEFERRED = "deferred"
    """Its host, one of many of this sink, fails or is busy: nothing was sent."""


NOTHING_SENT = frozenset({Verdict.UNRENDERED, Verdict.NO_TARGET, Verdict.DEFERRED})
"""Verdicts without an attempt."""


class BuryReason(StrEnum):
    TOO_OLD = "too-old"
    TOO_MANY_ATTEMPTS = "too-many-attempts"
    REFUSED = "refused"
    GONE = "gone"
    """The place that it goes to is no more (410); other digests of its sink go elsewhere."""
    NO_TARGET = "no-target"
    """None of its records says where it goes."""
    VALUES_LOST = "values-lost"
    """Redis has the index of its records and none of their values."""

    @property
    def is_of_receiver(self) -> bool:
        """Whether the receiver did not take it."""
        return self is not BuryReason.VALUES_LOST


class SinkState(StrEnum):
    DELIVERING = "delivering"
    BEHIND = "behind"
    REFUSING = "refusing"
    PAUSED = "paused"
    STOPPED = "stopped"


class HttpRefusal(StrEnum):
    """Why a request to `admin.listen` was refused, or its connection closed."""

    HOST = "host"
    """It names another host: a web page may have been bound to our address."""
    FOREIGN_PAGE = "foreign-page"
    NO_TOKEN = "no-token"
    """The file has none."""
    TOKEN_MISSING = "token-missing"
    TOKEN_WRONG = "token-wrong"
    TOO_MANY_TOKENS = "too-many-tokens"
    """That were wrong, from one address."""
    READ_ONLY = "read-only"
    """The reading token, for a request that changes something."""
    BODY = "body"
    """A read with a body."""
    CONTENT_ENCODING = "content-encoding"
    CONTENT_TYPE = "content-type"
    MALFORMED = "malformed"
    """No HTTP, or HTTP that two servers might read differently."""
    TOO_SLOW = "too-slow"
    TOO_MUCH = "too-much"
    """More bytes than any request has."""
    TOO_MANY_CONNECTIONS = "too-many-connections"
    BUSY = "busy"
    """Too many requests are being answered: the places that are left are for health and metrics."""


class ReloadOutcome(StrEnum):
    """What became of a reload."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    """The file has mistakes, or something of it cannot change without a restart."""
    FAILED = "failed"
    """The file could not be read in time, or a part could not be built."""
