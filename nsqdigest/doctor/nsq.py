"""Looks at the nsqlookupds and at every nsqd that they or the file name, a sink's among them; subscribes to nothing,
publishes nothing.

An nsqd is tried once, whoever names it and however often, with the handshake of the daemon's own connections, as soon
as it is known.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from tornado.iostream import SSLIOStream

from nsqdigest.base.errors import ConnectionLost, LookupFailed, NsqdigestError, Unreachable
from nsqdigest.base.findings import Finding, Reached
from nsqdigest.base.reasons import LookupProblem
from nsqdigest.config import Address
from nsqdigest.doctor import judgements
from nsqdigest.doctor.judgements import NsqdFacts
from nsqdigest.doctor.reach import peer_of, resolve, try_to_reach
from nsqdigest.nsq.connection import options_of
from nsqdigest.nsq.directory import FILE, Named, allowed_nsqds, read_answer, usual_host
from nsqdigest.nsq.handshake import Established, refused_in_the_clear, shake_hands
from nsqdigest.nsq.lookups import CONCURRENT_LOOKUPS, ask, get, open_session

if TYPE_CHECKING:
    import aiohttp

    from nsqdigest.config import Config

_REFUSED_WITHIN_S = 0.5
"""What an nsqd gets to refuse a command; it answers at once, or not at all. Each nsqd of a file without TLS costs this
wait, which has to fit into `examination.WITHIN_S` together with the name and the handshake."""
MOST_TRIED = 100
"""Of the nsqds that nsqlookupds name: each is a socket, all at the same time."""

Fenced = Callable[[str, Awaitable[Sequence[Finding]]], Awaitable[Sequence[Finding]]]


class NsqExaminer:
    """`fenced`: gives an examination its time, and makes findings of whatever goes wrong."""

    def __init__(self, config: Config, fenced: Fenced) -> None:
        self._config = config
        self._fenced = fenced
        self._options = options_of(config.nsq)
        self._allowed = allowed_nsqds(config.nsq)
        self._topics = list(dict.fromkeys(route.topic for route in config.routes))
        self._sources: dict[Address, set[str]] = {}
        self._handshakes: dict[Address, asyncio.Task[NsqdFacts]] = {}
        self._untried: set[Address] = set()
        self._named: dict[str, set[Address]] = {}
        """By topic, of the nsqlookupds that answered."""

    async def look(self) -> tuple[list[Finding], list[Finding], list[Finding]]:
        """Of the nsqlookupds, of the topics that they know, and of the nsqds."""
        for address in self._config.nsq.nsqd_tcp_addresses:
            self._know(address, FILE)
        of_lookupds = await self._look_at_lookupds()
        of_nsqds = await asyncio.gather(*(self._fenced(str(each), self._judged(each)) for each in self._sources))
        nsqds = [finding for found in of_nsqds for finding in found]
        if self._untried:
            nsqds.append(judgements.of_untried_nsqds(len(self._untried)))
        topics = [judgements.of_topic(topic, len(named)) for topic, named in self._named.items()]
        return of_lookupds, topics, nsqds

    async def reach(self, address: Address) -> Reached:
        """For a sink: with the same handshake, which it shares with whoever else names this nsqd."""
        facts = await asyncio.shield(self._try(address._replace(host=usual_host(address.host))))
        return judgements.reached_nsqd(facts, time.time())

    # -- nsqds

    def _know(self, address: Address, source: str) -> None:
        address = address._replace(host=usual_host(address.host))
        if address not in self._sources:
            if source != FILE and len(self._sources) >= MOST_TRIED:
                self._untried.add(address)
                return
            self._sources[address] = set()
            self._try(address)
        self._sources[address].add(source)

    def _try(self, address: Address) -> asyncio.Task[NsqdFacts]:
        task = self._handshakes.get(address)
        if task is None:
            task = asyncio.create_task(self._facts_of(address), name=f"doctor {address}")
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait any more
            self._handshakes[address] = task
        return task

    async def _judged(self, address: Address) -> list[Finding]:
        sources = self._sources[address]
        try:
            # Shared with whoever else names this nsqd, and so not ended with the time of one of them.
            facts = await asyncio.shield(self._handshakes[address])
        except NsqdigestError as error:
            is_reached = not isinstance(error, ConnectionLost | Unreachable)
            return [judgements.of_failed_nsqd(str(address), sources, str(error), is_reached=is_reached)]
        redis_timeout_ms = self._config.redis.timeout_ms
        return judgements.of_nsqd(str(address), sources, facts, redis_timeout_ms, time.time())

    async def _facts_of(self, address: Address) -> NsqdFacts:
        await resolve(address.host)
        established = await shake_hands(address, self._options)
        try:
            if self._options.tls is None:
                await refused_in_the_clear(established, self._options, _REFUSED_WITHIN_S)
            tls, certificate = _tls_of(established)
            return NsqdFacts(
                negotiated=established.negotiated,
                compression_asked=self._options.compression,
                has_secret=self._options.auth_secret is not None,
                tls=tls,
                peer=peer_of(certificate),
            )
        finally:
            established.stream.close()

    # -- nsqlookupds

    async def _look_at_lookupds(self) -> list[Finding]:
        addresses = self._config.nsq.lookupd_http_addresses
        if not addresses:
            return []
        async with open_session() as session:

            async def look(address: Address) -> list[Finding]:
                slots = asyncio.Semaphore(CONCURRENT_LOOKUPS)

                async def look_up(topic: str) -> Named:
                    async with slots:
                        status, body = await ask(session, address, topic)
                        return read_answer(status, body, self._allowed)

                try:
                    await try_to_reach(address.host, address.port)
                    answers = await asyncio.gather(*(look_up(topic) for topic in self._topics))
                except Unreachable as error:
                    failure = LookupFailed(LookupProblem.UNREACHABLE, str(error))
                    return [judgements.of_failed_lookupd(str(address), failure)]
                except LookupFailed as failure:
                    if port := await _tcp_port_of_nsqd(session, address):
                        return [judgements.of_nsqd_as_lookupd(str(address), str(address._replace(port=port)))]
                    return [judgements.of_failed_lookupd(str(address), failure)]
                return self._heard(address, answers)

            found = await asyncio.gather(*(self._fenced(str(address), look(address)) for address in addresses))
        return [finding for findings in found for finding in findings]

    def _heard(self, lookupd: Address, answers: Sequence[Named]) -> list[Finding]:
        nsqds: set[Address] = set()
        unusable: set[str] = set()
        refused: set[str] = set()
        for topic, named in zip(self._topics, answers, strict=True):
            addresses = {Address(host, port) for host, port in named.addresses}
            self._named.setdefault(topic, set()).update(addresses)
            nsqds |= addresses
            unusable |= named.unusable
            refused |= {str(Address(*each)) for each in named.refused}
        for address in sorted(nsqds):
            self._know(address, str(lookupd))
        return judgements.of_lookupd(str(lookupd), len(nsqds), len(self._topics), unusable, refused)


class _Info(msgspec.Struct):
    """Of an nsqd; nsqlookupd's own has no port of TCP."""

    tcp_port: int = 0


async def _tcp_port_of_nsqd(session: aiohttp.ClientSession, address: Address) -> int:
    """0: no nsqd answers there."""
    try:
        status, body = await get(session, address, "/info", {})
        port = msgspec.json.decode(body, type=_Info).tcp_port if status == HTTPStatus.OK else 0
    except (LookupFailed, msgspec.MsgspecError, ValueError, RecursionError):
        return 0
    return port if 0 < port < 65536 else 0


def _tls_of(established: Established) -> tuple[str, Mapping[str, Any] | None]:
    stream = established.stream
    if not isinstance(stream, SSLIOStream) or not isinstance(stream.socket, ssl.SSLSocket):
        return "", None
    cipher = stream.socket.cipher()
    said = f"{established.tls_version} {cipher[0]}" if cipher else established.tls_version
    return said, stream.socket.getpeercert()
