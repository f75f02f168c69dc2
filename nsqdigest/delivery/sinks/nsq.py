"""The kind "nsq": publishes digests to a topic: one message each, with the bytes of the body and nothing else. A digest
is delivered when an nsqd has acknowledged it.

Invariants:
- A digest goes to the first of the sink's nsqds that can be reached. A publish that certainly failed there is tried at
  the next one; one that may have happened is repeated at the next attempt: consumers remember ids.
- Digests that are ready together go in one write, those to the same topic in one command. Each has an outcome of its
  own: one that nsqd refuses is the only one refused. Where an answer is lost, nsqd may have any of that write.
- A write is bounded in digests and bytes; no more of them are in progress than `concurrency`.
- The connections are the sink's own, to each nsqd as many as writes may be in progress. TLS, compression and AUTH are
  those of [nsq].
- A closed sink still returns an outcome.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsq.protocol import valid_topic_name

from nsqdigest.base.errors import NsqdigestError, PublishError
from nsqdigest.base.findings import Finding, Reached, State, from_message
from nsqdigest.base.reasons import Verdict
from nsqdigest.base.templates import TemplateError
from nsqdigest.config import Address, SinkSettings, rules, texts
from nsqdigest.config.options import REQUIRED, Option, Tables
from nsqdigest.config.problems import Spot, Wrong, show
from nsqdigest.config.readers import Address as AddressReader
from nsqdigest.config.readers import ListOf, TemplateText
from nsqdigest.delivery import targets
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import Reach, SinkContext, SinkKind, Uses
from nsqdigest.delivery.targets import Aim, NoTarget, Source, Target

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.nsq.connection import ConnectionOptions

NSQD_MAX_MSG_BYTES = 1 << 20
"""nsqd's default for `--max-msg-size`."""
MOST_AT_ONCE = 100
MOST_BYTES_AT_ONCE = 256 * 1024
"""Of bodies. To compress so many takes some milliseconds, in which nothing else runs."""
_COMMAND_BYTES = 128
"""Of a PUB beside its body, at most: the word, the topic's name, the size."""
_IN_A_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TEMPLATE_LIKE = 'write one like "digests.{tenant}"'
_REFUSED = frozenset({"E_BAD_TOPIC", "E_BAD_MESSAGE", "E_BAD_BODY"})
_UNAVAILABLE = frozenset({"E_UNAUTHORIZED", "E_AUTH_FIRST", "E_AUTH_FAILED", "E_PUB_FAILED", "E_MPUB_FAILED"})
"""The last two: its disk is full, or it ends."""


# -- in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqSinkSettings(SinkSettings):
    nsqd_tcp_addresses: tuple[Address, ...]
    topic: str


def topic_of_file(text: str) -> str:
    if not targets.is_template(text):
        return texts.topic(text)
    try:
        template = targets.parse(text)
    except TemplateError as error:
        raise Wrong(error.problem, error.remedy) from None
    try:
        texts.topic("".join(part if isinstance(part, str) else "x" for part in template.parts))
    except Wrong:
        raise Wrong("makes no topic's name, whatever stands in its fields", _TEMPLATE_LIKE) from None
    return text


def could_be(text: str, topic: str) -> bool:
    """Whether some digest could go to this topic."""
    if not targets.is_template(text):
        return text == topic
    parts = (re.escape(part) if isinstance(part, str) else _IN_A_NAME.pattern for part in targets.parse(text).parts)
    return re.fullmatch("".join(parts), topic) is not None


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
        is_, remedy = "is", "write another topic"
        if targets.is_template(topic):
            is_, remedy = "can become", 'begin it with text of its own, like "digests.{tenant}"'
        if could_be(topic, tables.nsq.get("dead_letter_topic") or ""):
            spot.problem(f"{show(topic)} {is_} nsq.dead_letter_topic, which holds dead letters alone", remedy)
            continue
        readers = [route for route in tables.routes if could_be(topic, route.get("topic", ""))]
        if any(route.get("sink") == name and route.get("match") == () for route in readers) and read_at & {*addresses}:
            spot.problem(
                f"{show(topic)} {is_} the topic of a route with this sink; its digests would come back as its events",
                remedy,
            )
        elif readers:
            spot.warning(
                f"{show(topic)} {is_} the topic of a route, too: where the nsqds are the same, "
                "digests come back as events",
                f"{remedy}, unless that is meant",
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


_DELIVERED = Outcome(Verdict.DELIVERED)


def _outcome_of(error: PublishError | None) -> Outcome:
    return _DELIVERED if error is None else Outcome(verdict_of(error), error.cause, answer=error.answer)


class NsqTopic:
    at_once = MOST_AT_ONCE
    at_once_bytes = MOST_BYTES_AT_ONCE

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
            size_bytes=settings.concurrency
            * (max(settings.max_body_bytes, MOST_BYTES_AT_ONCE) + MOST_AT_ONCE * _COMMAND_BYTES),
            admitted_within_s=self._timeout_s,
            acknowledged_within_s=self._timeout_s,
            # Where there are several, one that rests costs no attempt its time. A single one rests no longer than a
            # publish waits: when to try is for the sink's controller to say, and its probe has to find out.
            retry_cap_ms=RETRY_CAP_MS if len(settings.nsqd_tcp_addresses) > 1 else int(RETRY_WAITED_FOR_S * 1000),
        )
        self._publisher = Publisher(options, metrics, bounds, uniform=uniform)

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        return (await self.deliver_all([digest]))[0]

    async def deliver_all(self, digests: Sequence[OutgoingDigest]) -> list[Outcome]:
        topic = self._settings.topic
        messages = [(topic if each.target is None else each.target.texts["topic"], each.body) for each in digests]
        results: dict[int, PublishError | None] = {}
        others = _DELIVERED
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._publisher.publish_each(self._settings.nsqd_tcp_addresses, messages, results)
        except PublishError as error:
            others = _outcome_of(error)
        except TimeoutError:
            others = Outcome(Verdict.UNAVAILABLE, f"no acknowledgement within {self._timeout_s:g} s")
        return [_outcome_of(results[number]) if number in results else others for number in range(len(digests))]

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


def aim(settings: NsqSinkSettings) -> Aim | None:
    if not targets.is_template(settings.topic):
        return None
    template = targets.parse(settings.topic)
    filler = targets.Filler("topic", template, lambda _: in_a_topic)

    def aimed(source: Source) -> Target:
        topic = filler.text(source)
        if not valid_topic_name(topic):  # its characters are checked: it is too long
            raise NoTarget(f"topic: its name would have {len(topic)} characters; nsqd takes 64", topic)
        return Target({"topic": topic}, f"topic {topic}")

    return Aim(aimed, targets.event_paths(template))


def in_a_topic(value: str) -> str:
    """Without #: that of an ephemeral topic is for the file to write."""
    if not _IN_A_NAME.fullmatch(value):
        raise ValueError("is not only letters, digits, _ . and -, as a topic's name has to be")
    return value


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
        Option(
            "topic",
            TemplateText(topic_of_file),
            REQUIRED,
            'one that no route reads; "digests.{tenant}"',
            "digests",
        ),
    ),
    rules=(addresses_and_size,),
    rules_of_file=(topics, secret_in_the_clear, targets.not_dropped("topic"), targets.in_the_timeline("topic")),
    example="queue",
    doc="publishes the bytes that a webhook gets; TLS, compression and AUTH are those of [nsq]",
    build=build,
    look=look,
    aim=aim,
    uses=lambda _: (Uses.NSQ_OPTIONS,),
)
