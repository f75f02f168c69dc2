"""Problems and warnings of a file, each with its place and its remedy, in the order of the file.

A reader raises `Wrong` for the one value that it reads and knows nothing of files; a `Spot` knows the place.

Invariants:
- A message never repeats a value that came out of `env:` or `file:` or that may be a credential.
- A problem reported once is marked INVALID, so that no rule reports it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nsqdigest.base import files
from nsqdigest.base.errors import ENVIRONMENT, Mistake
from nsqdigest.base.files import FileProblem
from nsqdigest.config.toml_lines import KeyPath, line_of

_SHOWN_CHARACTERS = 60
_LARGEST_SECRET_FILE_BYTES = 64 * 1024
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Invalid:
    """In place of a value whose problem is reported already."""


INVALID: Final = Invalid()


class NotAtHand(Exception):
    """The value of a reference is not on this machine, and need not be."""


class Wrong(Exception):
    """The mistake in a value ("is not a duration") and the remedy ("write …").

    `hidden_remedy` repeats nothing of the value: it is for one that may be a credential.
    """

    def __init__(self, mistake: str, remedy: str, hidden_remedy: str | None = None) -> None:
        super().__init__(mistake, remedy)
        self.mistake = mistake
        self.remedy = remedy
        self.hidden_remedy = remedy if hidden_remedy is None else hidden_remedy


def show(value: Any) -> str:
    """A value of the file for a message: on one line, and cut where it is long."""
    if isinstance(value, str):
        text = value if len(value) <= _SHOWN_CHARACTERS else value[: _SHOWN_CHARACTERS - 1] + "…"
        return json.dumps(text, ensure_ascii=not text.isprintable())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        text = str(value) if not isinstance(value, int) or abs(value) < 10**20 else "a number of many digits"
        return text
    return "a list" if isinstance(value, list) else "a table" if isinstance(value, dict) else "a date"


def toml(value: Any) -> str:
    """A value of an option as the file writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(toml(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def dotted(path: KeyPath) -> str:
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (
                step if _BARE_KEY.fullmatch(step) else json.dumps(step, ensure_ascii=False)
            )
    return text


@dataclass(slots=True)
class Findings:
    """The problems and warnings of one file and of the environment that overrides it."""

    source: str
    environ: Mapping[str, str]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    without_secrets: bool = False
    """Whether what `env:`, `file:` and the files of [nsq.tls] stand for may be elsewhere."""
    overridden_by: dict[KeyPath, str] = field(default_factory=dict)
    """The variable of the environment that set the value at a path."""
    variables_named: set[str] = field(default_factory=set)
    """Variables that the file refers to as env:NAME."""
    _not_at_hand: list[Mistake] = field(default_factory=list)
    stand_ins: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)
    """For each reference that was let pass: the values that it is missing from, its attribute, and what stands there
    once all rules ran. A rule must not judge what stands in."""
    _problems: list[Mistake] = field(default_factory=list)
    _warnings: list[Mistake] = field(default_factory=list)

    def _mistake(self, path: KeyPath, problem: str, remedy: str) -> Mistake:
        for length in range(len(path), 0, -1):
            if variable := self.overridden_by.get(path[:length]):
                return Mistake(problem, remedy, file=ENVIRONMENT, path=variable)
        return Mistake(problem, remedy, file=self.source, line=line_of(self.lines, path), path=dotted(path))

    def rename(self, key: str, meant: str) -> None:
        """The lines of `key` become those of `meant`."""
        self.lines = {**self.lines, **{(meant, *path[1:]): line for path, line in self.lines.items() if path[0] == key}}

    def problem(self, path: KeyPath, problem: str, remedy: str) -> None:
        self._problems.append(self._mistake(path, problem, remedy))

    def problem_of(self, path: KeyPath, file: str, line: int | None, problem: str, remedy: str) -> None:
        self._problems.append(Mistake(problem, remedy, file=file, line=line, path=dotted(path)))

    def warning_of(self, path: KeyPath, file: str, line: int | None, problem: str, remedy: str) -> None:
        self._warnings.append(Mistake(problem, remedy, file=file, line=line, path=dotted(path)))

    def warning(self, path: KeyPath, problem: str, remedy: str) -> None:
        self._warnings.append(self._mistake(path, problem, remedy))

    def let_pass(self, path: KeyPath, what: str) -> None:
        self._not_at_hand.append(self._mistake(path, what, ""))

    def fill(self, some: dict[str, Any] | None = None) -> None:
        """Puts what stands in where it belongs: everywhere, or into these values."""
        for values, attribute, value in self.stand_ins:
            if some is None or some is values:
                values[attribute] = value

    def variable_problem(self, variable: str, problem: str, remedy: str) -> None:
        self._problems.append(Mistake(problem, remedy, file=ENVIRONMENT, path=variable))

    def variable_warning(self, variable: str, problem: str, remedy: str) -> None:
        self._warnings.append(Mistake(problem, remedy, file=ENVIRONMENT, path=variable))

    @property
    def problems(self) -> list[Mistake]:
        """The file's in the order of its lines, then the environment's."""
        return sorted(self._problems, key=_place)

    @property
    def not_at_hand(self) -> tuple[Mistake, ...]:
        """The references that `without_secrets` let pass."""
        return tuple(sorted(self._not_at_hand, key=_place))

    @property
    def warnings(self) -> tuple[Mistake, ...]:
        return tuple(sorted(self._warnings, key=_place))


def _place(mistake: Mistake) -> tuple[bool, int]:
    return mistake.file == ENVIRONMENT, mistake.line or 0


@dataclass(frozen=True, slots=True)
class Spot:
    """One place of the configuration."""

    findings: Findings
    path: KeyPath = ()

    def __truediv__(self, step: str | int) -> Spot:
        return Spot(self.findings, (*self.path, step))

    @property
    def written(self) -> bool:
        """Whether the file or the environment has a value here; otherwise the default applies."""
        return self.path in self.findings.lines or self.path in self.findings.overridden_by

    def problem(self, problem: str, remedy: str) -> None:
        self.findings.problem(self.path, problem, remedy)

    def warning(self, problem: str, remedy: str = "") -> None:
        self.findings.warning(self.path, problem, remedy)

    def problem_of(self, file: str, line: int | None, problem: str, remedy: str) -> None:
        """In another file, which the value at this place names."""
        self.findings.problem_of(self.path, file, line, problem, remedy)

    def warning_of(self, file: str, line: int | None, problem: str, remedy: str) -> None:
        self.findings.warning_of(self.path, file, line, problem, remedy)

    def first_written(self, *keys: str) -> Spot:
        """Of several keys that are wrong together, the first that is written; else the first."""
        return next((self / key for key in keys if (self / key).written), self / keys[0])

    def resolve(self, value: Any) -> tuple[Any, str]:
        """Returns the value of `env:NAME` or `file:PATH` and that reference; any other value as it is, and ""."""
        if not isinstance(value, str):
            return value, ""
        if value.startswith("env:"):
            self.findings.variables_named.add(value.removeprefix("env:"))
            return self._of_environment(value.removeprefix("env:")), value
        if value.startswith("file:"):
            return self._of_file(value.removeprefix("file:")), value
        return value, ""

    def _of_environment(self, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Wrong("names no variable of the environment", 'write one like "env:HOOK_SECRET"')
        value = self.findings.environ.get(name)
        if self.findings.without_secrets and not value:
            raise NotAtHand
        if value is None:
            raise Wrong(f"stands for {name}, which the environment does not have", f"set {name}")
        if not value:
            raise Wrong(f"stands for {name}, which is empty in the environment", f"set {name}")
        return value

    def _of_file(self, name: str) -> str:
        if not name or "\0" in name:
            raise Wrong("names no file", 'write one like "file:hook.secret"')
        if name.startswith("~"):
            raise Wrong("begins with ~, which only a shell replaces", "write the whole path")
        path = Path(self.findings.source).parent / name
        try:
            file = files.read(path, _LARGEST_SECRET_FILE_BYTES)
        except FileProblem as problem:
            if self.findings.without_secrets and problem.is_elsewhere:
                raise NotAtHand from None
            raise Wrong(f"stands for {path}, which {problem.what}", problem.remedy) from None
        # The service's group may read it (0640, 0440), as systemd's and Docker's layouts have it.
        if file.mode & 0o022:
            raise Wrong(f"stands for {path}, which others than its owner may write", f"run: chmod 640 {path}")
        if file.mode & 0o004:
            self.warning(f"{path} may be read by every user of this machine", f"run: chmod o-r {path}")
        try:
            text = file.data.decode("utf-8")
        except UnicodeDecodeError:
            raise Wrong(f"stands for {path}, which is not UTF-8 text", "write the value alone into it") from None
        text = text.rstrip("\r\n")
        if not text:
            raise Wrong(f"stands for {path}, which is empty", "write the value into it")
        return text
