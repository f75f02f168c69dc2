"""Digest ids (pure): UUIDv7, minted by the daemon. Never a counter in Redis, which a failover could rewind."""

from __future__ import annotations

from uuid import UUID

RANDOM_BITS = 74


def uuid7(now_ms: int, random_bits: int) -> str:
    high, low = random_bits >> 62 & 0xFFF, random_bits & (1 << 62) - 1
    return str(UUID(int=(now_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low))
