"""Every error that this product raises on purpose, typed by whose fault it is and whether retrying helps.

Foreign errors (sockets, the Redis driver, HTTP) are translated into these where they enter: no code above the edge
handles a driver's own class. A message tells what happened, where, and the remedy.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from nsqdigest.base.reasons import ConnectionLoss, LookupProblem

EXIT_OK = 0
EXIT_NO = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 69
EXIT_CONFIG = 78

ENVIRONMENT = "environment"


class NsqdigestError(Exception):
    """The root. `exit_code` is what a command ends with when this reaches its end."""

    exit_code = EXIT_NO
    needs_operator = False
    """Retrying soon cannot help: somebody has to change something first."""


class Mistake(str):
    """One problem of the operator's file, or one piece of advice: the text is for people, the attributes for scripts.

    `file` is "environment" where a variable is at fault; `path` is its name then. `line` is None where there is none.
    """

    file: str
    line: int | None
    path: str
    problem: str
    remedy: str

    def __new__(
        cls, problem: str, remedy: str = "", *, file: str = "", line: int | None = None, path: str = ""
    ) -> Mistake:
        body = f"{problem}; {remedy}" if remedy else problem
        if file == ENVIRONMENT:
            text = f"{file} {path}: {body}"
        else:
            place = file if line is None else f"{file}:{line}"
            text = ": ".join(filter(None, (place, path, body)))
        mistake = super().__new__(cls, text)
        mistake.file, mistake.line, mistake.path, mistake.problem, mistake.remedy = file, line, path, problem, remedy
        return mistake

    def as_json(self) -> dict[str, str | int | None]:
        return {name: getattr(self, name) for name in ("file", "line", "path", "problem", "remedy")}


class ConfigError(NsqdigestError):
    """The operator's file (or environment) is wrong. Holds every problem of it, in the order of the file."""

    exit_code = EXIT_CONFIG

    def __init__(self, problems: list[Mistake]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Unreachable(NsqdigestError):
    """A service that the file names does not answer, or its answer shows that it cannot serve us."""

    exit_code = EXIT_UNREACHABLE


class NsqdError(NsqdigestError):
    """Something at one nsqd, or on the connection to it. Other connections go on."""

    loss: ClassVar[ConnectionLoss] = ConnectionLoss.CLOSED
    """How an open connection that ends with this error is counted."""

    @property
    def signature(self) -> str:
        """The same for two errors that an operator would call the same, whatever numbers their texts hold."""
        return str(self) if self.needs_operator else type(self).__name__


class ProtocolError(NsqdError):
    """A peer sent bytes that the protocol does not know. The connection is closed."""

    loss = ConnectionLoss.GARBAGE


class ConnectionLost(NsqdError):
    """A connection ended, or fell silent, while something was still expected of it."""


class NsqdSilent(ConnectionLost):
    """Two heartbeats passed without a byte: the peer stands still, or the network between is cut."""

    loss = ConnectionLoss.SILENT


class NotReached(ConnectionLost):
    """The connection ended before nsqd looked at this command: it certainly did not happen."""


class BehindRefusal(NotReached):
    """Another command was refused, which ended the connection: it says nothing of this one."""


class NsqdRefused(NsqdError):
    """nsqd answered a command with an error frame. `code` is nsqd's own, such as E_BAD_TOPIC, `detail` the rest.

    `remedy` tells the operator what to change; set only where retrying cannot help.
    """

    loss = ConnectionLoss.REFUSED

    def __init__(self, code: str, detail: str, remedy: str = "") -> None:
        text = f"{code}: {detail}" if detail else code
        super().__init__(f"{text}; {remedy}" if remedy else text)
        self.code = code
        self.detail = detail
        self.needs_operator = bool(remedy)

    @property
    def signature(self) -> str:
        return str(self) if self.needs_operator else f"{type(self).__name__} {self.code}"


class NsqdMismatch(NsqdError):
    """nsqd and the file do not fit together: TLS, a certificate, AUTH. The message contains the remedy."""

    needs_operator = True


class LookupFailed(NsqdigestError):
    """A nsqlookupd, or the HTTP side of an nsqd, gave no usable answer. Never a reason to end a connection."""

    def __init__(self, reason: LookupProblem, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Applied(StrEnum):
    """Whether a write that failed has happened."""

    NO = "no"
    AMBIGUOUS = "ambiguous"


class PublishError(NsqdigestError):
    """nsqd did not acknowledge all messages of a publish.

    The first `acknowledged` of them are safe; `applied` tells whether nsqd may have others. If nsqd refused, `code` is
    its code and `answer` the words after it, and `cause` has neither these words nor an unknown code.
    """

    def __init__(
        self,
        message: str,
        *,
        applied: Applied,
        code: str = "",
        cause: str = "",
        answer: str = "",
        acknowledged: int = 0,
    ) -> None:
        super().__init__(message)
        self.cause = cause or message
        self.answer = answer
        self.applied = applied
        self.code = code
        self.acknowledged = acknowledged


class StoreError(NsqdigestError):
    """Redis did not execute a call, or may not have. Never a reason to FIN.

    `reason` is one of a closed set, for logs and metrics; `applied` tells whether the write may have happened. `what`
    is the text without the remedy; `remedy` is "" if the reason has none of its own.
    """

    exit_code = EXIT_UNREACHABLE

    def __init__(self, reason: str, detail: str, applied: Applied = Applied.AMBIGUOUS, remedy: str = "") -> None:
        self.what = f"{reason}: {detail}" if detail else reason
        super().__init__(f"{self.what}; {remedy}" if remedy else self.what)
        self.reason = reason
        self.applied = applied
        self.remedy = remedy

    @property
    def is_damage(self) -> bool:
        """A script met something it cannot work with, such as a key of another type. Other keys work."""
        return self.reason == "redis-script"


def remedy_of_redis(source: str) -> str:
    """For an error of Redis that has none of its own. `source`: the file with its URL."""
    return f"see that it runs, and redis.url in {source}"


class StoreMismatch(NsqdigestError):
    """The data in Redis was laid out under other settings; starting would split it. The message contains the remedy."""

    exit_code = EXIT_CONFIG


class IllegalEvent(NsqdigestError):
    """An event that the table of transitions does not allow in this state: a bug of the program."""
