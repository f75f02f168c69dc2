"""TLS to a real Redis: what passes, and what each failure says, with its remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.config.tls_files import TlsFileProblem
from nsqdigest.store.servers.client import RedisClient
from support.certificates import Certificates, Pair
from support.ports import HOST, free_port
from support.redis_sets import AT_ONCE
from support.servers import RedisServer
from support.stores import redis_settings

pytestmark = [pytest.mark.integration, pytest.mark.servers]

TIMEOUT_MS = 2000
"""A Redis without TLS answers nothing to a handshake."""


class TlsRedis:
    def __init__(self, folder: Path, pair: Pair, certificates: Certificates, *, asks: bool = False) -> None:
        self.port = free_port()
        self._server = RedisServer(
            folder,
            *("--tls-port", str(self.port), "--tls-cert-file", str(pair.cert_file)),
            *("--tls-key-file", str(pair.key_file), "--tls-ca-cert-file", str(certificates.ca_file)),
            *("--tls-auth-clients", "yes" if asks else "no", *AT_ONCE),
        )
        self._server.start()

    def url(self, scheme: str = "rediss", host: str = HOST, database: int = 0) -> str:
        return f"{scheme}://{host}:{self.port}/{database}"

    def end(self) -> None:
        self._server.kill()
        self._server.forget()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start(tmp_path: Path, certificates: Certificates) -> Iterator[Callable[..., TlsRedis]]:
    started: list[TlsRedis] = []

    def make(pair: Pair = certificates.server, *, asks: bool = False) -> TlsRedis:
        folder = tmp_path / f"redis-{len(started)}"
        started.append(TlsRedis(folder, pair, certificates, asks=asks))
        return started[-1]

    yield make
    for server in started:
        server.end()


async def look(url: str, **settings: Any) -> None:
    client = RedisClient(redis_settings(url, timeout_ms=TIMEOUT_MS, **settings), 1)
    try:
        await client.facts()
    finally:
        await client.close(0)


async def refusal(url: str, **settings: Any) -> StoreError:
    with pytest.raises(StoreError) as raised:
        await look(url, **settings)
    assert raised.value.applied is Applied.NO
    return raised.value


def shown(pair: Pair) -> dict[str, str]:
    return {"cert_file": str(pair.cert_file), "key_file": str(pair.key_file)}


async def test_what_is_in_order_passes(start: Callable[..., TlsRedis], certificates: Certificates) -> None:
    server = start(asks=True)
    for host in (HOST, "localhost"):
        await look(server.url(host=host), ca_file=str(certificates.ca_file), **shown(certificates.client))


@pytest.mark.parametrize(
    ("kind", "cause", "remedy"),
    [
        (
            "expired",
            "its certificate has expired",
            "renew the one of Redis' tls-cert-file, or set this machine's clock",
        ),
        ("not_yet", "its certificate is not valid yet", "set the clocks of both machines, or wait"),
        (
            "wrong_host",
            "its certificate is valid, but not for localhost",
            "write a name in redis.url that the certificate contains, or give Redis one for this name (subjectAltName)",
        ),
        (
            "common_name_only",
            "its certificate is valid, but not for localhost",
            "write a name in redis.url that the certificate contains, or give Redis one for this name (subjectAltName)",
        ),
        (
            "self_signed",
            "its certificate is signed by itself",
            "name that very certificate in redis.ca_file, if it is the one of Redis",
        ),
        (
            "strange",
            "its certificate is signed by an authority that is not trusted here (unable to get local issuer "
            "certificate)",
            "name that authority in redis.ca_file",
        ),
        (
            "wrong_purpose",
            "its certificate does not pass (unsuitable certificate purpose)",
            "give Redis another (tls-cert-file), or see redis.ca_file",
        ),
    ],
)
async def test_each_fault_of_its_certificate_has_its_cause_and_the_remedy(
    kind: str, cause: str, remedy: str, start: Callable[..., TlsRedis], certificates: Certificates
) -> None:
    server = start(getattr(certificates, kind))
    host = "localhost" if "localhost" in cause else HOST
    error = await refusal(server.url(host=host), ca_file=str(certificates.ca_file))
    assert error.reason == "redis-tls"
    assert error.what == f"redis-tls: cannot connect to {host}:{server.port}: TLS failed: {cause}"
    assert error.remedy == remedy
    assert str(error) == f"{error.what}; {error.remedy}"


async def test_the_authorities_of_the_system_do_not_vouch_for_it(start: Callable[..., TlsRedis]) -> None:
    error = await refusal(start().url())
    assert (error.reason, error.remedy) == ("redis-tls", "name that authority in redis.ca_file")


async def test_insecure_takes_any_certificate(start: Callable[..., TlsRedis], certificates: Certificates) -> None:
    for pair in (certificates.self_signed, certificates.wrong_purpose, certificates.common_name_only):
        await look(start(pair).url(), insecure=True)


async def test_a_client_certificate_that_is_missing_or_not_accepted_is_named(
    start: Callable[..., TlsRedis], certificates: Certificates
) -> None:
    server = start(asks=True)
    missing = await refusal(server.url(), ca_file=str(certificates.ca_file))
    strange = await refusal(server.url(), ca_file=str(certificates.ca_file), **shown(certificates.strange))
    for error, what, remedy in (
        (missing, "Redis asks for a client certificate, and there is none", "write cert_file and key_file under"),
        (strange, "Redis does not accept our client certificate", "name one in redis.cert_file"),
    ):
        # Redis closes the connection at once, and the system may throw its reason away.
        assert what in error.what or error.what.endswith("Connection reset by peer")
        assert remedy in error.remedy


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, certificates: Certificates) -> None:
    for path, what in (
        (tmp_path / "none.pem", "is not there"),
        (certificates.server.key_file, "holds no certificates"),
    ):
        with pytest.raises(TlsFileProblem, match=rf"^redis\.ca_file: {path} {what}"):
            RedisClient(redis_settings(f"rediss://{HOST}", ca_file=str(path)), 1)


async def test_a_server_without_tls_is_named_and_one_with_tls_too(
    start: Callable[..., TlsRedis], certificates: Certificates, redis_server: RedisServer
) -> None:
    error = await refusal(f"rediss://{HOST}:{redis_server.port}/0", ca_file=str(certificates.ca_file))
    assert error.what == f"redis-timeout: no TLS handshake with {HOST}:{redis_server.port} within 2 s"
    assert "if it has no TLS, write redis:// for rediss:// in redis.url" in error.remedy
    error = await refusal(start().url("redis"))
    assert error.reason == "redis-connection"
    assert error.remedy == "see that it runs; if it has TLS, write rediss:// for redis:// in redis.url"


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
async def test_a_database_that_is_not_there_has_its_remedy(
    scheme: str, start: Callable[..., TlsRedis], certificates: Certificates, redis_server: RedisServer
) -> None:
    files = {"ca_file": str(certificates.ca_file)} if scheme == "rediss" else {}
    url = start().url(database=99) if scheme == "rediss" else f"redis://{HOST}:{redis_server.port}/99"
    error = await refusal(url, **files)
    assert error.what == "redis-database: DB index is out of range"
    assert error.remedy.startswith("end redis.url with a lower number")


async def test_a_login_has_a_remedy_for_each_mistake(redis_server: RedisServer) -> None:
    at = f"{HOST}:{redis_server.port}/0"
    needless = await refusal(f"redis://:hidden@{at}")
    assert needless.remedy.startswith("leave the password out of redis.url")
    redis_server.cli("CONFIG", "SET", "requirepass", "secret")
    missing = await refusal(f"redis://{at}")
    assert missing.remedy.startswith("write the password into redis.url: redis://:PASSWORD@HOST")
    wrong = await refusal(f"redis://:hidden@{at}")
    assert wrong.remedy == "look at the user and password in redis.url"
    assert {needless.reason, missing.reason, wrong.reason} == {"redis-auth"}
    assert "hidden" not in f"{needless}{missing}{wrong}"
