"""Digest ids: UUIDv7, minted by the daemon. Never a counter in Redis, which a failover could rewind."""

from __future__ import annotations

import secrets

RANDOM_BITS = 74


def random_bits(count: int) -> list[int]:
    """For so many ids: to ask the system once is much of what an id costs."""
    size_bytes = -(-RANDOM_BITS // 8)
    drawn = secrets.token_bytes(count * size_bytes)
    spare_bits = 8 * size_bytes - RANDOM_BITS
    return [
        int.from_bytes(drawn[start : start + size_bytes], "big") >> spare_bits
        for start in range(0, len(drawn), size_bytes)
    ]


def uuid7(now_ms: int, random_bits: int) -> str:
    high, low = random_bits >> 62 & 0xFFF, random_bits & (1 << 62) - 1
    text = f"{(now_ms & (1 << 48) - 1) << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
