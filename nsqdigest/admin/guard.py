"""Whether a request over HTTP is answered at all (pure): who may read, who may write, and from which web page.

    path                     on a loopback address or a socket    on any other address
    /, /page/…, /livez, …    read by anyone                       read by anyone
    GET /api/…               read by anyone on this machine;      needs a token
                             with admin.read_token: needs one
    POST /api/…              needs admin.token                    needs admin.token

A token is shown (`authorization: Bearer`), or proved without showing it (`proof`).

Invariants:
- Without the token only this machine reads what publishers wrote: not a request that a proxy passed on, and not a web
  page of somebody else that a browser on this machine shows. Such a page either names another host (DNS rebinding), or
  the browser itself says that it is of another origin.
- On an address that other machines reach the host may have any name: no web page knows the token.
- No web page of another origin writes, whatever it sends: a write needs the token, and JSON's content type.
- A token is compared first, in constant time: the right one always passes, however many wrong ones came. Only who
  shows a wrong one is refused for longer (`Brake`). So a token has to be long; `check` sees to that.
- A read has no body, and no body is compressed: both are refused unread.
- A refusal has a reason, which is also the label of a metric, and a text with the remedy.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.admin.proof import NONCE_PATH, SCHEME, Nonces, Proved, Shown
from nsqdigest.base.host_names import is_host, is_ip
from nsqdigest.base.reasons import HttpRefusal as Reason
from nsqdigest.base.shown import printable

if TYPE_CHECKING:
    from nsqdigest.config import Secret

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
    content_encoding: str = ""
    has_body: bool = False
    target: str = ""
    """Path and query as they were sent, which a proof covers."""

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


class Admitted(NamedTuple):
    """The request may go on."""

    proved: Proved | None = None
    """The proof that came with it: its body and its answer belong to it, too."""


class Tokens(NamedTuple):
    """The tokens of the file in force."""

    write: Secret | None = None
    """Reads as well."""
    read: Secret | None = None


class Guard:
    def __init__(self, tokens: Callable[[], Tokens], nonces: Nonces, *, is_local: bool) -> None:
        """`is_local`: only this machine reaches the address of the server."""
        self._tokens = tokens
        self._nonces = nonces
        self._is_local = is_local

    def decide(self, asked: Asked, now_s: float, *, may_try: bool = True) -> Refused | Admitted:
        """`may_try`: False if too many wrong tokens came from the client's address."""
        refused = self._of_host(asked) or _of_page(asked) or _of_body(asked)
        if refused is not None:
            return refused
        decided = self._of_token(asked, now_s, may_try=may_try) if asked.is_of_api else Admitted()
        if isinstance(decided, Refused):
            return decided
        return _of_content(asked) or decided

    def _of_host(self, asked: Asked) -> Refused | None:
        if not asked.hosts:
            return None  # no browser: HTTP/1.0, as some load balancers speak it
        host = _host_of(asked.hosts[0]) if len(asked.hosts) == 1 else None
        if host is None:
            return Refused(400, Reason.HOST, "a Host header is one name or IP address, with or without a port")
        if not self._is_local or is_ip(host) or _is_local_name(host):
            return None
        return Refused(
            403,
            Reason.HOST,
            f"{printable(host, _LONGEST_SHOWN)} is no name of this machine for itself: open http://localhost "
            "or by its IP address; a proxy in front has to send such a Host header (docs/operating.md)",
        )

    def _of_token(self, asked: Asked, now_s: float, *, may_try: bool) -> Refused | Admitted:
        """A token is looked at even if none is needed: who typed it learns whether it is right."""
        tokens = self._tokens()
        is_needed = self._needs_token(asked, tokens)
        usable = [token for token in tokens if token is not None]
        if (is_needed and not usable) or (asked.is_write and tokens.write is None):
            what = "writes" if asked.is_write else "reads through a proxy"
            return Refused(
                403,
                Reason.NO_TOKEN,
                f"{what} are refused: admin.token is not set in the file of this daemon; write token = "
                '"env:NAME" under [admin], and reload or restart it',
            )
        scheme, _, text = (asked.authorization or "").partition(" ")
        is_ours = scheme.lower() in ("bearer", SCHEME)
        if not is_needed and not (is_ours and usable):
            return Admitted()
        if asked.authorization is None:
            return Refused(
                401, Reason.TOKEN_MISSING, f"the token is missing: authorization: Bearer TOKEN, {_which(asked)}"
            )
        proved = self._proved(asked, Shown(text), usable, now_s) if scheme.lower() == SCHEME else None
        shown = text.strip().encode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else None
        matching = [
            token
            for token in usable
            if (proved is not None and proved.is_of(_bytes(token)))
            or (shown is not None and hmac.compare_digest(shown, _bytes(token)))
        ]
        if asked.is_write and matching == [tokens.read]:
            return Refused(403, Reason.READ_ONLY, "this is admin.read_token, which may read; admin.token may write")
        if matching:
            return Admitted(proved)
        if not may_try:
            return Refused(
                429,
                Reason.TOO_MANY_TOKENS,
                "the token is wrong, and too many wrong tokens came from this address: wait a minute, then try again",
            )
        return Refused(401, Reason.TOKEN_WRONG, f"the token is wrong: authorization: Bearer TOKEN, {_which(asked)}")

    def _needs_token(self, asked: Asked, tokens: Tokens) -> bool:
        if asked.is_write:
            return True
        return asked.path != NONCE_PATH and (not self._is_local or asked.is_passed_on or tokens.read is not None)

    def _proved(self, asked: Asked, shown: Shown, tokens: list[Secret], now_s: float) -> Proved | None:
        proofs = [shown.proved(_bytes(token), asked.method, asked.target) for token in tokens]
        found = next((proof for proof in proofs if proof is not None), None)
        return found if found is not None and self._nonces.use(shown.nonce, now_s) else None


def _which(asked: Asked) -> str:
    return "that of admin.token" + ("" if asked.is_write else ", or of admin.read_token")


def _bytes(token: Secret) -> bytes:
    return token.reveal().encode()


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


def _of_body(asked: Asked) -> Refused | None:
    if asked.has_body and not asked.is_write:
        return Refused(400, Reason.BODY, f"{asked.method} has no body: leave it out")
    if asked.content_encoding:
        return Refused(415, Reason.CONTENT_ENCODING, "a body is sent as it is: leave content-encoding out")
    return None


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
