"""Whether a request over HTTP is answered at all (pure): who may read, who may write, and from which web page.

    path                            on a loopback address           on any other address
    /, /page/…, /livez, …           read by anyone                  read by anyone
    GET /api/…                      read by anyone on this machine  needs the token
    POST /api/…                     needs the token                 needs the token

Invariants:
- Without the token only this machine reads what publishers wrote: not a request that a proxy passed on, and not a web
  page of somebody else that a browser on this machine shows. Such a page either names another host (DNS rebinding), or
  the browser itself says that it is of another origin.
- On an address that other machines reach the host may have any name: no web page knows the token.
- No web page of another origin writes, whatever it sends: a write needs the token, and JSON's content type.
- A token is compared in constant time. An address that shows many wrong ones waits (`Brake`).
- A refusal has a reason, which is also the label of a metric, and a text with the remedy.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from nsqdigest.base.host_names import is_host, is_ip
from nsqdigest.base.reasons import HttpRefusal as Reason
from nsqdigest.base.shown import printable

READS = frozenset({"GET", "HEAD"})
_API = "/api/"
_JSON = "application/json"
_LONGEST_SHOWN = 100
_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:/?#@\s]+)(?::(?P<port>[0-9]{1,5}))?")
_OWN_SITES = ("same-origin", "none")
"""Of Sec-Fetch-Site: our page, and an address that somebody typed. `same-site` is another port of this host."""


class Asked(NamedTuple):
    """What a decision looks at."""

    method: str
    path: str
    hosts: tuple[str, ...]
    """Every Host header."""
    origin: str | None = None
    site: str | None = None
    """Sec-Fetch-Site, which web pages cannot set; older browsers, and those that speak plain HTTP to another machine,
    send none."""
    mode: str | None = None
    """Sec-Fetch-Mode."""
    is_passed_on: bool = False
    """A proxy says that it asks for somebody else."""
    authorization: str | None = None
    content_type: str = ""

    @property
    def is_of_api(self) -> bool:
        return self.path.startswith(_API)

    @property
    def is_write(self) -> bool:
        return self.method not in READS


class Refused(NamedTuple):
    status: int
    reason: Reason
    text: str


class Guard:
    def __init__(self, token: Callable[[], bytes | None], *, is_loopback: bool) -> None:
        """`token` returns that of the present file. `is_loopback`: only this machine reaches the address of the
        server."""
        self._token = token
        self._is_loopback = is_loopback

    def decide(self, asked: Asked, *, may_try: bool = True) -> Refused | None:
        """`may_try`: False where too many wrong tokens came from the client's address."""
        return (
            self._of_host(asked)
            or _of_page(asked)
            or (self._of_token(asked, may_try=may_try) if self._looks_at_token(asked, may_try=may_try) else None)
            or _of_content(asked)
        )

    def _looks_at_token(self, asked: Asked, *, may_try: bool) -> bool:
        """One that is shown where none is needed is looked at, too: so who typed it learns whether it is right. Not
        after too many wrong ones: what anybody may read nobody keeps from those who show the right one."""
        if not asked.is_of_api:
            return False
        if asked.is_write or not self._is_loopback or asked.is_passed_on:
            return True
        return may_try and self._token() is not None and (asked.authorization or "").lower().startswith("bearer ")

    def _of_host(self, asked: Asked) -> Refused | None:
        if not asked.hosts:
            return None  # no browser: HTTP/1.0, as some load balancers speak it
        host = _host_of(asked.hosts[0]) if len(asked.hosts) == 1 else None
        if host is None:
            return Refused(400, Reason.HOST, "a Host header is one name or IP address, with or without a port")
        if not self._is_loopback or is_ip(host) or _is_local_name(host):
            return None
        return Refused(
            403,
            Reason.HOST,
            f"{printable(host, _LONGEST_SHOWN)} is no name of this machine for itself: open http://localhost "
            "or by its IP address; a proxy in front has to send such a Host header (docs/operating.md)",
        )

    def _of_token(self, asked: Asked, *, may_try: bool) -> Refused | None:
        token = self._token()
        if token is None:
            what = "writes" if asked.is_write else "reads through a proxy"
            return Refused(
                403,
                Reason.NO_TOKEN,
                f"{what} are refused: admin.token is not set in the file of this daemon; write token = "
                '"env:NAME" under [admin], and reload or restart it',
            )
        if asked.authorization is None:
            return Refused(
                401, Reason.TOKEN_MISSING, "the token is missing: authorization: Bearer TOKEN, that of admin.token"
            )
        if not may_try:
            return Refused(
                429,
                Reason.TOO_MANY_TOKENS,
                "too many wrong tokens came from this address: wait a minute, then try again",
            )
        scheme, _, shown = asked.authorization.partition(" ")
        shown_bytes = shown.strip().encode("utf-8", "surrogateescape")  # a header may hold any bytes
        if scheme.lower() == "bearer" and hmac.compare_digest(shown_bytes, token):
            return None
        return Refused(401, Reason.TOKEN_WRONG, "the token is wrong: authorization: Bearer TOKEN, that of admin.token")


def _of_page(asked: Asked) -> Refused | None:
    """Refuses what the web page of another origin asks for. Its links may be followed: that shows it nothing."""
    if asked.site is not None:
        is_link = asked.mode == "navigate" and not asked.is_write and not asked.is_of_api
        is_own = asked.site in _OWN_SITES or is_link
    elif asked.origin is not None:
        is_own = [_origin_host(asked.origin)] == [_with_port(host) for host in asked.hosts]
    else:
        is_own = True  # no browser, or one that loads our page
    if is_own:
        return None
    return Refused(403, Reason.FOREIGN_PAGE, "a web page of another origin asks for this, and none may")


def _of_content(asked: Asked) -> Refused | None:
    if asked.is_of_api and asked.is_write and asked.content_type != _JSON:
        return Refused(415, Reason.CONTENT_TYPE, f"content-type is not {_JSON}")
    return None


# -- hosts


def _host_of(authority: str) -> str | None:
    """The host of `host:port`, without the brackets of IPv6; None: it is none."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    host = found["host"]
    bare = host.removeprefix("[").removesuffix("]")
    if host.startswith("["):
        return bare if is_ip(bare) else None
    return host if is_host(host) else None


def _is_local_name(host: str) -> bool:
    """Resolvers may not ask anybody for these (RFC 6761)."""
    name = host.removesuffix(".").lower()
    return name == "localhost" or name.endswith(".localhost")


def _with_port(authority: str, port: str = "80") -> str:
    found = _AUTHORITY.fullmatch(authority.lower())
    return f"{found['host']}:{found['port'] or port}" if found else ""


def _origin_host(origin: str) -> str:
    """As `_with_port`; "?" for an origin that has none, such as null. Ours is https only behind a proxy, whose Host
    header has no port then."""
    scheme, _, authority = origin.lower().partition("://")
    return _with_port(authority) if scheme in ("http", "https") and authority else "?"


# -- guessing

WRONG_AT_ONCE = 10
WRONG_EVERY_S = 6.0
_ADDRESSES = 1000


class Brake:
    """How many wrong tokens an address may show: ten, and one more each six seconds. A network of IPv6 counts as one
    address. It remembers the thousand addresses that were wrong last."""

    def __init__(self) -> None:
        self._free_s: OrderedDict[str, float] = OrderedDict()
        """By address: when it is as if it never had been wrong."""

    def may_try(self, address: str, now_s: float) -> bool:
        return self._free_s.get(_network(address), now_s) - now_s <= (WRONG_AT_ONCE - 1) * WRONG_EVERY_S

    def was_wrong(self, address: str, now_s: float) -> None:
        network = _network(address)
        self._free_s[network] = max(self._free_s.get(network, now_s), now_s) + WRONG_EVERY_S
        self._free_s.move_to_end(network)
        if len(self._free_s) > _ADDRESSES:
            self._free_s.popitem(last=False)


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
