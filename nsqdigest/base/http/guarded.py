"""Resolves names that come from data: once for each connection, and only to addresses that may be connected to.

The addresses that were looked at are those that are connected to. A name that leads elsewhere a moment later (DNS
rebinding) gains nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from nsqdigest.base import resolver
from nsqdigest.base.allowed_hosts import Allowed
from nsqdigest.base.http.client import Resolve
from nsqdigest.base.http.public_addresses import refusal

MOST_ADDRESSES = 8
"""Of a name: as many are tried. All are looked at."""


def resolver_of(allowed: Allowed) -> Resolve:
    async def resolve(host: str, port: int) -> Sequence[str]:
        found = await resolver.TARGETS.look_up(host, port, kind=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
        if why_not := refusal(host, addresses, allowed):
            raise OSError(why_not)
        return addresses[:MOST_ADDRESSES]

    return resolve
