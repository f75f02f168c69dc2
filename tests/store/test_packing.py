"""layout.py: how a batch is packed. (That add.lua reads it as it is meant: tests/lua and tests/integration.)"""

from __future__ import annotations

import struct

import pytest

from nsqdigest.store.keys import Keys
from nsqdigest.store.packing import pack_batch
from nsqdigest.store.record import Record
from nsqdigest.store.servers.resp import Arguments, encode

pytestmark = pytest.mark.unit

NOW_US = 1_790_000_000_000_000
KEYS = Keys(b"{n:0}:", "r")


def record(
    timeline: bytes, key: bytes, value: bytes = b"{}", *, at_us: int = NOW_US, possible_repeat: bool = False
) -> Record:
    return Record(0, timeline, key, at_us, value, possible_repeat)


def packed(*records: Record) -> tuple[bytes, int, bytes, bytes]:
    """The keys, the number of timelines of the first kind, the batch and the values."""
    keys, (plain, batch, values) = pack_batch(KEYS, records)
    assert isinstance(plain, int)
    assert isinstance(batch, bytes)
    return encode(keys), plain, batch, encode([values])


def score(at_us: int = NOW_US) -> bytes:
    return b"%017d" % -at_us


def test_records_of_a_timeline_stand_together_in_the_order_in_which_they_came() -> None:
    keys, plain, batch, values = packed(record(b"t", b"1", b"a"), record(b"u", b"2", b"b"), record(b"t", b"33", b"c"))
    assert keys == encode([b"{n:0}:set:r:u", b"{n:0}:values:r:u", b"{n:0}:set:r:t", b"{n:0}:values:r:t"])
    assert plain == 2
    head = struct.pack(">HH", 1, 2)
    assert batch == head + b"\0\x012" + score() + b"\0\x011" + score() + b"\0\x0233" + score()
    assert values == encode([Arguments([b"b", b"a", b"c"])])


def test_a_timeline_with_a_possible_repeat_is_of_the_second_kind() -> None:
    again = record(b"t", b"1", b"a", possible_repeat=True)
    keys, plain, batch, values = packed(again, record(b"u", b"2", b"b"), record(b"t", b"3", b"c"))
    kinds = (b"{n:0}:set:r:t", b"{n:0}:values:r:t", b"{n:0}:digest:r:t", b"{n:0}:shown:r:t")
    assert keys == encode([b"{n:0}:set:r:u", b"{n:0}:values:r:u", *kinds])
    assert plain == 1
    head, flags = struct.pack(">HH", 1, 2), b"\x01\x00"
    assert batch == head + b"\0\x012" + score() + b"\0\x011" + score() + b"\0\x013" + score() + flags
    assert values == encode([Arguments([b"b", b"a", b"c"])])


def test_a_timeline_with_an_urgent_record_or_a_muted_one_is_of_the_second_kind_too() -> None:
    urgent = record(b"t", b"1", possible_repeat=True)
    urgent.is_urgent = True
    _, (plain, batch, _) = pack_batch(KEYS, [urgent, record(b"t", b"2"), record(b"m", b"3")], frozenset([b"m", b"z"]))
    assert plain == 0
    assert isinstance(batch, bytes)
    assert batch.endswith(b"\x04\x03\x00")


def test_a_score_always_has_17_characters() -> None:
    _, _, batch, _ = packed(record(b"t", b"1", at_us=5), record(b"t", b"2", at_us=0))
    assert batch == b"\0\x02" + b"\0\x011" + b"-0000000000000005" + b"\0\x012" + b"00000000000000000"
