"""Free ports for servers that keep theirs over a restart: those that the demo draws for its own.

A port is only known to be free, not reserved: whoever starts a server on it and loses a race tries again with another.
"""

from __future__ import annotations

import socket

from nsqdigest.demo.servers.ports import draw_port

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    return draw_port(HOST)
