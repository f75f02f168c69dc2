"""Which addresses a name that comes from data may lead to (pure): public ones, and those that the file allows.

    allowed = Allowed(["hooks.internal", "*.svc.internal", "10.0.0.0/8"])
    refusal("acme.example.com", ["8.8.8.8", "10.1.2.3"], allowed)

Invariants:
- All addresses of a name have to pass, not only the one that would be connected to.
- Public is what is listed here, not what the standard library of some version takes for global: no address that reaches
  this machine, its network or a cloud's metadata by another way (mapped, 6to4, NAT64, Teredo) is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from nsqdigest.base.allowed_hosts import Allowed
from nsqdigest.base.host_names import is_ip

_NOT_PUBLIC_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
            "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
            "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        ),
    )
)  # fmt: skip
"""168.63.129.16: a cloud's own services, at an address that is public elsewhere."""
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
"""Unicast. Loopback, link-local, unique local, mapped and NAT64 addresses are outside of it."""
_NOT_PUBLIC_V6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))


def is_public(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _NOT_PUBLIC_V4)
    return found in _PUBLIC_V6 and not any(found in network for network in _NOT_PUBLIC_V6)


def refusal(host: str, addresses: Sequence[str], allowed: Allowed) -> str:
    """Why the host must not be connected to; "" where it may."""
    if not addresses:
        return f"{host} has no address"
    if allowed.host(host):
        return ""
    for address in addresses:
        if not is_public(address) and not (is_ip(address) and allowed.address(address)):
            return f"{host} has the address {address}, which is not public; allow_hosts can allow it"
    return ""
