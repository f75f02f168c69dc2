"""Hosts and networks that the file allows, where others choose the host (pure): a webhook's, an nsqd's.

allowed = Allowed(["hooks.internal", "*.svc.internal", "10.0.0.0/8"])
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from nsqdigest.base.host_names import is_ip, is_name


class Allowed:
    """Hosts and networks. Raises ValueError for an entry that is neither."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._endings: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in entries:
            self._add(entry.lower().removesuffix("."))

    def _add(self, entry: str) -> None:
        bare = entry.removeprefix("*.")
        if "/" in entry or is_ip(entry):
            self._networks.append(ipaddress.ip_network(entry))
        elif not is_name(bare):
            raise ValueError("is neither a host nor a network")
        elif bare != entry:
            self._endings.append(f".{bare}")
        else:
            self._names.add(entry)

    def host(self, name: str) -> bool:
        """Whether it may lead to any address."""
        return name in self._names or any(name.endswith(ending) for ending in self._endings)

    def address(self, address: str) -> bool:
        found = ipaddress.ip_address(address)
        return any(found in network for network in self._networks)

    def as_written(self, host: str) -> bool:
        """Whether a host passes without a look at DNS: a name by the names, an address by the networks."""
        return self.address(host) if is_ip(host) else self.host(host)
