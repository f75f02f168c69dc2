"""Where a post goes, and the head of its request (pure).

Invariants:
- Nothing that is given can end a line early: a URL or a header with a control character is refused.
- Path and query go out as they are given; letters beyond ASCII are percent-encoded as UTF-8.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urlsplit

from nsqdigest.base.host_names import has_two_names, ip_version, is_host

Headers = Mapping[str, str]

_PORTS = {"http": 80, "https": 443}
_FRAMING = frozenset({"connection", "content-length", "transfer-encoding", "upgrade"})
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NOT_IN_A_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f]")
_ASCII = "".join(map(chr, range(0x21, 0x7F)))
_MOST_GOOD_NAMES = 256
_good_names: set[str] = set()
"""Those that were checked: most posts have the same."""


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    """A name in ASCII or an IP address, without brackets."""
    port: int
    tls: bool
    host_header: str
    path: str = field(repr=False)
    """With the query, as it stands in the first line of a request."""
    authorization: str = field(default="", repr=False)

    @property
    def server_name(self) -> str:
        """What the certificate has to be valid for."""
        return self.host.removesuffix(".")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ip_version(self.host) == 6 else self.host
        return f"{host}:{self.port}"


def target_of(url: str) -> Target:
    """Raises ValueError, whose text does not quote the URL."""
    if _NOT_IN_A_URL.search(url):
        raise ValueError("the URL has a blank or a control character")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError("the URL is neither http:// nor https://")
    host = _host_of(parts)
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    shown = f"[{host.partition('%')[0]}]" if ip_version(host) == 6 else host
    return Target(
        host=host,
        port=port,
        tls=parts.scheme == "https",
        host_header=shown if port == _PORTS[parts.scheme] else f"{shown}:{port}",
        path=path_of((parts.path or "/") + (f"?{parts.query}" if parts.query else "")),
        authorization=_authorization_of(parts),
    )


def path_of(text: str) -> str:
    """A path with its query, fit for the first line of a request."""
    if not text.startswith("/") or _NOT_IN_A_URL.search(text):
        raise ValueError("the path does not begin with / or has a blank or a control character")
    return quote(text, safe=_ASCII)


def head_of(target: Target, headers: Headers) -> str:
    """All header lines that are the same for each post. A header that is given replaces the one that is set here."""
    ours = {"host": target.host_header, "accept": "*/*", "accept-encoding": "identity"}
    if target.authorization:
        ours["authorization"] = target.authorization
    given = {name.lower() for name in headers}
    lines = header_lines((name, value) for name, value in ours.items() if name not in given)
    return lines + header_lines(headers.items())


def header_lines(headers: Iterable[tuple[str, str]]) -> str:
    """Raises ValueError for what would not be one line."""
    lines = []
    for name, value in headers:
        if name not in _good_names:
            _check_name(name)
        lines.append(header_line(name, value))
    return "".join(lines)


def header_line(name: str, value: str) -> str:
    """The same of one whose name is a constant."""
    if not value.isprintable() and _NOT_IN_A_VALUE.search(value):
        raise ValueError(f"the header {name} has a line break or another control character")
    return f"{name}: {value}\r\n"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError("a header's name has a character that cannot stand in one")
    if name.lower() in _FRAMING:
        raise ValueError(f"the header {name} is set by the client")
    if len(_good_names) < _MOST_GOOD_NAMES:
        _good_names.add(name)


def _host_of(parts: SplitResult) -> str:
    given = unquote(parts.hostname or "")
    if has_two_names(given):
        raise ValueError("the host has a letter for which there are two standards; write its name as xn--...")
    try:
        host = given if ip_version(given) else given.encode("idna").decode()
    except UnicodeError:
        host = ""
    if not is_host(host) or parts.port == 0:
        raise ValueError("the URL names no host, or has an impossible host or port")
    return host


def _authorization_of(parts: SplitResult) -> str:
    if parts.username is None and parts.password is None:
        return ""
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(login.encode()).decode()
