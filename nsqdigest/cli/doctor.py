"""`nsqdigest doctor`: everything that the file names."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import click

from nsqdigest.cli import config_option, file_argument, load_config
from nsqdigest.errors import EXIT_NO, EXIT_OK, ConfigError


@click.command("doctor")
@config_option
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
def command(path: Path | None, file: Path | None, as_json: bool) -> None:
    """Look at everything that the configuration names.

    The file, every nsqd and nsqlookupd, Redis, the sinks and the admin address, all at once: is it there, is it of the
    right version and set right, may this user do what the daemon does, and whose is its certificate. Each line says
    what, how it is, and the way out. Nothing is written, published or sent.

    Exit code 0: nothing was found; 1: something was, a warning or a failure; 78: the file.

    \b
    Example:
      nsqdigest doctor -c /etc/nsqdigest/nsqdigest.toml
    """
    from nsqdigest.doctor import judgements, report
    from nsqdigest.doctor.findings import Part, is_well

    try:
        config = load_config(path, file)
    except ConfigError as error:
        if not as_json:
            raise
        problems = judgements.of_file(str(path or file or "nsqdigest.toml"), error.problems, (), "")
        click.echo(json.dumps(report.as_json([Part("file", tuple(problems))])))
        raise SystemExit(error.exit_code) from None

    from nsqdigest import log, resolver
    from nsqdigest.cli.check import summary
    from nsqdigest.doctor.examination import examine

    log.setup("error", "auto")  # what is found is said here, once
    of_file = judgements.of_file(config.source, (), config.warnings, summary(config))
    parts = resolver.run(examine(config, of_file))
    if as_json:
        click.echo(json.dumps(report.as_json(parts)))
    else:
        is_terminal = sys.stdout.isatty()
        colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size().columns if is_terminal else report.WIDTH_OF_A_PIPE
        click.echo("\n".join(report.lines(parts, colour=colour, width=width)), color=colour)
    sys.exit(EXIT_OK if is_well(finding for part in parts for finding in part.findings) else EXIT_NO)
