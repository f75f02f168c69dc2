"""`nsqdigest run`: the daemon."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from nsqdigest.base.errors import EXIT_NO, NsqdigestError
from nsqdigest.cli import config_option, file_argument, load_config


@click.command("run")
@config_option
@file_argument
def command(path: Path | None, file: Path | None) -> None:
    """Run the daemon until TERM or INT.

    TERM or INT drains: the daemon finishes the messages that are stored and gives the rest back to nsqd. A second
    one ends it at once. HUP reads the file again and takes all of it, or nothing. USR2 writes its state to the log.

    \b
    Example:
      nsqdigest run /etc/nsqdigest/nsqdigest.toml
    """
    config = load_config(path, file)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the daemon handles it: the file was read just now

    from nsqdigest.base import log, resolver
    from nsqdigest.daemon.signals import run_until_signal

    log.setup(config.log.level, config.log.format)
    for warning in config.warnings:
        log.get("config").warning("config.advice", advice=warning)
    try:
        resolver.run(run_until_signal(config))
    except NsqdigestError as error:
        log.get("daemon").error("daemon.failed", error=error)
        raise SystemExit(error.exit_code) from None
    except Exception as error:
        log.get("daemon").error("daemon.failed", error=error, exc_info=error)
        raise SystemExit(EXIT_NO) from None
