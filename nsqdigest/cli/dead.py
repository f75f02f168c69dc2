"""`nsqdigest dead`: what could not be delivered. Digests in the dead store: list, show, export, replay, drop; and
`events`, the dead letters in NSQ."""

from __future__ import annotations

import click

from nsqdigest.cli.dead_events import events_command
from nsqdigest.cli.dead_export import export_command
from nsqdigest.cli.dead_list import list_command, show_command
from nsqdigest.cli.dead_work import drop_command, replay_command


@click.group("dead", no_args_is_help=True, short_help="List, show, export, replay, drop what is dead.")
def command() -> None:
    """Look at what could not be delivered, send it again, drop it.

    A digest that its receiver refused, or that grew too old, is buried in the dead store, whole and under its id. An
    event that can never become part of a digest is a dead letter in nsq.dead_letter_topic: see `dead events`.

    \b
    Examples:
      nsqdigest dead list
      nsqdigest dead show 01a1ede2-66fb-7c42-8d0e-3f1f1c9f7a10
      nsqdigest dead replay --all --sink hook
      nsqdigest dead export > dead.jsonl
      nsqdigest dead drop --exported dead.jsonl
      nsqdigest dead events --dry-run
    """


for each in (list_command, show_command, export_command, replay_command, drop_command, events_command):
    command.add_command(each)
