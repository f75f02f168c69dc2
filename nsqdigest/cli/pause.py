"""`nsqdigest pause`, and what it shares with `resume`: a request to a running daemon."""

from __future__ import annotations

import json
from pathlib import Path

import click

from nsqdigest.cli import config_option, load_config

_KINDS = click.Choice(["topic", "route", "sink"])


def word_command(word: str, done: str, unchanged: str, short_help: str, help_text: str) -> click.Command:
    @click.command(word, short_help=short_help, help=help_text)
    @click.argument("kind", type=_KINDS)
    @click.argument("name")
    @config_option
    @click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
    def command(kind: str, name: str, path: Path | None, as_json: bool) -> None:
        config = load_config(path)

        from nsqdigest.admin import client

        answer = client.post(config, f"/api/{word}", {"kind": kind, "name": name})
        if as_json:
            click.echo(json.dumps(answer))
        else:
            click.echo(f"{kind} {name} {done if answer['changed'] else unchanged}")

    return command


command = word_command(
    "pause",
    "is paused",
    "was paused already",
    "Pause a topic, a route or a sink of a running daemon.",
    """Pause a topic, a route or a sink of a running daemon.

    While a topic is paused the daemon takes none of its messages: they wait in nsqd. While a route or a sink is paused
    its digests wait in Redis. Only the daemon at admin.listen is paused, until `resume` or until it exits. Needs
    admin.token.

    \b
    Examples:
      nsqdigest pause topic events
      nsqdigest pause sink hook -c /etc/nsqdigest/nsqdigest.toml
    """,
)
