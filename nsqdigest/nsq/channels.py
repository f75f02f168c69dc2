"""Which channels a topic has, asked once. Whoever subscribes to a channel that is not there makes it, with its mistyped
name, for ever.

nsqlookupd knows the channels of a topic. Where the file names none, each nsqd is asked by HTTP at the port behind its
TCP port, where it listens unless it was told otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from nsqdigest.base.errors import LookupFailed
from nsqdigest.config import Address
from nsqdigest.nsq.lookups import get, open_session

if TYPE_CHECKING:
    from nsqdigest.config import Nsq


class _Channels(msgspec.Struct):
    channels: list[str]


class _Channel(msgspec.Struct):
    channel_name: str


class _Topic(msgspec.Struct):
    topic_name: str
    channels: list[_Channel] | None


class _Stats(msgspec.Struct):
    topics: list[_Topic] | None
    """nsqd writes null for an empty list."""


def read_lookupd(body: bytes) -> set[str]:
    return set(msgspec.json.decode(body, type=_Channels).channels)


def read_nsqd(body: bytes, topic: str) -> set[str]:
    topics = msgspec.json.decode(body, type=_Stats).topics or []
    return {each.channel_name for of in topics if of.topic_name == topic for each in of.channels or []}


async def channels_of(settings: Nsq, nsqds: Sequence[Address], topic: str) -> set[str] | None:
    """None: not all of those that know could be asked."""
    async with open_session() as session:

        async def of_lookupd(lookupd: Address) -> set[str]:
            status, body = await get(session, lookupd, "/channels", {"topic": topic})
            return read_lookupd(body) if status == 200 else set()

        async def of_nsqd(nsqd: Address) -> set[str]:
            asked = {"format": "json", "topic": topic, "include_clients": "false"}
            status, body = await get(session, nsqd._replace(port=nsqd.port + 1), "/stats", asked)
            if status != 200:
                raise ValueError("no stats")
            return read_nsqd(body, topic)

        lookupds = settings.lookupd_http_addresses
        work = [*map(of_lookupd, lookupds)] if lookupds else [*map(of_nsqd, nsqds)]
        try:
            found = await asyncio.gather(*work)
        except (LookupFailed, msgspec.DecodeError, ValueError):
            return None
        return set().union(*found)
