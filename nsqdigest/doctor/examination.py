"""Runs all looks at once. Each has a time limit and a fence of its own: one that hangs or raises becomes a finding, and
delays or hides no other. So the whole takes no longer than the longest look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from nsqdigest.base.findings import Finding
from nsqdigest.doctor import judgements
from nsqdigest.doctor.findings import Part
from nsqdigest.doctor.nsq import NsqExaminer
from nsqdigest.doctor.places import SinkReach, look_at_admin
from nsqdigest.doctor.store import StoreExaminer

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.delivery.sinks.kind import SinkKinds

WITHIN_S = 9.0
"""The limit of one look: longer than the limits of a name, a handshake and the refusal of a command together (3 s, 5 s
and 0.5 s), so that those report what hangs; an AUTH may take longer, and is cut off here. An nsqd that a nsqlookupd
names is tried after that nsqlookupd: the whole takes at most twice as long."""
_REGISTRY_WITHIN_S = 4.0
"""The look at a silent admin address waits for Redis' list of daemons: at most so long, within its own limit."""


async def examine(config: Config, kinds: SinkKinds, of_file: Sequence[Finding] = ()) -> list[Part]:
    """`of_file`: the findings of the file itself."""
    nsq = NsqExaminer(config, fenced)
    reach = SinkReach(nsq)
    store_examiner = StoreExaminer(config)
    store_look = asyncio.create_task(fenced(config.redis.shown_url, store_examiner.look()))

    async def pids_here() -> list[int]:
        await asyncio.wait((store_look,), timeout=_REGISTRY_WITHIN_S)
        return store_examiner.pids_here

    (lookupds, topics, nsqds), store, sinks, admin = await asyncio.gather(
        nsq.look(),
        store_look,
        asyncio.gather(*(fenced(sink.name, kinds[sink.type].look(sink, reach)) for sink in config.sinks.values())),
        fenced("listen", look_at_admin(config.admin.listen, pids_here)),
    )
    return [
        Part("file", tuple(of_file)),
        Part("nsqlookupd", tuple(lookupds)),
        Part("topic", tuple(topics)),
        Part("nsqd", tuple(nsqds)),
        Part("redis", tuple(store)),
        Part("sink", tuple(finding for found in sinks for finding in found)),
        Part("admin", tuple(admin)),
    ]


async def fenced(what: str, look: Awaitable[Sequence[Finding]]) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(WITHIN_S):
            return await look
    except TimeoutError:
        return [judgements.of_silence(what, WITHIN_S)]
    except Exception as error:
        return [judgements.of_mistake(what, f"{type(error).__name__}: {error}")]
