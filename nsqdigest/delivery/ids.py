"""Digest ids (pure): UUIDv7, minted by the daemon. Never a counter in Redis, which a failover could rewind."""

from __future__ import annotations

RANDOM_BITS = 74


def uuid7(now_ms: int, random_bits: int) -> str:
    high, low = random_bits >> 62 & 0xFFF, random_bits & (1 << 62) - 1
    text = f"{now_ms & (1 << 48) - 1:012x}7{high:03x}{0b10 << 62 | low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
