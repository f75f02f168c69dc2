"""Polls every nsqlookupd for the nsqds that have our topics.

Invariants:
- Each nsqlookupd has a task, a timer and a time limit of its own: one that is down, slow or sends nonsense delays no
  other.
- An answer goes to the topic's `Connections` as soon as it is there; `directory` decides what follows. A failure only
  goes to the log and to a counter.
- A nsqlookupd's failure is logged on start and on change, and its recovery once; not each round.
- A topic that no nsqlookupd has named yet is asked for every 5 s, whatever the interval.
- An nsqd that the file does not allow is never passed on, nor its HTTP address kept.
- No answer is trusted: its size is bounded while it is read, redirects and encodings are not followed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import aiohttp

import nsqdigest
from nsqdigest.base import log, tasks
from nsqdigest.base.errors import LookupFailed
from nsqdigest.base.reasons import LookupProblem
from nsqdigest.config import Address
from nsqdigest.nsq.directory import (
    ALLOW_HINT,
    BROADCAST_HINT,
    UNKNOWN_TOPIC_MS,
    allowed_nsqds,
    poll_wait_s,
    read_answer,
)

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Nsq

ANSWER_WITHIN_S = 5.0
MOST_BYTES = 1 << 20
CONCURRENT_LOOKUPS = 4
"""To one nsqlookupd."""
_SHOWN_ADDRESSES = 5

_log = log.get("discovery")

OnLookupAnswer = Callable[[str, Sequence[Address]], None]
"""Gets the nsqlookupd, and all nsqds that it names for one topic. It must not wait."""


class Lookupd:
    """One nsqlookupd and its last answers."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.failure: LookupFailed | None = None
        self.failing_since_s = 0.0
        self.failures = 0
        """Failed rounds in a row."""
        self.has_answered = False
        self.unusable: dict[str, frozenset[str]] = {}
        """By topic, broadcast addresses in its answer that cannot be an address."""
        self.refused: dict[str, frozenset[str]] = {}
        """By topic, addresses in its answer that the file does not allow."""
        self.http: dict[str, frozenset[Address]] = {}
        """By topic, the HTTP addresses of the nsqds that it named."""
        self.slots = asyncio.Semaphore(CONCURRENT_LOOKUPS)

    @property
    def is_well(self) -> bool:
        return self.has_answered and self.failure is None


class Discovery:
    """From `start` to `stop`. Without a nsqlookupd it does nothing."""

    def __init__(
        self,
        settings: Nsq,
        topics: Mapping[str, OnLookupAnswer],
        *,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
        before: Discovery | None = None,
    ) -> None:
        """`before`: the one that this takes the place of: what is known of a nsqlookupd, and of a topic, goes on."""
        known = {lookupd.address: lookupd for lookupd in before.lookupds} if before is not None else {}
        self.lookupds: list[Lookupd] = [
            known.get(address) or Lookupd(address) for address in settings.lookupd_http_addresses
        ]
        self._allowed = allowed_nsqds(settings)
        self._interval_ms = settings.lookupd_poll_interval_ms
        self._jitter = settings.lookupd_poll_jitter
        self._topics = topics
        self._metrics = metrics
        self._uniform = uniform
        self._unknown: set[str] = set(topics) - (
            before._topics.keys() - before._unknown if before is not None else set()
        )
        """Topics that no nsqlookupd has named an nsqd for since the start."""
        self._reported: set[str] = set(before._reported) if before is not None else set()
        self._asked: set[Address] = set()
        self._session: aiohttp.ClientSession | None = None
        self.tasks = tasks.Tasks()

    @property
    def has_answers(self) -> bool:
        """Whether any nsqlookupd answers."""
        return any(lookupd.is_well for lookupd in self.lookupds)

    def http_addresses_of(self, topic: str) -> set[Address]:
        """Of the nsqds that are in the last answer of any nsqlookupd."""
        return {address for lookupd in self.lookupds for address in lookupd.http.get(topic, ())}

    def start(self) -> None:
        if self.lookupds:
            self._session = open_session()
        for lookupd in self.lookupds:
            self.tasks.start(self._poll(lookupd), f"nsqlookupd {lookupd.address}")

    async def stop(self) -> None:
        await self.tasks.stop()
        if self._session is not None:
            await self._session.close()

    # -- a round

    async def _poll(self, lookupd: Lookupd) -> None:
        """All topics at the interval; between, those that no nsqlookupd has named yet."""
        all_at_s = 0.0
        while True:
            asks_for_all = not self._unknown or time.monotonic() >= all_at_s
            failures = await self._round(lookupd, self._topics if asks_for_all else self._unknown)
            self._log_change(lookupd, failures[0] if failures else None)
            now_s = time.monotonic()
            if asks_for_all:
                all_at_s = now_s + poll_wait_s(self._interval_ms, self._jitter, lookupd.failures, self._uniform)
            wait_s = all_at_s - now_s
            if self._unknown:
                unknown_ms = min(UNKNOWN_TOPIC_MS, self._interval_ms)
                wait_s = min(wait_s, poll_wait_s(unknown_ms, self._jitter, 0, self._uniform))
                self._log_unknown_topics(lookupd, wait_s)
            await asyncio.sleep(max(0.0, wait_s))

    async def _round(self, lookupd: Lookupd, topics: Iterable[str]) -> list[LookupFailed]:
        outcomes = await asyncio.gather(*(self._look_up(lookupd, topic) for topic in topics))
        return [failure for failure in outcomes if failure is not None]

    async def _look_up(self, lookupd: Lookupd, topic: str) -> LookupFailed | None:
        try:
            async with lookupd.slots:
                assert self._session is not None
                status, body = await ask(self._session, lookupd.address, topic)
            named = read_answer(status, body, self._allowed)
        except LookupFailed as failure:
            self._metrics.add("lookupd_failures_total", topic=topic, reason=failure.reason)
            return failure
        if named.addresses:
            self._unknown.discard(topic)
        self._log_unusable(lookupd, topic, named.unusable)
        self._log_refused(lookupd, topic, frozenset(str(Address(*each)) for each in named.refused))
        lookupd.http[topic] = frozenset(Address(host, port) for host, port in named.http)
        self._topics[topic](str(lookupd.address), [Address(host, port) for host, port in named.addresses])
        return None

    # -- the log

    def _log_unknown_topics(self, lookupd: Lookupd, again_s: float) -> None:
        """Once for each topic, when all nsqlookupds have been asked."""
        self._asked.add(lookupd.address)
        if len(self._asked) < len(self.lookupds) or not self.has_answers:
            return
        for topic in sorted(self._unknown - self._reported):
            self._reported.add(topic)
            _log.info("discovery.topic.unknown", topic=topic, detail="no nsqd has it yet", again_s=round(again_s, 1))

    def _log_change(self, lookupd: Lookupd, failure: LookupFailed | None) -> None:
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

    def _log_unusable(self, lookupd: Lookupd, topic: str, unusable: frozenset[str]) -> None:
        known = _all(each.unusable for each in self.lookupds)
        lookupd.unusable[topic] = unusable
        if news := sorted(unusable - known):
            _log.warning(
                "discovery.address.unusable", lookupd=str(lookupd.address), topic=topic, addresses=_first_of(news),
                count=len(news), hint=BROADCAST_HINT,
            )  # fmt: skip

    def _log_refused(self, lookupd: Lookupd, topic: str, refused: frozenset[str]) -> None:
        known = _all(each.refused for each in self.lookupds)
        lookupd.refused[topic] = refused
        if news := sorted(refused - known):
            self._metrics.add("nsqds_refused_total", len(news), topic=topic)
            _log.warning(
                "discovery.address.refused", lookupd=str(lookupd.address), topic=topic, addresses=_first_of(news),
                count=len(news), hint=ALLOW_HINT,
            )  # fmt: skip


def _first_of(addresses: Sequence[str]) -> str:
    return ", ".join(addresses[:_SHOWN_ADDRESSES])


def _all(by_topic: Iterable[Mapping[str, frozenset[str]]]) -> set[str]:
    return {text for topics in by_topic for texts in topics.values() for text in texts}


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # Closed after each answer: rounds are far apart, and a connection that is kept may be dead by then.
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
    return await get(session, lookupd, "/lookup", {"topic": topic})


async def get(
    session: aiohttp.ClientSession, address: Address, path: str, params: Mapping[str, str]
) -> tuple[int, bytes]:
    """Status and body of an answer of a nsqlookupd or an nsqd. Raises LookupFailed."""
    try:
        async with (
            asyncio.timeout(ANSWER_WITHIN_S),
            session.get(f"http://{address}{path}", params=dict(params), allow_redirects=False) as answer,
        ):
            return answer.status, await _bounded(answer.content)
    except LookupFailed:
        raise
    except TimeoutError:
        raise LookupFailed(LookupProblem.SLOW, f"no whole answer within {ANSWER_WITHIN_S:g} s") from None
    except (aiohttp.ClientConnectionError, OSError) as error:
        raise LookupFailed(LookupProblem.UNREACHABLE, str(error) or type(error).__name__) from error
    except Exception as error:
        # Whatever the client raises for bytes that are not HTTP: this server failed, not the daemon.
        raise LookupFailed(LookupProblem.GARBAGE, f"no HTTP: {str(error) or type(error).__name__}") from error


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise LookupFailed(LookupProblem.TOO_LARGE, f"an answer of more than {MOST_BYTES} bytes")
    return bytes(body)
