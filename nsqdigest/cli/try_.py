"""`nsqdigest try`: what the daemon would do with an event, from the file alone."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import EXIT_NO, EXIT_OK, ConfigError
from nsqdigest.base.words import listed, nearest
from nsqdigest.cli import config_option, load_config, terminal

if TYPE_CHECKING:
    from nsqdigest.config import Config

LARGEST_INPUT_BYTES = 64 << 20
_STDIN = "-"
_NEEDED = ("routes", "limits")


@click.command("try", short_help="See what the daemon would do with an event.")
@click.argument("events", required=False, default=_STDIN)
@config_option
@click.option("--topic", help="The topic that the events are from. Not needed where the file has only one.")
@click.option(
    "--lines/--whole",
    "by_line",
    default=None,
    help="Each line is an event, or all of the input is one. Without either: as it looks.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
def command(events: str, path: Path | None, topic: str | None, by_line: bool | None, as_json: bool) -> None:
    """See what the daemon would do with an event.

    Reads EVENTS, a file with one event or with an event on each line, or stdin, and shows for each event the routes
    that take it, with timeline, key, time, group, sink and target; or the reason why it would be a dead letter. It uses
    the configuration alone, connects to nothing and needs none of the secrets.

    Exit code 0: some route takes each event; 1: one would be a dead letter, no route takes it, or its digest would go
    nowhere; 78: the file has mistakes.

    \b
    Examples:
      nsqdigest try < event.json
      nsqdigest try events.jsonl --topic orders --json
    """
    config = load_config(path, without_secrets=True)
    _refuse_without_what_it_needs(config)
    chosen = _topic_of(config, topic)

    from nsqdigest.daemon.routes import aims_of
    from nsqdigest.delivery.sinks.table import KINDS
    from nsqdigest.trial import report
    from nsqdigest.trial.events import split
    from nsqdigest.trial.trial import Trial

    found = split(_read(events), by_line=by_line)
    if not found:
        raise click.UsageError(
            'there is no event in the input; write one like: echo \'{"user": "ada"}\' | nsqdigest try'
        )
    trial = Trial(config, chosen, aims_of(config, KINDS))
    now_ms = time.time_ns() // 1_000_000
    tried = [trial.try_event(event, now_ms) for event in found]
    if as_json:
        click.echo(json.dumps(report.as_json(chosen, tried)))
    else:
        look = terminal.look_of_stdout()
        terminal.write(report.lines(tried, config.nsq.dead_letter_topic, colour=look.colour, width=look.width), look)
    sys.exit(EXIT_OK if report.is_fine(tried) else EXIT_NO)


def _refuse_without_what_it_needs(config: Config) -> None:
    """A value that routes or limits have from elsewhere must be there: nothing stands in for it."""
    if missing := [each for each in config.not_at_hand if each.path.startswith(_NEEDED)]:
        raise ConfigError(missing)


def _topic_of(config: Config, wanted: str | None) -> str:
    topics = sorted({route.topic for route in config.routes})
    if wanted is None and len(topics) == 1:
        return topics[0]
    if wanted is None:
        raise click.UsageError(f"the routes have {len(topics)} topics, {listed(topics)}; name one with --topic")
    if wanted not in topics:
        guess = nearest(wanted, topics)
        hint = f'did you mean "{guess}"?' if guess else f"there {'is' if len(topics) == 1 else 'are'} {listed(topics)}"
        raise click.UsageError(f'no route has the topic "{wanted}"; {hint}')
    return wanted


def _read(events: str) -> bytes:
    if events != _STDIN:
        return _read_file(events)
    if sys.stdin.isatty():
        click.echo("Type or paste an event; Ctrl-D ends it.", err=True)
    return _bounded(sys.stdin.buffer.read(LARGEST_INPUT_BYTES + 1))


def _read_file(name: str) -> bytes:
    if name.endswith(".toml"):
        raise click.UsageError(f"{name} is no event; for the configuration write -c {name}")
    if name.lstrip().startswith(("{", "[")):
        raise click.UsageError("an event comes from a file or from stdin: echo '{…}' | nsqdigest try")
    try:
        with open(name, "rb") as file:
            return _bounded(file.read(LARGEST_INPUT_BYTES + 1))
    except FileNotFoundError:
        raise click.UsageError(f"{name}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{name}: {getattr(error, 'strerror', None) or error}") from None


def _bounded(data: bytes) -> bytes:
    if len(data) > LARGEST_INPUT_BYTES:
        raise click.UsageError(
            f"the input is larger than {LARGEST_INPUT_BYTES >> 20} MiB; "
            "try a part of it: head -n 1000 FILE | nsqdigest try"
        )
    return data
