"""`nsqdigest run`: the daemon."""

from __future__ import annotations

from pathlib import Path

import click

from nsqdigest.cli import config_option, load_config


@click.command("run")
@config_option
def command(path: Path | None) -> None:
    """Run the daemon until it is told to stop.

    TERM or INT drains: what is stored is finished, the rest goes back to nsqd at once. A second one does not wait.

    \b
    Example:
      nsqdigest run -c /etc/nsqdigest/nsqdigest.toml
    """
    config = load_config(path)

    from nsqdigest import daemon, log, resolver

    log.setup(config.log.level, config.log.format)
    for warning in config.warnings:
        log.get("config").warning("config.advice", advice=warning)
    resolver.run(daemon.run(config))
