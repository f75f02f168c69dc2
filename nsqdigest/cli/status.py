"""`nsqdigest status`: how a running daemon is, on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.cli import config_option, load_config, terminal
from nsqdigest.cli.operating import json_option

if TYPE_CHECKING:
    from nsqdigest.admin.views import StatusView


@click.command("status", short_help="Show how a running daemon is, on one screen.")
@config_option
@click.option("--watch", is_flag=True, help="Show it anew each second, until Ctrl-C.")
@json_option
def command(*, path: Path | None, watch: bool, as_json: bool) -> None:
    """Show how a running daemon is: the verdict in a sentence, then what it rests on.

    Topics (state, how far behind, connections), routes and their timelines, sinks (state, last delivery, what waits,
    what is dead), the other daemons of the namespace and whether their files say the same, rates, Redis. Asks the
    daemon at admin.listen.

    \b
    in flight   messages that nsqd handed over and that are not stored yet
    behind      messages that wait in nsqd ("?" without a nsqlookupd)
    due         timelines whose time has come, and that no daemon took yet
    waiting     digests that were due and are not delivered
    dead        digests that were given up: see `nsqdigest dead list`

    Exit code 0: the daemon answered, well or not (--json has its health); 69: no daemon answers, or admin.listen is
    off.

    \b
    Examples:
      nsqdigest status
      nsqdigest status --watch
      nsqdigest status --json
    """
    config = load_config(path)
    from nsqdigest.admin import client
    from nsqdigest.admin.views import StatusView

    def ask(timeout_s: float = 10.0) -> StatusView:
        return client.get(config, "/api/status", StatusView, timeout_s)

    if watch:
        from nsqdigest.cli import watching

        watching.watch(ask, as_json=as_json)
        return
    view = ask()
    if as_json:
        click.echo(_as_json(view))
        return
    from nsqdigest.admin.screen import Paper, lines

    look = terminal.look_of_stdout()
    terminal.write(lines(view, Paper(look.width, look.colour)), look)


def _as_json(view: StatusView) -> str:
    from nsqdigest.base.shown import as_json

    return as_json(view)
