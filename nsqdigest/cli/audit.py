"""`nsqdigest audit`: is every record that was ever added accounted for?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import EXIT_NO, EXIT_OK
from nsqdigest.cli import config_option, file_argument, load_config
from nsqdigest.cli.terminal import look_of_stdout

if TYPE_CHECKING:
    from nsqdigest.audit.ledger import Audit
    from nsqdigest.config import Config


@click.command("audit")
@config_option
@file_argument
@click.option("--deep", is_flag=True, help="Recount all timelines and compare. Changes nothing.")
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
def command(path: Path | None, file: Path | None, deep: bool, as_json: bool) -> None:
    """See what became of every record.

    A record that was added is open, in a snapshot, delivered, superseded, dropped, buried or deleted. Redis updates
    these counters in the transaction that changes the record, so they are exact while daemons run. --deep recounts
    all timelines and the dead list, and names those that differ from the counters; its sums are exact when no daemon
    runs.

    Exit code 0: the counters balance; 1: they do not; 69: Redis is out of reach; 78: the file has mistakes.

    \b
    Example:
      nsqdigest audit -c nsqdigest.toml --deep
    """
    config = load_config(path, file)
    from nsqdigest.audit.report import report
    from nsqdigest.base import resolver

    audit = resolver.run(_audit(config, deep=deep))
    click.echo(json.dumps(audit.as_json()) if as_json else "\n".join(report(audit, look_of_stdout().width)))
    sys.exit(EXIT_OK if audit.balanced else EXIT_NO)


async def _audit(config: Config, *, deep: bool) -> Audit:
    from nsqdigest.audit.recount import Auditor
    from nsqdigest.store.namespace import reading

    async with reading(config.redis, config.source) as namespace:
        return await Auditor(namespace, [route.name for route in config.routes]).audit(deep=deep)
