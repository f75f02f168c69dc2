"""Sends one sample digest through a real sink, once: for an operator who wants to know whether it arrives.

Invariants:
- Redis has no part in it, and nothing of it is tried again.
- The sink is built as the daemon builds it, and whatever it does becomes one outcome.
- The digest is that of `preview --sample`, and so are its events to a template: what one shows the other sends.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery import ids
from nsqdigest.delivery.bodies.sample import Opened, digest_json, events_of, stored
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import SinkContext, SinkKinds
from nsqdigest.delivery.targets import NoTarget, Source
from nsqdigest.nsq.connection import options_of

if TYPE_CHECKING:
    from nsqdigest.config import Config

TIMELINE = "nsqdigest-test"
_TEXTS = ("This is a sample digest, sent by `nsqdigest test-sink`.", "Nothing has happened.", "Its events are made up.")
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
    built = kinds[settings.type].build(settings, SinkContext(options_of(config.nsq), is_sample=True))
    began_s = time.monotonic()
    limit_s = settings.timeout_ms / 1000 + _GRACE_S
    try:
        async with asyncio.timeout(limit_s):
            outcome = await built.deliver(digest)
    except TimeoutError:
        outcome = Outcome(Verdict.UNAVAILABLE, f"no outcome within {limit_s:g} s")
    except Exception as error:
        outcome = Outcome(Verdict.AGAIN, type(error).__name__, answer=str(error))
    finally:
        took_s = time.monotonic() - began_s
        await built.close()
    return Sent(digest, outcome, took_s)


def sample(config: Config, sink: str, now_ms: int, event: bytes = b"") -> tuple[OutgoingDigest, bytes]:
    """That of `preview --sample`, of the first route to this sink, but new, and its events say what they are; and the
    value of its newest record."""
    route = next((each for each in config.routes if each.sink == sink), None)
    digest_id = ids.uuid7(now_ms, secrets.token_bytes(ids.RANDOM_BYTES))
    opened = Opened(digest_id, now_ms, config.sinks[sink].max_body_bytes)
    names = Names(route.name if route else TIMELINE, TIMELINE, sink)
    events = stored(route, [json.loads(event)] if event else events_of(route, _TEXTS, test=True))
    body = digest_json(events, names, route.group_path if route else (), opened)
    return OutgoingDigest(opened.id, names.route, TIMELINE, 1, len(events), body), json.dumps(events[0]).encode()
