"""What the commands on the store share: options, questions before something is deleted, and text for people."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from nsqdigest.base.errors import EXIT_NO, NsqdigestError
from nsqdigest.base.moments import instant
from nsqdigest.base.screen import columns, padded, wrapped
from nsqdigest.base.shown import printable
from nsqdigest.base.words import listed, nearest
from nsqdigest.cli.terminal import look_of_stdout

if TYPE_CHECKING:
    from nsqdigest.store.head import Head
    from nsqdigest.store.inspection import Known
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.record import StoredRecord

MOST_LISTED = 10_000
LONGEST_NAME = 60
_LONGEST_VALUE = 200


# -- options

json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON, on one line.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def limit_option(default: int, help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--limit", type=click.IntRange(1, MOST_LISTED), default=default, show_default=True, help=help_text
    )


class _Text(click.ParamType):  # type: ignore[type-arg]  # click 8.2 has no type arguments
    """Names in NSQ and Redis are UTF-8; other bytes of a command line name nothing."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail(f"{printable(value)} is not UTF-8", param, ctx)
        return str(value)


TEXT = _Text()


class Duration(click.ParamType):  # type: ignore[type-arg]
    """As in the file: "7d", "1h30m"."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from nsqdigest.config.problems import Wrong
        from nsqdigest.config.units import duration_ms

        try:
            return duration_ms(value)
        except Wrong as error:
            self.fail(f"{printable(str(value))} {error.mistake}; {error.remedy}", param, ctx)


def require_known(what: str, name: str, known: Collection[str], where: str) -> None:
    """Raises where there is none of this name. `where`: in what they were looked for."""
    if name in known:
        return
    near = nearest(name, known)
    names = f"there {'is' if len(known) == 1 else 'are'} {listed(map(printable, known))}"
    raise NsqdigestError(
        f"there is no {what} {shown(name)} in {where}; {f'did you mean {shown(near)}?' if near else names}"
    )


# -- questions


def confirm(question: str, *, yes: bool) -> None:
    """Returns where the operator agrees. Where nobody can be asked the command ends with exit code 2."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask at: add --yes")
    if not click.confirm(question, err=True):
        click.echo("nothing was changed", err=True)
        sys.exit(EXIT_NO)


# -- text


def shown(name: str) -> str:
    """A name of somebody else's, for a sentence."""
    return f'"{printable(name, LONGEST_NAME)}"'


def typed(name: str) -> str:
    """The same as the last argument of a command: who copies it into a shell runs nothing that stands in the name."""
    if printable(name) != name:
        return "NAME"
    return f"{'-- ' if name.startswith('-') else ''}{shlex.quote(name)}"


def instant_as_json(instant_ms: int) -> str | None:
    """As in a digest: "2026-11-18T09:00:00.123Z"."""
    from nsqdigest.delivery.digest import rfc3339

    try:
        return rfc3339(instant_ms)
    except (ValueError, OverflowError, OSError):
        return None


def facts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in pairs)
    of_terminal = look_of_stdout().width
    return [
        line for name, text in pairs for line in wrapped(text, f"{name.ljust(width)}  ", " " * (width + 2), of_terminal)
    ]


def record_lines(records: Sequence[StoredRecord]) -> list[str]:
    """A line each; where one would be wider than the terminal, all values stand below their keys."""
    keys = [printable(record.key.decode("utf-8", "backslashreplace"), LONGEST_NAME) for record in records]
    width = max(map(columns, keys), default=0)
    heads = [
        f"  {instant(record.timestamp_ms)}  {padded(key, width)}" for key, record in zip(keys, records, strict=True)
    ]
    values = [
        printable(" ".join(record.value.decode("utf-8", "backslashreplace").split()), _LONGEST_VALUE)
        for record in records
    ]
    lines = [f"{head}  {value}" for head, value in zip(heads, values, strict=True)]
    of_terminal = look_of_stdout().width
    if not of_terminal or max(map(columns, lines), default=0) <= of_terminal:
        return lines
    return [
        line
        for head, value in zip(heads, values, strict=True)
        for line in (head.rstrip(), *(f"    {part}" for part in textwrap.wrap(value, max(of_terminal - 4, 20))))
    ]


def dropped_as_json(lost: Known | Head) -> dict[str, int]:
    """As a digest has it: what few routes have is there where there was some."""
    cancelled = {"cancelled": lost.dropped_cancelled} if lost.dropped_cancelled else {}
    return {"capacity": lost.dropped_capacity, **cancelled}


def records_as_json(records: Sequence[StoredRecord]) -> list[dict[str, Any]]:
    from nsqdigest.base.shown import raw_json

    return [
        {
            "key": record.key.decode("utf-8", "backslashreplace"),
            "timestamp": record.timestamp_ms,
            "value": raw_json(record.value),
        }
        for record in records
    ]


def note_more(listed: int, total: int, how: str) -> None:
    """On stderr, so that a script that reads the list is not misled and not disturbed."""
    if total > listed:
        click.echo(f"{listed:,} of {total:,}; {how}", err=True)


def note_unused(namespace: Namespace, name: str) -> None:
    """Says why a store is empty where that is probably a mistake."""
    if namespace.layout is None:
        click.echo(
            f'no daemon has used the namespace "{name}" of this Redis yet; see redis.namespace and redis.url', err=True
        )
