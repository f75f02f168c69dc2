"""Every test in this folder runs on each kind of Redis. Every call of a script is watched, and what it leaves is looked
over after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from support.servers import REDIS_BINARIES
from support.store import Scripts, Watch, inconsistencies


@pytest.fixture(scope="session", params=REDIS_BINARIES)
def redis_binary(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(redis_client: redis.Redis) -> Iterator[Scripts]:
    """Ends with a look at all keys. A test that plants something wrong in the store sets `store.is_sound` to False."""
    scripts = Scripts(redis_client)
    scripts.watch = watch = Watch(redis_client)
    yield scripts
    watch.end()
    assert watch.complaints == []
    if scripts.is_sound:
        assert inconsistencies(scripts.tag, scripts.contents()) == []
