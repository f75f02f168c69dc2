"""Bodies of all sizes that nsqd takes, for whoever compares what was published with what came."""

from __future__ import annotations

import random

LARGEST_BYTES = 1 << 20
SMALLEST_BYTES = 10


def mixed_bodies(seed: str, total_bytes: int) -> list[bytes]:
    """From 10 bytes to 1 MiB, small ones by far the most; of every second one nothing can be compressed."""
    drawn = random.Random(seed)
    sizes = [SMALLEST_BYTES, LARGEST_BYTES]
    while sum(sizes) < total_bytes:
        sizes.append(int(SMALLEST_BYTES * (LARGEST_BYTES / SMALLEST_BYTES) ** drawn.random() ** 6))
    bodies = []
    for number, size in enumerate(sizes):
        filling = drawn.randbytes(size) if number % 2 else b"so much of the same " * (size // 20 + 1)
        bodies.append((b"%08d" % number + filling)[:size])
    drawn.shuffle(bodies)
    return bodies
