"""`nsqdigest help COMMAND`: the same as `nsqdigest COMMAND --help`."""

from __future__ import annotations

import click

from nsqdigest.cli import unknown_command


@click.command("help", short_help="Show the help of a command.")
@click.argument("name", metavar="[COMMAND]", required=False)
@click.pass_context
def command(ctx: click.Context, name: str | None) -> None:
    """Show the help of a command, as its --help does.

    \b
    Example:
      nsqdigest help check
    """
    group_context = ctx.find_root()
    group = group_context.command
    if name is None:
        click.echo(group_context.get_help())
        return
    found = group.get_command(group_context, name) if isinstance(group, click.Group) else None
    if found is None:
        raise unknown_command(name, group_context)
    with click.Context(found, info_name=name, parent=group_context) as context:
        click.echo(found.get_help(context))
