"""Digest ids: UUIDv7 of the instant and of random bits that are handed in."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest

from nsqdigest.delivery.ids import RANDOM_BITS, RANDOM_BYTES, random_bits, uuid7

pytestmark = pytest.mark.unit

NOW_MS = 1_700_000_000_123
ALL_BITS = (1 << RANDOM_BITS) - 1


@pytest.mark.parametrize("bits", [0, 1, 0x2AA_AAAAAAAA_AAAAAAAA, ALL_BITS])
@pytest.mark.parametrize("now_ms", [0, NOW_MS, (1 << 48) - 1])
def test_an_id_is_a_uuid_of_version_7(now_ms: int, bits: int) -> None:
    made = UUID(uuid7(now_ms, bits))
    assert (made.version, made.variant) == (7, RFC_4122)


def test_an_id_is_written_in_the_usual_form() -> None:
    assert uuid7(0x018BCFE56B7B, 0) == "018bcfe5-6b7b-7000-8000-000000000000"


def test_an_id_begins_with_its_instant() -> None:
    assert UUID(uuid7(NOW_MS, ALL_BITS)).int >> 80 == NOW_MS


def test_ids_sort_by_their_instants_whatever_was_drawn() -> None:
    assert uuid7(NOW_MS, ALL_BITS) < uuid7(NOW_MS + 1, 0)


def test_every_random_bit_is_in_the_id() -> None:
    assert len({uuid7(NOW_MS, 1 << bit) for bit in range(RANDOM_BITS)} | {uuid7(NOW_MS, 0)}) == RANDOM_BITS + 1


def test_an_id_has_no_dot() -> None:
    """A signature joins id, timestamp and body with dots."""
    assert "." not in uuid7(NOW_MS, ALL_BITS)


def test_the_bits_of_many_ids_are_drawn_at_once_and_each_id_has_its_own() -> None:
    one, other = bytes([0xFF] * RANDOM_BYTES), bytes([*[0] * (RANDOM_BYTES - 1), 0b0100_0000])
    assert random_bits(one + other) == [ALL_BITS, 1]
    assert random_bits(b"") == []
