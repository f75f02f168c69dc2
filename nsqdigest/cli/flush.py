"""`nsqdigest flush`: a timeline is delivered now, whatever its policy says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from nsqdigest.base.errors import EXIT_NO, NsqdigestError
from nsqdigest.base.moments import span
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.dead_shared import dead_store
from nsqdigest.cli.operating import TEXT, Duration, json_option, shown, typed
from nsqdigest.cli.places import digest_option, look_at, route_option

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.store.following import Followed
    from nsqdigest.store.inspection import Place


class _Flush(NamedTuple):
    """`state`: of the timeline from now on. `why`: nobody delivers it."""

    place: Place
    sink: str
    state: str
    why: str
    followed: Followed | None = None
    """None: nobody waited."""


@click.command("flush", short_help="Deliver a timeline now.")
@click.argument("timeline", type=TEXT)
@config_option
@route_option
@digest_option
@click.option("--wait", is_flag=True, help="Until its digest was delivered or failed, and say which.")
@click.option(
    "--timeout", "timeout_ms", type=Duration(), default="1m", show_default=True, help="Of --wait, at most so long."
)
@json_option
def command(
    *, timeline: str, path: Path | None, route: str, digest_id: str, wait: bool, timeout_ms: int, as_json: bool
) -> None:
    """Deliver a timeline now, whatever its policy, its quiet hours or a retry says.

    It becomes due at once, and a running daemon delivers it within scheduler.interval. A paused or refusing sink still
    holds it back. One that is snoozed is refused: `nsqdigest wake` ends that.

    Exit code 0: it is due, or being delivered already, or has nothing to deliver; with --wait: it was delivered, or has
    nothing to deliver; 1: there is no such timeline; with --wait: it was not delivered; 69: Redis is out of reach.

    \b
    Examples:
      nsqdigest flush user:42
      nsqdigest flush user:42 --wait --timeout 10s
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    done = resolver.run(_flush(config, timeline, route, digest_id, timeout_ms if wait else None))
    click.echo(encoded(_as_json(done)) if as_json else _sentence(config, done, timeout_ms))
    if wait and done.state != "idle" and (done.followed is None or done.followed.result != "delivered"):
        raise SystemExit(EXIT_NO)


async def _flush(config: Config, timeline: str, route: str, digest_id: str, wait_ms: int | None) -> _Flush:
    from nsqdigest.cli.holding import in_words, snooze_of
    from nsqdigest.store.access import operating
    from nsqdigest.store.following import follow
    from nsqdigest.store.operations import Flushed, Operations

    async with operating(config.redis, config.source) as namespace:
        place, known, inspector, routes = await look_at(namespace, config, timeline, route, digest_id)
        sink = routes.sink_of(place.route)
        if known is not None and known.state == "idle":
            # Flushed, it would be forgotten, and its next event would not be held back.
            return _Flush(place, sink, known.state, "")
        if hold := await snooze_of(namespace, place.route, place.name):
            raise NsqdigestError(
                f"the timeline {shown(timeline)} is {in_words(*hold)}: nsqdigest wake {typed(timeline)} ends that"
            )
        flushed = await Operations(namespace).flush(
            place.route, place.name, has_quiet_hours=routes.quiet_of(place.route) is not None
        )
        if flushed is Flushed.UNKNOWN or known is None:
            raise NsqdigestError(f"the timeline {shown(timeline)} has just been delivered and forgotten")
        done = _Flush(place, sink, flushed, routes.why_undelivered(place.route))
        if wait_ms is None or done.why:
            return done
        followed = await follow(
            inspector, dead_store(namespace, config), known, routes.increment_ms(place.route),
            digest_id=digest_id, limit_s=wait_ms / 1000,
        )  # fmt: skip
        return done._replace(followed=followed)


def _sentence(config: Config, done: _Flush, timeout_ms: int) -> str:
    what = f"route {printable(done.place.route)}, timeline {shown(done.place.shown)}"
    if done.followed is not None:
        return f"{what}: {_outcome(done.followed, done.sink, timeout_ms)}"
    if done.state == "leased":
        return f"{what}: a daemon is delivering it already"
    if done.state == "idle":
        return f"{what}: nothing to deliver, it got nothing new since its last digest"
    if done.why:
        return f"{what}: due now, but {done.why}"
    within = span(config.scheduler.interval_ms)
    return f"{what}: due now; a daemon delivers it within {within}, unless its sink is paused or in trouble"


def _outcome(followed: Followed, sink: str, timeout_ms: int) -> str:
    of_digest = f" digest {followed.digest_id}" if followed.digest_id else ""
    if followed.result == "delivered":
        return f"delivered{f' as{of_digest}' if of_digest else ''}"
    if followed.result == "deleted":
        return "deleted meanwhile: nothing of it was delivered"
    if followed.result == "failed":
        attempts = followed.head.attempts if followed.head else 0
        again = f"attempt {attempts} failed, the next one is in {span(followed.again_in_ms)}"
        return f"sink {sink} did not take{of_digest}: {again}; `nsqdigest test-sink {sink}` shows its answer"
    if followed.result == "buried":
        dead = f"it is dead ({followed.reason}); see `nsqdigest dead show {followed.digest_id}`"
        return f"sink {sink} did not take{of_digest}: {dead}"
    return f"not delivered within {span(timeout_ms)}; it stays due. /readyz?verbose of the daemon shows sink {sink}"


def _as_json(done: _Flush) -> dict[str, object]:
    answer: dict[str, object] = {
        "route": done.place.route, "timeline": done.place.shown, "state": done.state, "undelivered": done.why or None,
    }  # fmt: skip
    if done.followed is not None:
        answer |= {
            "result": done.followed.result,
            "digest": done.followed.digest_id or None,
            "reason": done.followed.reason or None,
            "again_in_ms": done.followed.again_in_ms or None,
        }
    return answer
