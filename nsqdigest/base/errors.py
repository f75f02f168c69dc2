"""Every error this product raises on purpose, typed by whose fault it is and whether trying again helps.

Foreign errors (sockets, the Redis driver, HTTP) are translated into these where they enter; nothing above
the edge ever sees a driver's own class. Messages say what happened, where, and the remedy.
"""

from __future__ import annotations

from enum import StrEnum

from nsqdigest.base.reasons import LookupProblem

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
    """Trying again soon cannot help: somebody has to change something first."""


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
        said = f"{problem}; {remedy}" if remedy else problem
        if file == ENVIRONMENT:
            text = f"{file} {path}: {said}"
        else:
            place = file if line is None else f"{file}:{line}"
            text = ": ".join(filter(None, (place, path, said)))
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
    """A service that the file names does not answer, or answers that it cannot serve us."""

    exit_code = EXIT_UNREACHABLE


class ProtocolError(NsqdigestError):
    """A peer sent bytes that the protocol does not know. The connection is closed; others go on."""


class ConnectionLost(NsqdigestError):
    """A connection ended, or fell silent, while something was still expected of it."""


class NsqdSilent(ConnectionLost):
    """Two heartbeats passed without a byte: the peer stands still, or the way to it is cut."""


class NsqdRefused(NsqdigestError):
    """nsqd answered a command with an error frame. `code` is its own word, such as E_BAD_TOPIC, `detail` the rest.

    With a `remedy` it is the operator who has to go it.
    """

    def __init__(self, code: str, detail: str, remedy: str = "") -> None:
        said = f"{code}: {detail}" if detail else code
        super().__init__(f"{said}; {remedy}" if remedy else said)
        self.code = code
        self.detail = detail
        self.needs_operator = bool(remedy)


class NsqdMismatch(NsqdigestError):
    """nsqd and the file do not fit together: TLS, a certificate, AUTH. Says the remedy."""

    needs_operator = True


class LookupFailed(NsqdigestError):
    """A nsqlookupd did not say which nsqds have a topic. Never a reason to end a connection."""

    def __init__(self, reason: LookupProblem, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Applied(StrEnum):
    """What is known about a write that did not answer as it should."""

    NO = "no"
    AMBIGUOUS = "ambiguous"


class NotReached(ConnectionLost):
    """The connection ended before nsqd looked at this command: it certainly did not happen."""


class PublishError(NsqdigestError):
    """Messages that nsqd did not acknowledge.

    So many of them as `acknowledged` says, counted from the front, are safe all the same; `applied` says whether others
    may be. `code` is nsqd's own word where it refused, else "".
    """

    def __init__(self, message: str, *, applied: Applied, code: str = "", acknowledged: int = 0) -> None:
        super().__init__(message)
        self.applied = applied
        self.code = code
        self.acknowledged = acknowledged


class StoreError(NsqdigestError):
    """Redis did not do, or may not have done, what it was asked. Never a reason to FIN.

    `reason` is a bounded word for logs and metrics; `applied` says whether the write may have happened.
    """

    exit_code = EXIT_UNREACHABLE

    def __init__(self, reason: str, detail: str, applied: Applied = Applied.AMBIGUOUS) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.applied = applied

    @property
    def is_damage(self) -> bool:
        """A script met what it cannot work with, such as a key of another type: other keys are not concerned."""
        return self.reason == "redis-script"


class StoreMismatch(NsqdigestError):
    """The data in Redis was laid out under other settings; starting would split it. Says the remedy."""

    exit_code = EXIT_CONFIG


class IllegalEvent(NsqdigestError):
    """A fact that the table of transitions does not know in this state: a mistake of the program."""
