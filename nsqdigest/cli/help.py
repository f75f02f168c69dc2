"""`nsqdigest help COMMAND`: the same as `nsqdigest COMMAND --help`."""

from __future__ import annotations

import click

from nsqdigest.cli import unknown_command


def _commands(ctx: click.Context, _: click.Parameter, begun: str) -> list[str]:
    group = ctx.find_root().command
    return (
        [name for name in group.list_commands(ctx) if name.startswith(begun)] if isinstance(group, click.Group) else []
    )


@click.command("help", short_help="Show the help of a command.")
@click.argument("name", metavar="[COMMAND]", required=False, shell_complete=_commands)
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
