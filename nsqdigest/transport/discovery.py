"""Asks every nsqlookupd which nsqds have our topics, again and again.

Always so:
- Each nsqlookupd has a task, a timer and a time limit of its own: one that is down, slow or mad delays no other.
- An answer goes on as soon as it is there; what it means is `directory`'s business. A failure goes to the log alone.
- A nsqlookupd that begins to fail, fails in another way, or is back is said once, not each round.
- Nothing of an answer is trusted: its size is bounded while it is read, redirects and encodings are not followed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import aiohttp

import nsqdigest
from nsqdigest import log
from nsqdigest.config import Address
from nsqdigest.errors import LookupFailed, LookupProblem
from nsqdigest.transport.directory import BROADCAST_HINT, poll_wait_s, read_answer

if TYPE_CHECKING:
    from nsqdigest.config import Nsq
    from nsqdigest.metrics import Metrics

ANSWER_WITHIN_S = 5.0
MOST_BYTES = 1 << 20
AT_ONCE = 4
"""Lookups under way at a time, of one nsqlookupd."""
_SHOWN_ADDRESSES = 5

_log = log.get("discovery")

Heard = Callable[[str, Sequence[Address]], None]
"""Gets a nsqlookupd's whole answer about one topic. It must not wait."""


class Lookupd:
    """One nsqlookupd, and how it does."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.failure: LookupFailed | None = None
        self.failing_since_s = 0.0
        self.failures = 0
        """Rounds in a row in which it failed."""
        self.has_answered = False
        self.unusable: dict[str, frozenset[str]] = {}
        """By topic, what it named that is no address."""
        self.slots = asyncio.Semaphore(AT_ONCE)

    @property
    def is_well(self) -> bool:
        return self.has_answered and self.failure is None


class Discovery:
    """Begins with `start`, ends with `stop`. Without a nsqlookupd it does nothing."""

    def __init__(
        self,
        settings: Nsq,
        topics: Mapping[str, Heard],
        *,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
    ) -> None:
        self.lookupds = [Lookupd(address) for address in settings.lookupd_http_addresses]
        self._interval_ms = settings.lookupd_poll_interval_ms
        self._jitter = settings.lookupd_poll_jitter
        self._topics = topics
        self._metrics = metrics
        self._uniform = uniform
        self._session: aiohttp.ClientSession | None = None
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def is_heard(self) -> bool:
        """Whether any nsqlookupd answers."""
        return any(lookupd.is_well for lookupd in self.lookupds)

    def start(self) -> None:
        if self.lookupds:
            self._session = open_session()
        self.tasks = [
            asyncio.create_task(self._poll(lookupd), name=f"nsqlookupd {lookupd.address}") for lookupd in self.lookupds
        ]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    # -- a round

    async def _poll(self, lookupd: Lookupd) -> None:
        while True:
            failures = [failure for failure in await self._round(lookupd) if failure is not None]
            self._note(lookupd, failures[0] if failures else None)
            await asyncio.sleep(poll_wait_s(self._interval_ms, self._jitter, lookupd.failures, self._uniform))

    async def _round(self, lookupd: Lookupd) -> list[LookupFailed | None]:
        return await asyncio.gather(*(self._look_up(lookupd, topic) for topic in self._topics))

    async def _look_up(self, lookupd: Lookupd, topic: str) -> LookupFailed | None:
        try:
            async with lookupd.slots:
                assert self._session is not None
                status, body = await ask(self._session, lookupd.address, topic)
            named = read_answer(status, body)
        except LookupFailed as failure:
            self._metrics.add("lookupd_failures_total", topic=topic, reason=failure.reason)
            return failure
        self._say_unusable(lookupd, topic, named.unusable)
        self._topics[topic](str(lookupd.address), [Address(host, port) for host, port in named.addresses])
        return None

    # -- what is said

    def _note(self, lookupd: Lookupd, failure: LookupFailed | None) -> None:
        before, now_s = lookupd.failure, time.monotonic()
        lookupd.failure = failure
        if failure is None:
            lookupd.failures = 0
            lookupd.has_answered = True
            if before is not None:
                after_s = round(now_s - lookupd.failing_since_s, 1)
                _log.info("discovery.lookupd.back", lookupd=str(lookupd.address), after_s=after_s)
            return
        lookupd.failures += 1
        if before is None:
            lookupd.failing_since_s = now_s
        if before is None or before.reason is not failure.reason:
            _log.warning("discovery.lookupd.failed", lookupd=str(lookupd.address), reason=failure.reason, error=failure)

    def _say_unusable(self, lookupd: Lookupd, topic: str, unusable: frozenset[str]) -> None:
        said = {text for each in self.lookupds for texts in each.unusable.values() for text in texts}
        lookupd.unusable[topic] = unusable
        if news := sorted(unusable - said):
            _log.warning(
                "discovery.address.unusable",
                lookupd=str(lookupd.address),
                topic=topic,
                addresses=", ".join(news[:_SHOWN_ADDRESSES]),
                count=len(news),
                hint=BROADCAST_HINT,
            )


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # A connection does not outlive its answer: rounds are far apart, and a kept one may be dead by then.
        connector=aiohttp.TCPConnector(force_close=True),
        headers={
            "accept": "application/vnd.nsq; version=1.0",
            "accept-encoding": "identity",
            "user-agent": f"nsqdigest/{nsqdigest.__version__}",
        },
        auto_decompress=False,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def ask(session: aiohttp.ClientSession, lookupd: Address, topic: str) -> tuple[int, bytes]:
    """Status and body of an answer to `/lookup`, for `read_answer`. Raises LookupFailed."""
    try:
        async with (
            asyncio.timeout(ANSWER_WITHIN_S),
            session.get(f"http://{lookupd}/lookup", params={"topic": topic}, allow_redirects=False) as answer,
        ):
            return answer.status, await _bounded(answer.content)
    except LookupFailed:
        raise
    except TimeoutError:
        raise LookupFailed(LookupProblem.SLOW, f"no whole answer within {ANSWER_WITHIN_S:g} s") from None
    except (aiohttp.ClientConnectionError, OSError) as error:
        raise LookupFailed(LookupProblem.UNREACHABLE, str(error) or type(error).__name__) from error
    except Exception as error:
        # Whatever the client makes of bytes that are no HTTP: it is this nsqlookupd's failure, not the daemon's.
        raise LookupFailed(LookupProblem.GARBAGE, f"no HTTP: {str(error) or type(error).__name__}") from error


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise LookupFailed(LookupProblem.TOO_LARGE, f"an answer of more than {MOST_BYTES} bytes")
    return bytes(body)
