"""Redis URLs: one server, the Sentinels that know the primary, or some servers of a Cluster.

    redis://USER:PASSWORD@HOST:PORT/DB       one server (rediss:// with TLS, unix://PATH for a socket)
    redis+sentinel://U:P@HOST,HOST/NAME/DB   the primary that these Sentinels call NAME
    redis+cluster://U:P@HOST,HOST            the Cluster that these servers are of; it tells its other servers

User and password are those of the Redis servers; Sentinels with a password of their own have it in
`?sentinel_password=`. `rediss+sentinel` and `rediss+cluster` use TLS for every connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from nsqdigest.base.host_names import is_url_host
from nsqdigest.config import units
from nsqdigest.config.model import Address
from nsqdigest.config.problems import Wrong

_INSECURE = "certificate and host name are checked, unless insecure = true stands under [redis]"
_INSTEAD = {
    "ssl_ca_certs": 'write ca_file = "FILE" under [redis]',
    "ssl_ca_path": 'write ca_file = "FILE" under [redis]',
    "ssl_certfile": 'write cert_file = "FILE" under [redis]',
    "ssl_keyfile": 'write key_file = "FILE" under [redis]',
    "ssl_cert_reqs": _INSECURE,
    "ssl_check_hostname": _INSECURE,
}
"""Settings that other clients of Redis take in a URL, and the remedy here."""
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
    sentinel_login: str = ""

    def of_server(self, address: Address) -> str:
        """The URL of one Redis server."""
        return self._url(self.login, address, self.database)

    def of_sentinel(self, address: Address) -> str:
        return self._url(self.sentinel_login, address, 0)

    def _url(self, login: str, address: Address, database: int) -> str:
        return f"{'rediss' if self.tls else 'redis'}://{login}{address}/{database}"


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
        _check_settings(settings, frozenset(("db",)))
        _check_single(text)
        return RedisUrl("single", text, tls=tls)
    kind, usual_port, example = known
    _check_settings(settings, _SENTINEL_SETTINGS if kind == "sentinel" else frozenset())
    authority, _, path = before.partition("/")
    login, at, hosts = authority.rpartition("@")
    name, database = _path_of_sentinels(path, example) if kind == "sentinel" else _path_of_cluster(path, example)
    of_sentinels = _sentinel_login(dict(settings))
    return RedisUrl(kind, text, _servers(hosts, usual_port, example), name, database, tls, login + at, of_sentinels)


def _sentinel_login(settings: Mapping[str, str]) -> str:
    if "sentinel_password" not in settings:
        return ""
    login = {settings.get("sentinel_username", ""): settings["sentinel_password"]}
    return urlencode(login).replace("+", "%20").replace("=", ":", 1) + "@"


def _check_settings(settings: tuple[tuple[str, str], ...], allowed: frozenset[str]) -> None:
    for name, _ in settings:
        if remedy := _INSTEAD.get(name):
            raise Wrong(f"has {name} after its ?", f"leave it out: {remedy}")
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
