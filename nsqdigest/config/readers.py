"""Readers: each turns one value of the file into one value of the tree, whatever option it belongs to.

A reader gets the TOML value and its place; it returns the value as the daemon needs it, or raises `Wrong`. Only `take`
turns that into a problem, so that one mistake never hides another. A reader that one kind of sink alone needs is in the
file of that kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from nsqdigest.base.conditions import Condition, ConditionError
from nsqdigest.base.words import nearest
from nsqdigest.config import advice, references, texts, units
from nsqdigest.config.problems import INVALID, NotAtHand, Spot, Wrong, show, toml

_SHOWN_AS_LIST = 60
_TEMPLATE_LIKE = re.compile(r"\{\{|\$\{|^\{[\w.]+\}$")


@dataclass(frozen=True, slots=True)
class Reader:
    suffix: ClassVar[str] = ""
    """The unit, as the attribute's name carries it."""
    override: ClassVar[Literal["text", "data", "list", "text or list"]] = "text"
    """How a variable of the environment holds such a value: as it is; as TOML; as a list, in TOML or between commas; as
    it is unless it begins like a list."""
    resolves: ClassVar[bool] = True
    """Whether a value may be a reference, `env:` or `file:`."""
    hidden: ClassVar[bool] = False
    """Whether a message must not repeat the value."""
    is_template: ClassVar[bool] = False
    """Whether the value may hold fields of events."""

    def __call__(self, value: Any, spot: Spot) -> Any:
        raise NotImplementedError


def take(read: Reader, value: Any, spot: Spot) -> Any:
    """Returns what the reader makes of the value, or INVALID after reporting its problem, or that it is not at hand."""
    origin = ""
    try:
        if read.resolves:
            try:
                value, origin = spot.resolve(value)
            except NotAtHand:
                spot.findings.let_pass(spot.path, f"{show(value)} is not at hand")
                return INVALID
            except Wrong as wrong:
                spot.problem(f"{show(value)} {wrong.mistake}", wrong.remedy)
                return INVALID
            if (
                not origin
                and isinstance(value, str)
                and (found := references.stray(value, is_template=read.is_template))
            ):
                spot.problem(*found)
                return INVALID
        return read(value, spot)
    except Wrong as wrong:
        if read.hidden or origin:
            subject = f"the value of {show(origin)}" if origin else "the value"
            spot.problem(f"{subject} {wrong.mistake}", wrong.hidden_remedy)
        else:
            spot.problem(f"{show(value)} {wrong.mistake}", wrong.remedy)
        return INVALID


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    hidden = "write it in quotes"
    if isinstance(value, list):
        remedy = (
            f"write {show(value[0])}" if len(value) == 1 and isinstance(value[0], str) else "write one text, in quotes"
        )
        raise Wrong("is not text", remedy, "write one text, in quotes")
    if isinstance(value, dict):
        raise Wrong("is not text", "write text, in quotes")
    written = show(value)
    raise Wrong("is not text", f'write "{written}"' if isinstance(value, int | float) else hidden, hidden)


@dataclass(frozen=True, slots=True)
class Text(Reader):
    """Text that a function checks and may convert."""

    check: Callable[[str], Any]

    def __call__(self, value: Any, spot: Spot) -> Any:
        return self.check(text_of(value))


@dataclass(frozen=True, slots=True)
class SinkNames(Reader):
    """The sinks of a route, as a tuple: the file names one, or a list."""

    override = "text or list"
    resolves = False

    def __call__(self, value: Any, spot: Spot) -> Any:
        if not isinstance(value, list):
            name = take(_SINK, value, spot)
            return INVALID if name is INVALID else (name,)
        if not value:
            raise Wrong("has nothing in it", 'write the name of a sink, or several: ["chat", "mail"]')
        return ListOf(_SINK, '"chat", "mail"', unique=True)(value, spot)


@dataclass(frozen=True, slots=True)
class NameOf(Reader):
    """The name of the topic, the policy or a sink of a route."""

    what: str
    check: Callable[[str], str]

    def __call__(self, value: Any, spot: Spot) -> str:
        if isinstance(value, list):
            remedy = f"write a [[routes]] for each {self.what}, with a name of its own"
            raise Wrong(f"is not text: a route has one {self.what}", remedy)
        if isinstance(value, dict):
            table = {"policy": "policies", "sink": "sinks"}.get(self.what)
            remedy = (
                f'write a table [{table}.NAME] with it, and {self.what} = "NAME" here' if table else "write its name"
            )
            raise Wrong(f"is not text: a route names its {self.what}", remedy)
        return self.check(text_of(value))


class HiddenText(Text):
    __slots__ = ()
    hidden = True


class TemplateText(Text):
    """Text that may hold fields of events, and may be a reference."""

    __slots__ = ()
    is_template = True


class HiddenTemplate(TemplateText):
    __slots__ = ()
    hidden = True


class Unresolved(Text):
    """Text about fields of events, in which `env:` has no meaning."""

    __slots__ = ()
    resolves = False


@dataclass(frozen=True, slots=True)
class Choice(Reader):
    words: tuple[str, ...]

    def __call__(self, value: Any, spot: Spot) -> str:
        listing = ", ".join(show(word) for word in self.words[:-1]) + f" or {show(self.words[-1])}"
        text = value if isinstance(value, str) else ""
        if text in self.words:
            return text
        guess = nearest(text, self.words)
        if guess:
            raise Wrong(f"is not {listing}", f'write "{guess}"', f"write {listing}")
        raise Wrong("is not one of its values", f"write {listing}")


@dataclass(frozen=True, slots=True)
class Switch(Reader):
    override = "data"

    def __call__(self, value: Any, spot: Spot) -> bool:
        if isinstance(value, bool):
            return value
        guess = {"true": "true", "yes": "true", "on": "true", "1": "true"}.get(str(value).strip().lower())
        guess = guess or {"false": "false", "no": "false", "off": "false", "0": "false"}.get(str(value).strip().lower())
        raise Wrong("is neither true nor false", f"write {guess or 'true or false'}", "write true or false")


@dataclass(frozen=True, slots=True)
class Whole(Reader):
    lowest: int
    highest: int
    override = "data"

    def __call__(self, value: Any, spot: Spot) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            written = str(value).strip().replace(",", "").replace("_", "")
            is_number = not isinstance(value, bool) and re.fullmatch(r"-?[0-9]{1,15}(?:\.0*)?", written)
            like = f"write one from {self.lowest} to {self.highest}"
            raise Wrong("is not a whole number", f"write {int(float(written))}" if is_number else like, like)
        if value < self.lowest:
            raise Wrong("is too small", f"write {self.lowest} or more")
        if value > self.highest:
            raise Wrong("is too large", f"write {self.highest} or less")
        return value


@dataclass(frozen=True, slots=True)
class Fraction(Reader):
    override = "data"

    def __call__(self, value: Any, spot: Spot) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Wrong("is not a number", "write one from 0 to 1, such as 0.3")
        if not 0 <= value <= 1:
            raise Wrong("is not from 0 to 1", "write one such as 0.3")
        return float(value)


@dataclass(frozen=True, slots=True)
class Duration(Reader):
    shortest: str = "0s"
    longest: str = "3650d"
    zero: bool = False
    """Whether 0, shorter than the shortest, has a meaning of its own."""
    suffix = "_ms"

    def __call__(self, value: Any, spot: Spot) -> int:
        duration_ms = units.duration_ms(value)
        if duration_ms == 0 and self.zero:
            return 0
        if duration_ms < units.duration_ms(self.shortest):
            raise Wrong("is too short", f'write "{self.shortest}" or more' + (', or "0s"' if self.zero else ""))
        if duration_ms > units.duration_ms(self.longest):
            raise Wrong("is too long", f'write "{self.longest}" or less')
        return duration_ms


@dataclass(frozen=True, slots=True)
class Size(Reader):
    smallest: str
    largest: str
    suffix = "_bytes"

    def __call__(self, value: Any, spot: Spot) -> int:
        size_bytes = units.size_bytes(value)
        if size_bytes < units.size_bytes(self.smallest):
            raise Wrong("is too small", f'write "{self.smallest}" or more')
        if size_bytes > units.size_bytes(self.largest):
            raise Wrong("is too large", f'write "{self.largest}" or less')
        return size_bytes


@dataclass(frozen=True, slots=True)
class FilePath(Reader):
    """A file to open, "" for none; a relative path starts at the folder of the configuration."""

    def __call__(self, value: Any, spot: Spot) -> str:
        text = text_of(value)
        if "\0" in text:
            raise Wrong("is not a file's name", "write one")
        return str(Path(spot.findings.source).parent / texts.whole_path(text)) if text else ""


@dataclass(frozen=True, slots=True)
class Address(Reader):
    usual_port: int
    optional: bool = False
    """Whether "" means none."""

    def __call__(self, value: Any, spot: Spot) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            guess = units.guess_address(str(value), self.usual_port)
            like = f'write one like "127.0.0.1:{self.usual_port}"'
            raise Wrong("is not an address", f'write "{guess}"' if guess else like)
        text = text_of(value)
        return None if self.optional and not text else units.address(text, self.usual_port)


@dataclass(frozen=True, slots=True)
class Listen(Reader):
    """An address to listen on, a Unix socket, or "" for none."""

    usual_port: int

    def __call__(self, value: Any, spot: Spot) -> Any:
        if isinstance(value, str) and value.startswith("unix:"):
            return units.unix_socket(value)
        return Address(self.usual_port, optional=True)(value, spot)


@dataclass(frozen=True, slots=True)
class ListOf(Reader):
    element: Reader
    sample: str
    unique: bool = False
    override = "list"
    resolves = False

    @property
    def suffix(self) -> str:  # type: ignore[override]
        return self.element.suffix

    def __call__(self, value: Any, spot: Spot) -> Any:
        if not isinstance(value, list):
            each = [part.strip() for part in value.split(",")] if isinstance(value, str) else []
            remedy = (
                f"write {toml(each)}" if each and len(value) <= _SHOWN_AS_LIST else f"write one like [{self.sample}]"
            )
            raise Wrong("is not a list", remedy)
        taken = [take(self.element, each, spot / index) for index, each in enumerate(value)]
        if self.unique:
            for index, each in enumerate(taken):
                if each is not INVALID and each in taken[:index]:
                    (spot / index).problem(f"{show(value[index])} is listed twice", "leave one of them out")
        return INVALID if INVALID in taken else tuple(taken)


@dataclass(frozen=True, slots=True)
class OneOrMore(Reader):
    """A text or a list of texts, each of which a function checks and may convert; "" is none."""

    check: Callable[[str], Any]
    override = "text or list"
    resolves = False

    def __call__(self, value: Any, spot: Spot) -> Any:
        if isinstance(value, list):
            taken = [take(Unresolved(self.check), each, spot / index) for index, each in enumerate(value)]
            return INVALID if INVALID in taken else tuple(taken)
        text = text_of(value)
        return (self.check(text),) if text else ()


@dataclass(frozen=True, slots=True)
class MatchTable(Reader):
    override = "data"
    resolves = False

    def __call__(self, value: Any, spot: Spot) -> Any:
        if not isinstance(value, dict):
            raise Wrong("is not a table", 'write one like {severity = "error"}')
        taken = [(take(_PATH, name, spot / name), take(_WANTED, wanted, spot / name)) for name, wanted in value.items()]
        return INVALID if any(INVALID in each for each in taken) else tuple(taken)


@dataclass(frozen=True, slots=True)
class _Wanted(Reader):
    """The value, or the values, of a condition: `base.conditions` says what they mean."""

    resolves = False

    def __call__(self, value: Any, spot: Spot) -> Any:
        if isinstance(value, dict):
            inner = next(iter(value), "kind")
            raise Wrong("is not a value", f"write a path in quotes: {show(f'{spot.path[-1]}.{inner}')} = …")
        values = value if isinstance(value, list) else [value]
        if not values:
            raise Wrong("has nothing in it, so that nothing would match", "write the values, or leave the field out")
        for each in values:
            if not isinstance(each, str | int | float) or (isinstance(each, float) and not math.isfinite(each)):
                subject = "is nothing" if not isinstance(value, list) else f"holds {show(each)}, which is nothing"
                raise Wrong(f"{subject} a field can be compared with", "write text, numbers, true or false")
            if isinstance(each, str) and _TEMPLATE_LIKE.search(each):
                raise Wrong("looks like a template, and nothing fills it in", "write the value that the field has")
            if isinstance(each, str):
                advice.condition(each, spot)
            try:
                Condition.of([each])
            except ConditionError as error:
                subject = f"holds {show(each)}, which " if isinstance(value, list) else ""
                raise Wrong(f"{subject}{error.problem}", error.remedy) from None
        try:
            Condition.of(values)
        except ConditionError as error:
            raise Wrong(error.problem, error.remedy) from None
        return tuple(values)


_SINK = NameOf("sink", texts.name)
_WANTED = _Wanted()
_PATH = Unresolved(texts.field_path)
