"""Digest ids (pure): UUIDv7, minted by the daemon. Never a counter in Redis, which a failover could rewind."""

from __future__ import annotations

RANDOM_BITS = 74
RANDOM_BYTES = -(-RANDOM_BITS // 8)
"""Of one id; the last of their bits are not used."""


def random_bits(drawn: bytes) -> list[int]:
    """Of as many ids as the bytes are for. (To draw them at once costs less than an id does.)"""
    return [
        int.from_bytes(drawn[start : start + RANDOM_BYTES], "big") >> 8 * RANDOM_BYTES - RANDOM_BITS
        for start in range(0, len(drawn), RANDOM_BYTES)
    ]


def uuid7(now_ms: int, random_bits: int) -> str:
    high, low = random_bits >> 62 & 0xFFF, random_bits & (1 << 62) - 1
    text = f"{(now_ms & (1 << 48) - 1) << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
