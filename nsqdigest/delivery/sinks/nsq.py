"""Publishes digests to a topic: one message each, the body's very bytes, done when an nsqd has acknowledged it.

Invariants:
- A digest goes to the first of the sink's nsqds that can be reached. What certainly did not happen there is tried at
  the next one; what may have happened comes again at the next attempt: its consumers remember ids.
- The connections are the sink's own, to each nsqd as many as it may have digests on their way. TLS, compression and
  AUTH are those of [nsq].
- A closed sink answers, too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqdigest.base.errors import PublishError
from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.sinks.base import Outcome, Parcel
from nsqdigest.nsq.publisher import RETRY_CAP_MS, RETRY_WAITED_FOR_S, Bounds, Publisher

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import NsqSink
    from nsqdigest.nsq.connection import ConnectionOptions

_COMMAND_BYTES = 128
"""Of a PUB beside its body, at most: the word, the topic's name, the size."""
_REFUSED = frozenset({"E_BAD_TOPIC", "E_BAD_MESSAGE", "E_BAD_BODY"})
_UNAVAILABLE = frozenset(
    {"E_UNAUTHORIZED", "E_AUTH_FIRST", "E_AUTH_FAILED", "E_PUB_FAILED"}  # the last: its disk, or it ends
)


def verdict_of(error: PublishError) -> Verdict:
    if error.code in _REFUSED:
        return Verdict.REFUSED
    # Without a word of nsqd's it was not reached, did not answer, or does not fit [nsq]: TLS, AUTH.
    if not error.code or error.code in _UNAVAILABLE:
        return Verdict.UNAVAILABLE
    return Verdict.AGAIN


class NsqTopic:
    def __init__(
        self,
        settings: NsqSink,
        options: ConnectionOptions,
        metrics: Metrics | None = None,
        *,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._settings = settings
        self._timeout_s = settings.timeout_ms / 1000
        bounds = Bounds(
            connections=settings.concurrency,
            commands=settings.concurrency,
            size_bytes=settings.concurrency * (settings.max_body_bytes + _COMMAND_BYTES),
            admitted_within_s=self._timeout_s,
            acknowledged_within_s=self._timeout_s,
            # Where there are several, one that rests costs no attempt its time. A single one rests no longer than a
            # publish waits: when to try is for the sink's controller to say, and its probe has to find out.
            retry_cap_ms=RETRY_CAP_MS if len(settings.nsqd_tcp_addresses) > 1 else int(RETRY_WAITED_FOR_S * 1000),
        )
        self._publisher = Publisher(options, metrics, bounds, uniform=uniform)

    async def deliver(self, parcel: Parcel) -> Outcome:
        settings = self._settings
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._publisher.publish(settings.nsqd_tcp_addresses, settings.topic, [parcel.body])
        except PublishError as error:
            return Outcome(verdict_of(error), str(error))
        except TimeoutError:
            return Outcome(Verdict.UNAVAILABLE, f"no acknowledgement within {self._timeout_s:g} s")
        return Outcome(Verdict.DELIVERED)

    async def close(self) -> None:
        await self._publisher.close()
