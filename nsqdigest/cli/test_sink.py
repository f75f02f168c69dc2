"""`nsqdigest test-sink`: does a digest arrive?"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsqdigest.base.errors import EXIT_NO, EXIT_OK, EXIT_UNREACHABLE
from nsqdigest.base.moments import span
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.base.words import listed
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.operating import TEXT, json_option, require_known

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.delivery.sample import Sent

_LONGEST_ANSWER = 400
IN_WORDS = {
    "delivered": "delivered in {}",
    "unavailable": "not delivered, after {}: the receiver cannot be reached, or can take nothing now",
    "again": "not delivered, after {}; the daemon would try again",
    "refused": "refused after {}; the daemon would try a few times more, then bury the digest",
    "gone": "refused after {}, as gone for good (410)",
    "unrendered": "nothing was sent, after {}: no body could be made of the sample",
    "no-target": "nothing was sent: the event does not say where its digest goes",
    "deferred": "nothing was sent: its host takes no digests now",
}


@click.command("test-sink", short_help="Send a sample digest through a sink.")
@click.argument("name", type=TEXT)
@config_option
@click.option("--event", "event_file", metavar="FILE", help='The event of its record, as JSON; "-": stdin.')
@json_option
def command(name: str, path: Path | None, event_file: str | None, as_json: bool) -> None:
    """Send a sample digest through a sink, once, and say what became of it.

    It goes the way of every digest: the same client, signature and form, as one of the first route to this sink, of the
    timeline "nsqdigest-test". It has the made-up events of `preview --sample`, with texts that say so. Whoever receives
    it sees it. Redis and the daemon have no part in it. Where the sink's url or topic has fields of events, name an
    event that has them.

    Exit code 0: delivered; 1: the receiver did not take it, or the template makes no body of it; 69: the receiver is
    out of reach, or can take nothing now.

    \b
    Examples:
      nsqdigest test-sink hook
      nsqdigest test-sink tenants --event event.json
    """
    config = load_config(path)
    require_known("sink", name, config.sinks, config.source)
    event = _event_of(config, name, event_file)
    from nsqdigest.base import log, resolver

    log.setup("error", "auto")  # the command prints what it finds, once
    sent = resolver.run(_send(config, name, event))
    click.echo(encoded(_as_json(name, sent)) if as_json else "\n".join(_lines(config, name, sent)))
    unreachable = sent.outcome.verdict == "unavailable"
    raise SystemExit(EXIT_OK if sent.outcome.verdict == "delivered" else EXIT_UNREACHABLE if unreachable else EXIT_NO)


def _event_of(config: Config, name: str, event_file: str | None) -> bytes:
    """b"" where a made-up one does."""
    from nsqdigest.delivery.sinks.table import KINDS

    if event_file is not None:
        return _object_in(event_file)
    settings = config.sinks[name]
    aim = KINDS[settings.type].aim(settings)
    if aim is not None and aim.paths:
        fields = listed(f"{{{'.'.join(path)}}}" for path in aim.paths)
        raise click.UsageError(
            f"where a digest of sink {name} goes depends on the event's {fields}; "
            f"name an event: nsqdigest test-sink {name} --event event.json"
        )
    return b""


def _object_in(event_file: str) -> bytes:
    import msgspec

    try:
        text = sys.stdin.buffer.read() if event_file == "-" else Path(event_file).read_bytes()
    except OSError as error:
        raise click.UsageError(f"{event_file}: {error.strerror}") from None
    try:
        msgspec.json.decode(text.decode(), type=dict[str, Any])
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise click.UsageError(f"{event_file}: this is not one event, a JSON object") from None
    return text.strip()


async def _send(config: Config, name: str, event: bytes) -> Sent:
    from nsqdigest.delivery.sample import send_sample
    from nsqdigest.delivery.sinks.table import KINDS

    return await send_sample(config, KINDS, name, int(time.time() * 1000), event)


def _lines(config: Config, name: str, sent: Sent) -> list[str]:
    outcome = sent.outcome
    result = IN_WORDS[outcome.verdict].format(span(int(sent.took_s * 1000)))
    lines = [f"sink {name} ({config.sinks[name].type}): {result}"]
    if sent.digest.target is not None:
        lines.append(f"  to {printable(sent.digest.target.shown)}")
    if outcome.cause:
        lines.append(f"  {printable(outcome.cause)}")
    if outcome.answer and outcome.verdict == "no-target":
        lines.append(f"  the value: {printable(outcome.answer, _LONGEST_ANSWER)}")
    elif outcome.answer and outcome.verdict != "unrendered":
        lines.append(f"  it answered: {printable(outcome.answer, _LONGEST_ANSWER)}")
    if outcome.retry_after_s:
        lines.append(f"  it asks to wait {outcome.retry_after_s:g} s")
    return [*lines, f"  digest {sent.digest.id}, {len(sent.digest.body):,} bytes"]


def _as_json(name: str, sent: Sent) -> dict[str, Any]:
    outcome = sent.outcome
    return {
        "sink": name,
        "target": sent.digest.target.shown if sent.digest.target is not None else None,
        "outcome": outcome.verdict,
        "status": outcome.status,
        "cause": outcome.cause,
        "answer": outcome.answer,
        "retry_after_s": outcome.retry_after_s or None,
        "took_s": round(sent.took_s, 3),
        "digest": sent.digest.id,
        "bytes": len(sent.digest.body),
    }
