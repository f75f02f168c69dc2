"""`nsqdigest completion`: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_NSQDIGEST_COMPLETE"
"""click derives it from the program's name."""


@click.command("completion", short_help="Print what a shell needs to complete commands and options.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print what bash, zsh or fish needs to complete commands, options and files.

    \b
    Examples, for good:
      nsqdigest completion bash >> ~/.bashrc
      nsqdigest completion zsh >> ~/.zshrc
      nsqdigest completion fish > ~/.config/fish/completions/nsqdigest.fish
    For this shell alone:
      eval "$(nsqdigest completion bash)"
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"this version of click knows no completion for {shell}")
    complete = found(ctx.find_root().command, {}, "nsqdigest", _VARIABLE)
    # `source()` would start a bash to ask for its version.
    click.echo(complete.source_template % complete.source_vars())
