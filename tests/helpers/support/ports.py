"""Free ports for servers that keep theirs over a restart.

They are taken from below the range from which the kernel draws the local ports of outgoing connections. From inside it
(which is what binding port 0 gives), a client that retries while its server is down could be given the server's very
port: it then connects to itself, or the server cannot come back.

A port is only known to be free, not reserved: whoever starts a server on it and loses a race tries again with another.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
LOWEST_PORT = 10_000
USUAL_FIRST_LOCAL_PORT = 32_768

# The seed of `random` is reset by pytest-randomly, and two test runs side by side would draw the same ports.
_random = random.SystemRandom()


def _first_local_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return USUAL_FIRST_LOCAL_PORT
    return first if first > LOWEST_PORT + 1_000 else USUAL_FIRST_LOCAL_PORT


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    first_local_port = _first_local_port()
    for _ in range(1_000):
        port = _random.randrange(LOWEST_PORT, first_local_port)
        if is_free(port):
            return port
    raise OSError("no free port was found in 1,000 draws")
