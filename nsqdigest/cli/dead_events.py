"""`nsqdigest dead events`: dead letters go to their topics again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsqdigest.base.errors import EXIT_NO, EXIT_OK, EXIT_UNREACHABLE, NsqdigestError
from nsqdigest.base.moments import until
from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.operating import TEXT, json_option, limit_option, require_known, shown

if TYPE_CHECKING:
    from nsqdigest.config import Address, Config
    from nsqdigest.intake.letter_reading import Choice, Judge
    from nsqdigest.intake.replay import Handled, Limits, Run

_MOST_PER_S = 10_000.0
_MOST_SHOWN = 100
"""Letters of which a line is printed."""
_LONGEST_DETAIL = 160
_IN_WORDS = {
    "not-selected": "not selected",
    "no-letter": "no dead letter of nsqdigest",
    "cut-off": "the letter does not hold the whole event",
    "other-topic": "of a topic that this file does not read (--topic NAME replays it all the same)",
    "still-bad": "would be a dead letter again",
    "unmatched": "no route takes it any more",
    "came-back": "was replayed, and is a dead letter again",
    "not-published": "nsqd did not acknowledge it",
}
_ENDED = {
    "limit": "stopped at --limit; run it again for more",
    "time": "stopped before nsqd's time-out of messages; run it again to go on",
    "failed": "stopped by a failure of nsqd",
    "interrupted": "interrupted; what was not replayed stays",
}


class _Rate(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        rate = float(super().convert(value, param, ctx))
        if math.isnan(rate):
            self.fail(f"{value} is not a number", param, ctx)
        return rate


@click.command("events", short_help="Replay the dead-letter topic.")
@config_option
@click.option(
    "--reason",
    type=click.Choice([each.value for each in DeadLetterReason]),
    default=None,
    help="Only letters with this reason.",
)
@click.option("--topic", type=TEXT, default="", metavar="TOPIC", help="Only events of this topic.")
@click.option("--contains", type=TEXT, default="", metavar="TEXT", help="Only events with this text in their body.")
@click.option(
    "--channel", type=TEXT, default="", metavar="CHANNEL", help="Of the dead-letter topic. Without it: nsq.channel."
)
@click.option(
    "--rate",
    type=_Rate(0.1, _MOST_PER_S),
    default=100.0,
    show_default=True,
    help="Events a second, at most.",
)
@limit_option(1000, "Replay at most so many.")
@click.option("--dry-run", is_flag=True, help="Only say what would become of each letter; all of them stay.")
@json_option
def events_command(
    *,
    path: Path | None,
    reason: str | None,
    topic: str,
    contains: str,
    channel: str,
    rate: float,
    limit: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Replay dead letters: each event goes again to the topic and the nsqd that it came from.

    A letter is finished when nsqd has acknowledged its event. What cannot be replayed stays in the channel: an event
    that would be a dead letter again with this file (mend the file first), one that the letter holds in part, one of a
    topic that the file does not read. A replayed event is a new message: it gets a new timestamp, and every channel of
    its topic gets it.

    The letters are read from the channel nsq.channel of nsq.dead_letter_topic. Where that topic has had other channels
    only, older letters are in those: see --channel.

    It reads like any consumer: nsq.channel is made where an nsqd does not have it, also with --dry-run. Another channel
    has to be there, unless the topic has none. Letters that another run holds, or one that was killed, come again when
    it ends, or within 5 minutes.

    Exit code 0: what was selected is replayed, up to --limit, or there is nothing; 1: some of it stays, or was not
    reached, and it says why; 69: an nsqd or a nsqlookupd is out of reach.

    \b
    Examples:
      nsqdigest dead events --dry-run
      nsqdigest dead events --reason missing-field --topic events --rate 20
    """
    config = load_config(path)
    if not config.nsq.dead_letter_topic:
        raise NsqdigestError(f'{config.source}: nsq.dead_letter_topic is "", so there are no dead letters')
    channel = channel or config.nsq.channel
    from nsqdigest.base import log, resolver
    from nsqdigest.config.problems import Wrong
    from nsqdigest.config.texts import channel as channel_name
    from nsqdigest.intake.letter_reading import Choice
    from nsqdigest.intake.replay import Limits

    try:
        channel_name(channel)
    except Wrong as error:
        raise click.UsageError(f"--channel {printable(channel)} {error.mistake}; {error.remedy}") from None
    log.setup("error", "auto")  # the command prints what it finds, once
    choice, shown = Choice(reason or "", topic, contains.encode()), list[dict[str, Any]]()

    def on_handled(handled: Handled) -> None:
        if handled.stays == "not-selected" or len(shown) >= _MOST_SHOWN:
            return
        if handled.stays is not None or dry_run or as_json:
            shown.append(_as_json(handled))
            if not as_json:
                click.echo(_line(handled))

    run = resolver.run(_replay(config, channel, choice, Limits(limit, rate, dry_run), on_handled))
    if as_json:
        click.echo(encoded(_sum_as_json(run, shown, dry_run=dry_run)))
    else:
        if len(shown) == _MOST_SHOWN:
            click.echo(f"the first {_MOST_SHOWN} letters are listed; the sums count all of them")
        _echo_sum(config, channel, run, dry_run=dry_run)
    raise SystemExit(_exit_code(run))


async def _replay(
    config: Config, channel: str, choice: Choice, limits: Limits, on_handled: Callable[[Handled], None]
) -> Run:
    import asyncio
    import signal

    from nsqdigest.intake.replay import Ended, Replay
    from nsqdigest.nsq.connection import options_of
    from nsqdigest.nsq.finding import nsqds_of

    topic = config.nsq.dead_letter_topic
    nsqds = await nsqds_of(config.nsq, topic)
    if channel != config.nsq.channel:
        await _refuse_unknown(config, nsqds.addresses, channel)
    replay = Replay(options_of(config.nsq), _judge(config, choice), limits, on_handled)
    task = asyncio.current_task()
    assert task is not None
    # INT cancels it, too. What is in flight then goes back at once, and not after nsqd's time-out.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        run = await replay.run(nsqds.addresses, topic, channel)
    except asyncio.CancelledError:
        task.uncancel()
        run = replay.so_far
        run.ended = Ended.INTERRUPTED
    run.problems += nsqds.problems
    return run


async def _refuse_unknown(config: Config, nsqds: Sequence[Address], channel: str) -> None:
    """To read a channel that is not there would make it."""
    from nsqdigest.nsq.channels import channels_of

    topic = config.nsq.dead_letter_topic
    there = await channels_of(config.nsq, nsqds, topic)
    if there is None:
        click.echo(
            f"it is not known whether {topic} has a channel {shown(channel)}: an nsqd without it makes it now", err=True
        )
    elif there:  # of a topic without channels a new one gets all that waits
        require_known("channel", channel, sorted(there), f"the topic {topic}")


def _judge(config: Config, choice: Choice) -> Judge:
    from nsqdigest.daemon.routes import aims_of, intake_routes, plans_of
    from nsqdigest.delivery.sinks.table import KINDS
    from nsqdigest.intake.letter_reading import Judge
    from nsqdigest.intake.routing import Router

    plans, aims = plans_of(config), aims_of(config, KINDS)
    topics = dict.fromkeys(route.topic for route in config.routes)
    return Judge({topic: Router(intake_routes(config, topic, plans, aims), config.limits) for topic in topics}, choice)


def _exit_code(run: Run) -> int:
    if run.problems:
        return EXIT_UNREACHABLE
    stayed = sum(number for stays, number in run.stayed.items() if stays != "not-selected")
    return EXIT_NO if stayed or run.ended in ("interrupted", "time") else EXIT_OK


def _line(handled: Handled) -> str:
    event = handled.event
    if event is None:
        return f"stays: {_IN_WORDS['no-letter']} ({printable(handled.detail, _LONGEST_DETAIL)})"
    age = until(event.timestamp // 1_000_000, int(time.time() * 1000)) if event.timestamp else "?"
    what = f"{printable(event.topic)}, {age}, {printable(event.reason)}: {printable(event.detail, _LONGEST_DETAIL)}"
    if handled.stays is None:
        return f"can be replayed: {what}"
    is_news = handled.detail not in ("", f"{event.reason}: {event.detail}")
    now = f" ({printable(handled.detail, _LONGEST_DETAIL)})" if is_news else ""
    return f"stays: {_IN_WORDS[handled.stays]}{now}: {what}"


def _echo_sum(config: Config, channel: str, run: Run, *, dry_run: bool) -> None:
    for problem in run.problems:
        click.echo(printable(problem), err=True)
    replayed = run.replayed.total()
    if not replayed and not run.stayed:
        if not run.problems:  # else it is not known
            topic = printable(config.nsq.dead_letter_topic)
            click.echo(f"no dead letter came from the channel {printable(channel)} of {topic}")
            click.echo("one that another run holds comes when that ends, or within 5 minutes", err=True)
    else:
        topics = ", ".join(f"{number:,} to {printable(topic)}" for topic, number in run.replayed.items())
        verb = "can be replayed" if dry_run else "replayed"
        click.echo(f"{counted(replayed, 'dead letter')} {verb}{f': {topics}' if topics else ''}")
        for stays, number in run.stayed.most_common():
            click.echo(f"{counted(number, 'letter')} stay{'s' if number == 1 else ''}: {_IN_WORDS[stays]}")
        reasons = ", ".join(f"{number:,} {printable(reason)}" for reason, number in run.reasons.most_common())
        if reasons:
            click.echo(f"by reason: {reasons}")
    if run.uncertain:
        click.echo(
            f"{counted(run.uncertain, 'event')} may have gone out and will come again: nsqd did not answer in time"
        )
    if run.put_off:
        click.echo(f"{counted(run.put_off, 'letter')} that stay come again within 5 minutes, the others at once")
    if run.ended != "empty":
        click.echo(_ENDED[run.ended])


def _as_json(handled: Handled) -> dict[str, Any]:
    event = handled.event
    return {
        "result": handled.stays or "replayed",
        "detail": handled.detail,
        "nsqd": str(handled.nsqd),
        "topic": event.topic if event else None,
        "reason": event.reason if event else None,
        "why": event.detail if event else None,
        "timestamp": event.timestamp if event else None,
        "length": event.length if event else None,
        "sha256": event.sha256 if event else None,
    }


def _sum_as_json(run: Run, letters: list[dict[str, Any]], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "replayed": run.replayed.total(),
        "topics": dict(run.replayed),
        "stayed": dict(run.stayed),
        "reasons": dict(run.reasons),
        "put_off": run.put_off,
        "uncertain": run.uncertain,
        "ended": run.ended,
        "problems": run.problems,
        "letters": letters,
    }
