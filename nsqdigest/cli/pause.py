"""`nsqdigest pause`, and what it shares with `resume`: a request to a running daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import ConfigError
from nsqdigest.base.words import listed, nearest
from nsqdigest.cli import config_option, load_config

if TYPE_CHECKING:
    from nsqdigest.config import Config

_KINDS = ("topic", "route", "sink")


def _names_of(config: Config) -> dict[str, list[str]]:
    return {
        "topic": sorted({route.topic for route in config.routes}),
        "route": [route.name for route in config.routes],
        "sink": list(config.sinks),
    }


def _kinds(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    return [kind for kind in _KINDS if kind.startswith(begun)]


def _names(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """For a shell that completes a name: those of the file, and none where it cannot be read."""
    try:
        config = load_config(ctx.params.get("path"), without_secrets=True)
    except ConfigError:
        return []
    return [name for name in _names_of(config).get(ctx.params.get("kind") or "", ()) if name.startswith(begun)]


def word_command(word: str, done: str, unchanged: str, short_help: str, help_text: str) -> click.Command:
    @click.command(word, short_help=short_help, help=help_text)
    @click.argument("kind", metavar="{topic|route|sink}", required=False, shell_complete=_kinds)
    @click.argument("name", metavar="NAME", required=False, shell_complete=_names)
    @config_option
    @click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
    def command(kind: str | None, name: str | None, path: Path | None, as_json: bool) -> None:
        if kind is None:
            raise click.UsageError(f"name what to {word}: nsqdigest {word} topic|route|sink NAME")
        config = load_config(path)
        if kind not in _KINDS or name is None:
            raise click.UsageError(_remedy(word, kind, name, config))

        from nsqdigest.admin import client

        answer = client.post(config, f"/api/{word}", {"kind": kind, "name": name})
        if as_json:
            click.echo(json.dumps(answer))
        else:
            click.echo(f"{kind} {name} {done if answer['changed'] else unchanged}")

    return command


def _remedy(word: str, kind: str, name: str | None, config: Config) -> str:
    """For a kind that is none, perhaps because a name stands in its place, or for a kind without a name."""
    names = _names_of(config)
    if kind in _KINDS:
        return f"name the {kind}: nsqdigest {word} {kind} {'|'.join(names[kind])}"
    if found := [each for each in _KINDS if kind in names[each]]:
        what = listed(f"a {each}" for each in found)
        return f'"{kind}" is {what} of {config.source}; write nsqdigest {word} {found[0]} {kind}'
    known = {each: each for each in _KINDS} | {each: f"{of} {each}" for of in _KINDS for each in names[of]}
    if guess := nearest(kind, known):
        meant = f"{guess} {name or 'NAME'}" if guess in _KINDS else known[guess]
        return f'"{kind}" is neither topic, route nor sink; did you mean nsqdigest {word} {meant}?'
    return f'"{kind}" is neither topic, route nor sink; write nsqdigest {word} topic|route|sink NAME'


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
