"""What a digest of a timeline would hold if it were opened now. Reads only: no script, no lease, no id.

Events come in meanwhile, so it is a picture of a moment. A digest that waits for another attempt is shown as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.store import newest
from nsqdigest.store.head import Head

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.record import StoredRecord

NO_ID = "00000000-0000-7000-8000-000000000000"
"""In place of the id, which a digest gets when it is opened."""


class Peeked(NamedTuple):
    head: Head
    is_opened: bool
    """Whether it has its id already."""
    partition: int
    keys: tuple[bytes, bytes]
    """Of its records: index and values."""
    first_ms: int
    last_ms: int


async def peek(
    namespace: Namespace, route: str, timeline: str, earliest_next_ms: Callable[[int], Sequence[int]]
) -> Peeked | None:
    """None: there is nothing to deliver. `earliest_next_ms`: called with Redis' clock, returns the earliest next
    digests, by iteration from 1 on; the last stands for all later ones."""
    name = timeline.encode()
    partition = namespace.partition_of(name)
    keys = namespace.keys[partition, route]
    text, losses, opened, waiting, (seconds, microseconds) = await namespace.send(
        partition,
        [
            [b"HGET", keys.heads, name],
            [b"HMGET", keys.losses, b"s" + name, b"c" + name, b"x" + name],
            [b"ZCARD", keys.snapshot + name],
            [b"ZCARD", keys.index + name],
            [b"TIME"],
        ],
    )
    if opened and text:
        head, index, values = Head.parse(text), keys.snapshot + name, keys.snapshot_values + name
    elif waiting:
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        iteration = _iteration(text) + 1
        instants_ms = earliest_next_ms(now_ms)
        next_ms = instants_ms[min(iteration, len(instants_ms)) - 1]
        superseded, dropped, cancelled = (int(each or 0) for each in losses)
        head = Head(NO_ID, iteration, now_ms, waiting, superseded, dropped, next_ms, now_ms, 0, 0, cancelled)
        index, values = keys.index + name, keys.values + name
    else:
        return None
    first_ms, last_ms = await newest.span_ms(namespace, partition, index)
    return Peeked(head, head.id != NO_ID, partition, (index, values), first_ms, last_ms)


async def pages(namespace: Namespace, peeked: Peeked) -> AsyncIterator[list[StoredRecord]]:
    """Its records, the newest first."""
    async for page in newest.pages(namespace, peeked.partition, peeked.keys, peeked.head.total):
        yield page


def _iteration(text: bytes | None) -> int:
    """Of the last digest; a timeline that had none has no head."""
    fields = dict(field.split(b"=", 1) for field in (text or b"").split())
    return int(fields.get(b"iteration", 0))
