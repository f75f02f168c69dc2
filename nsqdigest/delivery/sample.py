"""Sends one sample digest through a real sink, once: for an operator who wants to know whether it arrives.

Invariants:
- Redis has no part in it, and nothing of it is tried again.
- The sink is built as the daemon builds it, and whatever it does becomes one outcome.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery import ids
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.grouped import builder_of
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import SinkContext, SinkKinds
from nsqdigest.delivery.targets import NoTarget, Source
from nsqdigest.nsq.connection import options_of
from nsqdigest.store.head import Head
from nsqdigest.store.record import StoredRecord

if TYPE_CHECKING:
    from nsqdigest.config import Config, Route

TIMELINE = "nsqdigest-test"
_GRACE_S = 2.0
"""Beyond the sink's own time-out, for one that does not keep it."""


class Sent(NamedTuple):
    digest: OutgoingDigest
    outcome: Outcome
    took_s: float


async def send_sample(config: Config, kinds: SinkKinds, sink: str, now_ms: int, event: bytes = b"") -> Sent:
    """`sink`: one of the file's. `event`: of its one record, in place of a made-up one."""
    settings = config.sinks[sink]
    digest, value = sample(config, sink, now_ms, event)
    aim = kinds[settings.type].aim(settings)
    if aim is not None:
        try:
            digest = digest._replace(target=aim.of(Source(digest.route, digest.timeline, value)))
        except NoTarget as why:
            return Sent(digest, Outcome(Verdict.NO_TARGET, str(why), answer=why.quoting), 0.0)
    built = kinds[settings.type].build(settings, SinkContext(options_of(config.nsq)))
    began_s = time.monotonic()
    limit_s = settings.timeout_ms / 1000 + _GRACE_S
    try:
        async with asyncio.timeout(limit_s):
            outcome = await built.deliver(digest)
    except TimeoutError:
        outcome = Outcome(Verdict.UNAVAILABLE, f"no outcome within {limit_s:g} s")
    except Exception as error:
        outcome = Outcome(Verdict.AGAIN, f"{type(error).__name__}: {error}")
    finally:
        took_s = time.monotonic() - began_s
        await built.close()
    return Sent(digest, outcome, took_s)


def sample(config: Config, sink: str, now_ms: int, event: bytes = b"") -> tuple[OutgoingDigest, bytes]:
    """A digest like any other of the first route to this sink, with one record that says what it is, and its value."""
    route = next((each for each in config.routes if each.sink == sink), None)
    (random_bits,) = ids.random_bits(secrets.token_bytes(ids.RANDOM_BYTES))
    head = Head(
        id=ids.uuid7(now_ms, random_bits), iteration=1, opened_ms=now_ms, total=1, superseded=0, dropped_capacity=0,
        next_earliest_ms=now_ms, since_ms=now_ms, attempts=0, tries=0,
    )  # fmt: skip
    names = Names(route.name if route else TIMELINE, TIMELINE, sink)
    builder = builder_of(head, names, config.sinks[sink].max_body_bytes, route.group_path if route else ())
    value = event or msgspec.json.encode(_event(route))
    builder.add([StoredRecord(b"sample", now_ms, value)])
    return OutgoingDigest(head.id, names.route, TIMELINE, head.attempt, 1, builder.body(now_ms, now_ms)), value


def _event(route: Route | None) -> dict[str, Any]:
    """It has the field by which the route groups."""
    value: Any = "sample"
    for name in reversed(route.group_path if route else ()):
        value = {name: value}
    of_group = value if isinstance(value, dict) else {}
    return {"test": True, "message": "This is a sample digest, sent by `nsqdigest test-sink`.", **of_group}
