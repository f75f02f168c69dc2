"""Every test in this folder runs on each kind of Redis, with every call of a script watched."""

from __future__ import annotations

import pytest

from support.servers import REDIS_BINARIES
from support.store import store

__all__ = ["store"]


@pytest.fixture(scope="session", params=REDIS_BINARIES)
def redis_binary(request: pytest.FixtureRequest) -> str:
    return str(request.param)
