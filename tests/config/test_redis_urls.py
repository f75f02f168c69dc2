"""config/redis_urls.py: what a URL of Redis says, and the URLs of the servers it leads to."""

from __future__ import annotations

import pytest
import redis

from nsqdigest.config import Address, redis_urls
from nsqdigest.config.problems import Wrong
from support.stores import redis_settings

pytestmark = pytest.mark.unit


def test_sentinels_and_the_name_they_have_for_the_primary() -> None:
    url = redis_urls.read("redis+sentinel://u:p%40ss@h1,h2:1234,[::1]/my%2Fmain/3")
    assert (url.kind, url.name, url.database, url.tls) == ("sentinel", "my/main", 3, False)
    assert url.servers == (Address("h1", 26379), Address("h2", 1234), Address("::1", 26379))
    assert url.of_server(Address("10.0.0.1", 6379)) == "redis://u:p%40ss@10.0.0.1:6379/3"
    assert url.of_sentinel(url.servers[2]) == "redis://[::1]:26379/0"


def test_the_password_of_sentinels_is_theirs_alone() -> None:
    url = redis_urls.read("redis+sentinel://:secret@h/main?sentinel_username=s%40&sentinel_password=a%3Ab%20c")
    to_sentinel = redis.ConnectionPool.from_url(url.of_sentinel(url.servers[0])).connection_kwargs
    to_server = redis.ConnectionPool.from_url(url.of_server(url.servers[0])).connection_kwargs
    assert (to_sentinel["username"], to_sentinel["password"]) == ("s@", "a:b c")
    assert (to_server.get("username"), to_server["password"]) == (None, "secret")


def test_servers_of_a_cluster() -> None:
    url = redis_urls.read("redis+cluster://h1,h2:7000,h1")
    assert (url.kind, url.servers) == ("cluster", (Address("h1", 6379), Address("h2", 7000)))
    assert url.of_server(Address("::1", 7001)) == "redis://[::1]:7001/0"


def test_tls_is_for_all_of_them() -> None:
    url = redis_urls.read("rediss+sentinel://h/main?sentinel_password=x")
    assert url.of_sentinel(url.servers[0]) == "rediss://:x@h:26379/0"
    assert url.of_server(Address("h", 1)) == "rediss://h:1/0"


@pytest.mark.parametrize("scheme", ["redis://h/0", "rediss://h/0", "rediss+sentinel://h/main", "rediss+cluster://h"])
@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ("ssl_ca_certs=/a", 'write ca_file = "FILE" under [redis]'),
        ("ssl_ca_path=/a", 'write ca_file = "FILE" under [redis]'),
        ("ssl_certfile=/a", 'write cert_file = "FILE" under [redis]'),
        ("ssl_keyfile=/a", 'write key_file = "FILE" under [redis]'),
        ("ssl_cert_reqs=none", "unless insecure = true stands under [redis]"),
        ("ssl_check_hostname=false", "unless insecure = true stands under [redis]"),
    ],
)
def test_settings_of_tls_are_options_of_the_file(scheme: str, setting: str, remedy: str) -> None:
    with pytest.raises(Wrong) as wrong:
        redis_urls.read(f"{scheme}?{setting}")
    assert wrong.value.mistake == f"has {setting.partition('=')[0]} after its ?"
    assert wrong.value.remedy.endswith(remedy)


@pytest.mark.parametrize(
    ("url", "partitions", "expected"),
    [
        ("redis://h", 0, 1),
        ("redis+sentinel://h/main", 0, 1),
        ("redis+cluster://h", 0, 32),
        ("rediss+cluster://h", 0, 32),
        ("redis+cluster://h", 4, 4),
        ("redis://h", 4, 4),
    ],
)
def test_a_cluster_has_32_partitions_unless_told_otherwise(url: str, partitions: int, expected: int) -> None:
    assert redis_settings(url, partitions=partitions).partition_count == expected
