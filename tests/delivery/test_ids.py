"""Digest ids: UUIDv7 of the instant and of random bits that are handed in."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest

from nsqdigest.delivery.ids import RANDOM_BYTES, uuid7, uuids7

pytestmark = pytest.mark.unit

NOW_MS = 1_700_000_000_123
NONE, ALL = bytes(RANDOM_BYTES), bytes([0xFF] * RANDOM_BYTES)
RANDOM_BITS = 74


@pytest.mark.parametrize("drawn", [NONE, b"\0" * 9 + b"\x01", bytes([0xAA] * RANDOM_BYTES), ALL])
@pytest.mark.parametrize("now_ms", [0, NOW_MS, (1 << 48) - 1])
def test_an_id_is_a_uuid_of_version_7(now_ms: int, drawn: bytes) -> None:
    made = UUID(uuid7(now_ms, drawn))
    assert (made.version, made.variant) == (7, RFC_4122)


def test_an_id_is_written_in_the_usual_form() -> None:
    assert uuid7(0x018BCFE56B7B, NONE) == "018bcfe5-6b7b-7000-8000-000000000000"


def test_an_id_begins_with_its_instant() -> None:
    assert UUID(uuid7(NOW_MS, ALL)).int >> 80 == NOW_MS


def test_ids_sort_by_their_instants_whatever_was_drawn() -> None:
    assert uuid7(NOW_MS, ALL) < uuid7(NOW_MS + 1, NONE)


def test_every_random_bit_is_in_the_id() -> None:
    drawn = [(1 << bit).to_bytes(RANDOM_BYTES, "big") for bit in range(8 * RANDOM_BYTES)]
    assert len({uuid7(NOW_MS, each) for each in drawn} - {uuid7(NOW_MS, NONE)}) == RANDOM_BITS


def test_an_id_has_no_dot() -> None:
    """A signature joins id, timestamp and body with dots."""
    assert "." not in uuid7(NOW_MS, ALL)


def test_many_ids_are_minted_at_once_and_each_has_bits_of_its_own() -> None:
    assert uuids7(NOW_MS, ALL + NONE) == [uuid7(NOW_MS, ALL), uuid7(NOW_MS, NONE)]
    assert uuids7(NOW_MS, b"") == []
