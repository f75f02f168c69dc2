"""`nsqdigest doctor`: everything that the file names."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import click

from nsqdigest.base.errors import EXIT_NO, EXIT_OK, ConfigError
from nsqdigest.cli import config_option, file_argument, load_config


@click.command("doctor")
@config_option
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
def command(path: Path | None, file: Path | None, as_json: bool) -> None:
    """Test every service that the configuration names.

    Connects to every nsqd and nsqlookupd, to Redis, the sinks and the admin address, all at the same time, and checks
    versions, settings, rights and certificates. Each line names a thing, its state and, where something is wrong, the
    remedy. The doctor writes, publishes and sends nothing.

    Exit code 0: all is well; 1: a warning or a failure was found; 78: the file has mistakes.

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

    from nsqdigest.base import log, resolver
    from nsqdigest.cli.check import summary
    from nsqdigest.delivery.sinks.table import KINDS
    from nsqdigest.doctor.examination import examine

    log.setup("error", "auto")  # what is found is said here, once
    of_file = judgements.of_file(config.source, (), config.warnings, summary(config))
    parts = resolver.run(examine(config, KINDS, of_file))
    if as_json:
        click.echo(json.dumps(report.as_json(parts)))
    else:
        is_terminal = sys.stdout.isatty()
        colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size().columns if is_terminal else report.WIDTH_OF_A_PIPE
        click.echo("\n".join(report.lines(parts, colour=colour, width=width)), color=colour)
    sys.exit(EXIT_OK if is_well(finding for part in parts for finding in part.findings) else EXIT_NO)
