"""Redis URLs: one server, the Sentinels that know the primary, or some servers of a Cluster.

    redis://USER:PASSWORD@HOST:PORT/DB       one server (rediss:// with TLS, unix://PATH for a socket)
    redis+sentinel://U:P@HOST,HOST/NAME/DB   the primary that these Sentinels call NAME
    redis+cluster://U:P@HOST,HOST            the Cluster that these servers are of; it tells its other servers

User and password are those of the Redis servers; Sentinels with a password of their own have it in
`?sentinel_password=`. `rediss+sentinel` and `rediss+cluster` use TLS for every connection.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from nsqdigest.base.host_names import is_url_host
from nsqdigest.config import units
from nsqdigest.config.model import Address
from nsqdigest.config.problems import Wrong

_TLS_SETTINGS = frozenset(
    ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_check_hostname", "ssl_cert_reqs", "ssl_keyfile")
)
_SENTINEL_SETTINGS = frozenset(("sentinel_username", "sentinel_password"))
_KINDS: dict[str, tuple[Kind, int, str]] = {
    "redis": ("single", 6379, "redis://127.0.0.1:6379/0"),
    "redis+sentinel": ("sentinel", 26379, "redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster/0"),
    "redis+cluster": ("cluster", 6379, "redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3"),
}
_CONTROL = re.compile(r"[\x00-\x20\x7f]")

Kind = Literal["single", "sentinel", "cluster"]


class RedisUrl(NamedTuple):
    kind: Kind
    text: str
    servers: tuple[Address, ...] = ()
    """The servers in the URL: Sentinels, or some of the Cluster."""
    name: str = ""
    """The name that the Sentinels have for the primary."""
    database: int = 0
    tls: bool = False
    login: str = ""
    """As in a URL, with its @."""
    settings: tuple[tuple[str, str], ...] = ()

    def of_server(self, address: Address) -> str:
        """The URL of one Redis server."""
        return self._url(self.login, address, self.database)

    def of_sentinel(self, address: Address) -> str:
        given = dict(self.settings)
        login = ""
        if "sentinel_password" in given:
            encoded = urlencode({given.get("sentinel_username", ""): given["sentinel_password"]}).replace("+", "%20")
            login = encoded.replace("=", ":", 1) + "@"
        return self._url(login, address, 0)

    def _url(self, login: str, address: Address, database: int) -> str:
        tls = urlencode([(name, value) for name, value in self.settings if name in _TLS_SETTINGS])
        return f"{'rediss' if self.tls else 'redis'}://{login}{address}/{database}" + (f"?{tls}" if tls else "")


def read(text: str) -> RedisUrl:
    """Raises `Wrong`, which repeats nothing of the text."""
    if _CONTROL.search(text):
        raise Wrong("has a blank or a control character", "leave it out")
    scheme, separator, rest = text.partition("://")
    tls = scheme.startswith("rediss")
    known = _KINDS.get(scheme.replace("rediss", "redis", 1))
    if not separator:
        raise Wrong("is not a URL", f"write one like {_KINDS['redis'][2]}")
    if known is None and scheme != "unix":
        raise Wrong(
            "is not the URL of a Redis server",
            "write redis://, rediss:// (TLS), unix:// (a socket), redis+sentinel:// or redis+cluster://",
        )
    if "#" in rest:
        raise Wrong("has a #", "write %23 where a password has one")
    before, _, query = rest.partition("?")
    settings = tuple(parse_qsl(query, keep_blank_values=True))
    if known is None or known[0] == "single":
        _check_settings(settings, _TLS_SETTINGS | {"db"})
        _check_single(text)
        return RedisUrl("single", text)
    kind, usual_port, example = known
    allowed = _TLS_SETTINGS if tls else frozenset()
    _check_settings(settings, allowed | _SENTINEL_SETTINGS if kind == "sentinel" else allowed)
    authority, _, path = before.partition("/")
    login, at, hosts = authority.rpartition("@")
    name, database = _path_of_sentinels(path, example) if kind == "sentinel" else _path_of_cluster(path, example)
    return RedisUrl(kind, text, _servers(hosts, usual_port, example), name, database, tls, login + at, settings)


def _check_settings(settings: tuple[tuple[str, str], ...], allowed: frozenset[str]) -> None:
    if any(name not in allowed for name, _ in settings):
        listing = f"; these are: {', '.join(sorted(allowed))}" if allowed else ""
        raise Wrong("has a setting after its ? that nsqdigest does not hand on", f"leave it out{listing}")


def _check_single(text: str) -> None:
    example = _KINDS["redis"][2]
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise Wrong("is not a URL", f"write one like {example}") from None
    if port == 0:
        raise Wrong("has port 0", "a port is 1 to 65535")
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise Wrong("names no socket", "write one like unix:///run/redis/redis.sock")
    elif not parts.hostname:
        raise Wrong("names no host", f"write one like {example}")
    elif "," in parts.netloc.rpartition("@")[2]:
        raise Wrong("names several hosts", "write redis+sentinel:// or redis+cluster:// before them")
    elif not is_url_host(unquote(parts.hostname)):
        raise Wrong("names a host that is not one", f"write one like {example}")
    elif not re.fullmatch(r"/?[0-9]{0,4}", parts.path):
        raise Wrong("does not end in the number of a database", f"write one like {example}")


def _servers(hosts: str, usual_port: int, example: str) -> tuple[Address, ...]:
    if not hosts:
        raise Wrong("names no host", f"write one like {example}")
    servers = []
    for host in hosts.split(","):
        has_port = re.search(r"(^|[^:\]]|\]):[0-9]+$", host) is not None
        try:
            servers.append(units.address(host if has_port else f"{host}:{usual_port}", usual_port))
        except Wrong:
            raise Wrong("names a host that is not one", f"write one like {example}") from None
    return tuple(dict.fromkeys(servers))


def _path_of_sentinels(path: str, example: str) -> tuple[str, int]:
    name, _, database = path.partition("/")
    if not name:
        raise Wrong("does not say what the Sentinels call the primary", f"write one like {example}")
    if not re.fullmatch(r"[0-9]{0,4}", database):
        raise Wrong("does not end in the number of a database", f"write one like {example}")
    return unquote(name), int(database or 0)


def _path_of_cluster(path: str, example: str) -> tuple[str, int]:
    if path not in ("", "0"):
        raise Wrong("names a database, and a Cluster has but number 0", f"write one like {example}")
    return "", 0
