"""The kind "nsq": publishes digests to a topic: one message each, with the bytes of the body and nothing else. A digest
is delivered when an nsqd has acknowledged it.

Invariants:
- A digest goes to the first of the sink's nsqds that can be reached. A publish that certainly failed there is tried at
  the next one; one that may have happened is repeated at the next attempt: consumers remember ids.
- The connections are the sink's own, to each nsqd as many as digests may be in progress. TLS, compression and AUTH are
  those of [nsq].
- A closed sink still returns an outcome.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqdigest.base.errors import NsqdigestError, PublishError
from nsqdigest.base.findings import Finding, Reached, State, from_message
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Address, SinkSettings, rules, texts
from nsqdigest.config.options import REQUIRED, Option, Tables
from nsqdigest.config.problems import Spot, Wrong, show
from nsqdigest.config.readers import Address as AddressReader
from nsqdigest.config.readers import ListOf, Text
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import Reach, SinkContext, SinkKind

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.nsq.connection import ConnectionOptions

NSQD_MAX_MSG_BYTES = 1 << 20
"""nsqd's default for `--max-msg-size`."""
_COMMAND_BYTES = 128
"""Of a PUB beside its body, at most: the word, the topic's name, the size."""
_REFUSED = frozenset({"E_BAD_TOPIC", "E_BAD_MESSAGE", "E_BAD_BODY"})
_UNAVAILABLE = frozenset(
    {"E_UNAUTHORIZED", "E_AUTH_FIRST", "E_AUTH_FAILED", "E_PUB_FAILED"}  # the last: its disk, or it ends
)


# -- in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqSinkSettings(SinkSettings):
    nsqd_tcp_addresses: tuple[Address, ...]
    topic: str


def fixed_topic(text: str) -> str:
    if "{" in text or "}" in text:
        raise Wrong("is a template, which is not available in this version", 'write a fixed name like "digests"')
    return texts.topic(text)


def addresses_and_size(values: dict[str, Any], spot: Spot) -> None:
    if values.get("nsqd_tcp_addresses") == ():
        (spot / "nsqd_tcp_addresses").problem("has nothing in it", 'write one like ["127.0.0.1:4150"]')
    rules.warn_of_http_ports(values, spot)
    if values.get("max_body_bytes", 0) > NSQD_MAX_MSG_BYTES:
        (spot / "max_body").warning(
            "is more than most nsqds take (--max-msg-size, by default 1 MiB)",
            'write "1MiB" or less, or start them with as much',
        )


def topics(tables: Tables, root: Spot) -> None:
    """The topics that digests are published to, beside those that are read. Other nsqds may have a topic of the same
    name, and a digest of digests may be meant; a route that takes whatever it delivered itself never is."""
    read_at = set(tables.nsq.get("nsqd_tcp_addresses", ()))
    for name, sink in tables.sinks.items():
        topic, addresses = sink.get("topic"), sink.get("nsqd_tcp_addresses", ())
        spot = root / "sinks" / name / "topic"
        if topic is None:
            continue
        if topic == tables.nsq.get("dead_letter_topic"):
            spot.problem(
                f"{show(topic)} is nsq.dead_letter_topic, which holds dead letters alone", "write another topic"
            )
            continue
        readers = [route for route in tables.routes if route.get("topic") == topic]
        if any(route.get("sink") == name and route.get("match") == () for route in readers) and read_at & {*addresses}:
            spot.problem(
                f"{show(topic)} is the topic of a route with this sink; its digests would come back as its events",
                "write another topic",
            )
        elif readers:
            spot.warning(
                f"{show(topic)} is the topic of a route, too: where the nsqds are the same, "
                "digests come back as events",
                "write another topic, unless that is meant",
            )


def secret_in_the_clear(tables: Tables, root: Spot) -> None:
    """The nsqds of a sink get nsq.auth_secret as well. `rules.nsq` warns of those in [nsq] itself."""
    far = next((each for each in map(rules.first_far, tables.sinks.values()) if each is not None), None)
    if far is not None and rules.first_far(tables.nsq) is None and rules.is_secret_in_the_clear(tables.nsq):
        (root / "nsq" / "auth_secret").warning(f"goes to {far} in the clear", "write [nsq.tls] as well")


# -- delivery


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
        settings: NsqSinkSettings,
        options: ConnectionOptions,
        metrics: Metrics | None = None,
        *,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        from nsqdigest.nsq.publisher import RETRY_CAP_MS, RETRY_WAITED_FOR_S, Bounds, Publisher

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

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        settings = self._settings
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._publisher.publish(settings.nsqd_tcp_addresses, settings.topic, [digest.body])
        except PublishError as error:
            return Outcome(verdict_of(error), str(error))
        except TimeoutError:
            return Outcome(Verdict.UNAVAILABLE, f"no acknowledgement within {self._timeout_s:g} s")
        return Outcome(Verdict.DELIVERED)

    async def close(self) -> None:
        await self._publisher.close()


# -- the doctor's look


async def look(sink: NsqSinkSettings, reach: Reach) -> list[Finding]:
    found = await asyncio.gather(*(_look_at(sink, address, reach) for address in sink.nsqd_tcp_addresses))
    return [finding for findings in found for finding in findings]


async def _look_at(sink: NsqSinkSettings, address: Address, reach: Reach) -> list[Finding]:
    try:
        reached = await reach.nsqd(address)
    except NsqdigestError as error:
        return [unreached(sink.name, str(address), str(error))]
    return judged(sink.name, str(address), sink.topic, reached)


def judged(what: str, address: str, topic: str, reached: Reached) -> list[Finding]:
    detail = f"{address}: {reached.how}; nothing was published, so whether {topic} may be published to is not known"
    return [Finding(what, State.OK, detail), *(doubt.of(f"{what} at {address}") for doubt in reached.doubts)]


def unreached(what: str, address: str, message: str) -> Finding:
    message = message.removeprefix(f"nsqd at {address}: ").removeprefix(f"nsqd at {address} ")
    otherwise = "see that nsqd runs, and the nsqd_tcp_addresses of this sink (its TCP port)"
    finding = from_message(what, State.FAIL, message, otherwise)
    return finding._replace(detail=f"{address}: {finding.detail}")


def build(settings: NsqSinkSettings, context: SinkContext) -> NsqTopic:
    return NsqTopic(settings, context.nsq_options, context.metrics)


KIND = SinkKind(
    name="nsq",
    settings=NsqSinkSettings,
    options=(
        Option(
            "nsqd_tcp_addresses",
            ListOf(AddressReader(4150), '"127.0.0.1:4150"', unique=True),
            REQUIRED,
            "the first that can be reached takes a digest",
            ["127.0.0.1:4150"],
        ),
        Option("topic", Text(fixed_topic), REQUIRED, "one that no route reads", "digests"),
    ),
    rules=(addresses_and_size,),
    rules_of_file=(topics, secret_in_the_clear),
    example="queue",
    doc="publishes the bytes that a webhook gets; TLS, compression and AUTH are those of [nsq]",
    build=build,
    look=look,
)
