"""One order for records, by timestamp, then by arrival: the later arrival is the newer one.

The keys are those of messages, which ascend as one nsqd gets them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from nsqdigest.store.head import Head
from nsqdigest.store.newest import newest_records
from nsqdigest.store.record import Record, shown_keys, stored_key
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.store import Store
from support.stores import PLAN, T, add, open_digest

pytestmark = pytest.mark.integration

ARRIVED_NS = 1_700_000_000_123_456_789


@pytest.fixture
def store_routes() -> Sequence[StoreRoute]:
    return [PLAN._replace(has_message_keys=True, capacity=capacity, name=f"r{capacity}") for capacity in (1, 5, 100)]


def message_key(number: int) -> bytes:
    """Of one of many that one nsqd got at once: an id of 64 bits in hexadecimal digits, and an instant."""
    return b"%016x-%d" % (0x0FED_CBA9_8765_4300 + number, ARRIVED_NS + 100 * number)


def arrived(number: int, *, timestamp_s: int = 1_700_000_000) -> Record:
    return Record(0, T, message_key(number), timestamp_s * 1_000_000, b"%d" % number, possible_repeat=False)


def test_a_key_as_redis_has_it_is_the_smaller_the_later_its_message_arrived() -> None:
    keys = [message_key(number) for number in range(600)]
    stored = [stored_key(key) for key in keys]
    assert sorted(stored) == stored[::-1]
    assert shown_keys(stored) == keys
    assert shown_keys([b"own", b"", "ÿ€".encode()]) == [b"own", b"", "ÿ€".encode()]


@pytest.mark.parametrize("capacity", [1, 5, 100])
@pytest.mark.parametrize("order", ["as they arrived", "reversed", "shuffled"])
@pytest.mark.parametrize("batch", [1, 3, 20])
async def test_of_equal_timestamps_the_latest_arrivals_stay_and_come_first(
    store: Store, capacity: int, order: str, batch: int
) -> None:
    records = [arrived(number) for number in range(18)] + [arrived(90, timestamp_s=1_699_999_999)]
    records.append(arrived(0, timestamp_s=1_700_000_001))
    records[-1].key = message_key(-1)
    if order == "reversed":
        records.reverse()
    elif order == "shuffled":
        random.shuffle(records)
    route = f"r{capacity}"
    for _ in range(2):  # filed again nothing changes
        for start in range(0, len(records), batch):
            await add(store, *records[start : start + batch], route=route)
    numbers = ([-1, *range(17, -1, -1), 90])[:capacity]
    keys = [message_key(number) for number in numbers]
    of = store.namespace.keys[0, route]
    newest = await newest_records(store.namespace, 0, of.index + T, of.values + T, 500)
    assert [record.key for record in newest] == keys
    (claim,) = (await store.digests.claim(0, [(route, 0)], [500], 60_000)).claims
    opened = await open_digest(store, claim, "id-1", [store.clock.now_ms()])
    assert isinstance(opened, Head)
    (whole,) = await store.digests.read(0, [(claim, opened)])
    assert whole is not None
    assert whole.keys == keys
    pages = [await store.digests.page(claim, opened, start, 7) or [] for start in range(0, len(keys), 7)]
    assert [record and record.key for record in itertools.chain(*pages)] == keys
