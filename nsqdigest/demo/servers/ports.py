"""Ports for embedded servers, which keep theirs while they are down.

They are drawn from below the range from which the kernel takes the local ports of outgoing connections. From inside it
(which is what binding port 0 gives), a client that tries again and again to reach a server that is down may be given
that server's own port: it is then connected to itself, and the server cannot come back.
"""

from __future__ import annotations

import random
import socket
from functools import cache
from pathlib import Path

LOWEST_PORT = 10_000
USUAL_FIRST_LOCAL_PORT = 32_768
DRAWS = 1_000

# Not the seeded one: two runs with the same seed would draw the same ports.
_random = random.SystemRandom()


@cache
def _first_local_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return USUAL_FIRST_LOCAL_PORT
    return first if first > LOWEST_PORT + 1_000 else USUAL_FIRST_LOCAL_PORT


def draw_port(host: str = "127.0.0.1") -> int:
    """A port that is free now. Nothing reserves it: somebody else may be faster."""
    for _ in range(DRAWS):
        port = _random.randrange(LOWEST_PORT, _first_local_port())
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        return port
    raise OSError(f"no free port of {host} was found in {DRAWS} draws")
