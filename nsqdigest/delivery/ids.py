"""Digest ids (pure): UUIDv7, minted by the daemon. Never a counter in Redis, which a failover could rewind."""

from __future__ import annotations

RANDOM_BYTES = 10
"""Of one id. All their bits but the last six are in it."""
_DIGITS = 2 * RANDOM_BYTES
_VARIANTS = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""Two bits of a digit are the variant's, and fixed."""


def uuid7(now_ms: int, drawn: bytes) -> str:
    (minted,) = uuids7(now_ms, drawn)
    return minted


def uuids7(now_ms: int, drawn: bytes) -> list[str]:
    """As many as the bytes are for. (To mint them at once, out of text, costs less than a few numbers of one do.)"""
    instant, text = f"{now_ms & (1 << 48) - 1:012x}", drawn.hex()
    before = f"{instant[:8]}-{instant[8:]}-7"
    return [
        f"{before}{text[at : at + 3]}-{_VARIANTS[text[at + 3]]}{text[at + 4 : at + 7]}-{text[at + 7 : at + 19]}"
        for at in range(0, len(text), _DIGITS)
    ]
