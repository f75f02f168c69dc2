"""The nsqds of a topic, asked once: those of the file, and those that its nsqlookupds name and it allows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base.errors import LookupFailed
from nsqdigest.config import Address
from nsqdigest.nsq.directory import allowed_nsqds, read_answer
from nsqdigest.nsq.lookups import ask, open_session

if TYPE_CHECKING:
    from nsqdigest.config import Nsq


class Nsqds(NamedTuple):
    addresses: list[Address]
    problems: list[str]
    """Of nsqlookupds that gave no usable answer."""


async def nsqds_of(settings: Nsq, topic: str) -> Nsqds:
    addresses = dict.fromkeys(settings.nsqd_tcp_addresses)
    problems: list[str] = []
    allowed = allowed_nsqds(settings)

    async def look_up(lookupd: Address) -> None:
        try:
            status, body = await ask(session, lookupd, topic)
            named = read_answer(status, body, allowed)
        except LookupFailed as error:
            problems.append(f"nsqlookupd at {lookupd}: {error}")
        else:
            addresses.update(dict.fromkeys(Address(host, port) for host, port in sorted(named.addresses)))

    if settings.lookupd_http_addresses:
        async with open_session() as session:
            await asyncio.gather(*map(look_up, settings.lookupd_http_addresses))
    return Nsqds(list(addresses), problems)
