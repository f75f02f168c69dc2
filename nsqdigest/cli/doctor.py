"""`nsqdigest doctor`: everything that the file names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from nsqdigest.base.errors import EXIT_NO, EXIT_OK, ConfigError
from nsqdigest.cli import config_option, file_argument, load_config, terminal


@click.command("doctor", short_help="Test every service that the configuration names.")
@config_option
@file_argument
@click.option("--strict", is_flag=True, help="A warning is a failure: exit code 1.")
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
def command(path: Path | None, file: Path | None, strict: bool, as_json: bool) -> None:
    """Test every service that the configuration names.

    Connects to every nsqd and nsqlookupd, to Redis, the sinks and the admin address, all at the same time, and checks
    versions, settings, rights and certificates. Each line names a thing, its state and, where something is wrong, the
    remedy. The doctor writes, publishes and sends nothing.

    Exit code 0: everything works, perhaps with warnings; 1: a failure was found, or with --strict a warning; 78: the
    file has mistakes.

    \b
    Examples:
      nsqdigest doctor /etc/nsqdigest/nsqdigest.toml
      nsqdigest doctor --strict --json
    """
    from nsqdigest.doctor import judgements, report
    from nsqdigest.doctor.findings import Part, is_well

    try:
        config = load_config(path, file)
    except ConfigError as error:
        if not as_json:
            raise
        problems = judgements.of_file(str(path or file or "nsqdigest.toml"), error.problems, (), "")
        answer = report.as_json([Part("file", tuple(problems))], strict=strict)
        click.echo(json.dumps(answer | {"problems": [each.as_json() for each in error.problems], "warnings": []}))
        raise SystemExit(error.exit_code) from None

    from nsqdigest.base import log, resolver
    from nsqdigest.cli.check import summary
    from nsqdigest.delivery.sinks.table import KINDS
    from nsqdigest.doctor.examination import examine

    log.setup("error", "auto")  # the command prints what it finds, once
    of_file = judgements.of_file(config.source, (), config.warnings, summary(config))
    parts = resolver.run(examine(config, KINDS, of_file))
    if as_json:
        warnings = [each.as_json() for each in config.warnings]
        click.echo(json.dumps(report.as_json(parts, strict=strict) | {"problems": [], "warnings": warnings}))
    else:
        look = terminal.look_of_stdout()
        terminal.write(report.lines(parts, colour=look.colour, width=look.width), look)
    sys.exit(EXIT_OK if is_well((finding for part in parts for finding in part.findings), strict=strict) else EXIT_NO)
