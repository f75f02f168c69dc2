"""Fixtures of the tests that follow nsqds: `test_lookups`, `test_connections`."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from support.follower import Follower, HasHttp, LogLines, Start, registering, started
from support.servers import Nsqd, Nsqlookupd

__all__ = ["started"]

TOPICS = (f"found-{number}" for number in itertools.count())


@pytest.fixture
def logged() -> Iterator[LogLines]:
    handler, ours = LogLines(), logging.getLogger("nsqdigest")
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield handler
    ours.removeHandler(handler)
    ours.setLevel(level)


@pytest.fixture
def topic() -> str:
    return next(TOPICS)


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqlookupd]:
    with Nsqlookupd(tmp_path_factory.mktemp("nsqlookupd")) as server:
        yield server
    server.forget()


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory, lookupd: Nsqlookupd) -> Iterator[Nsqd]:
    """An nsqd that nothing is done to, known to the nsqlookupd of the module."""
    with Nsqd(tmp_path_factory.mktemp("nsqd"), *registering(lookupd)) as server:
        yield server
    server.forget()


@pytest.fixture
async def following(topic: str) -> AsyncIterator[Start]:
    """Starts a follower of the test's topic: `await following([lookupd], [nsqd])`."""
    async with AsyncExitStack() as ending:

        async def follow(lookupds: list[HasHttp], nsqds: list[Nsqd] | None = None, **more: str) -> Follower:
            return await ending.enter_async_context(Follower(topic, lookupds, nsqds or [], **more))

        yield follow
