"""Fixtures of every test: real servers, and how much hypothesis tries.

A test that needs a server and finds none is skipped with the reason on a developer's machine; where CI is set that is
an error, so that a gate can never pass by testing nothing. Tests that use one of the fixtures below are marked
`servers`.

- `redis_url`, `redis_client`, `redis_async`: one Redis for the whole run, emptied before each test, for tests that only
  use it.
- `redis_server`, `nsqd`: processes of the test's own, to be stopped, killed and configured at will.
- `redis_factory`, `nsqd_factory`: any number of those, with options: `nsqd_factory("--msg-timeout=2s")`.
- `redis_binary`: of which kind all these are. Debian's Redis, but for tests marked `every_redis`, which run on each
  kind that is supported.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, Phase, settings

from nsqdigest.base import log
from nsqdigest.base.log_counts import Repeats
from support.keeper import end_with_parent
from support.servers import (
    REDIS_BINARIES,
    MissingServer,
    Nsqd,
    Nsqlookupd,
    RedisServer,
    Server,
    find_binary,
    started_servers,
)
from support.stage import stage
from support.stores import open_store, plain, store, store_routes, store_url

__all__ = ["open_store", "plain", "stage", "store", "store_routes", "store_url"]

ServerT = TypeVar("ServerT", bound=Server)
NsqdFactory = Callable[..., Nsqd]
RedisFactory = Callable[..., RedisServer]

SERVER_FIXTURES = {"nsqd", "nsqd_factory", "redis_binary"}
LONGEST_FIRST = ("chaos", "property", "integration", "lineage", "script", "unit")
"""Markers by how long a file of such tests takes, roughly."""

# The machines that run this are shared and slow now and then: how long one example takes says nothing about the code.
settings.register_profile("normal", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", settings.get_profile("normal"), max_examples=2_000)
# For mutants: what fails is not made smaller, and nothing is remembered.
settings.register_profile(
    "first-failure", settings.get_profile("normal"), phases=[Phase.explicit, Phase.generate], database=None
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "normal"))

if "PYTEST_XDIST_WORKER" in os.environ:
    end_with_parent()  # a worker whose pytest is killed would go on for up to 15 s


# -- the rule for servers that are missing


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def without_server(problem: MissingServer) -> NoReturn:
    if in_ci():
        pytest.fail(f"{problem} (an error, because CI is set)", pytrace=False)
    pytest.skip(str(problem))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "redis_binary" in metafunc.fixturenames and metafunc.definition.get_closest_marker("every_redis"):
        metafunc.parametrize("redis_binary", REDIS_BINARIES, indirect=True, scope="session")


def redis_binary_of(item: pytest.Item) -> str:
    params: dict[str, str] = getattr(getattr(item, "callspec", None), "params", {})
    return params.get("redis_binary", RedisServer.binary)


def pytest_collection_finish() -> None:
    """What steers the tests is no business of the programs that they start: nsqdigest would advise against it."""
    for variable in ("NSQDIGEST_TEST_INSTALLED", "NSQDIGEST_PROVE"):
        os.environ.pop(variable, None)


@pytest.hookimpl(trylast=True)  # pytest-randomly shuffles before
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.servers)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=rank_of_file(items))


def rank_of_file(items: list[pytest.Item]) -> Callable[[pytest.Item], int]:
    """Workers take files in this order. A long one that begins last keeps one worker busy, and the others idle."""
    ranks: dict[Path, int] = {}
    for item in items:
        rank = min((n for n, name in enumerate(LONGEST_FIRST) if item.get_closest_marker(name)), default=0)
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    return lambda item: ranks[item.path]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("servers"):
        try:
            for binary in (Nsqd.binary, Nsqlookupd.binary, redis_binary_of(item)):
                find_binary(binary)
        except MissingServer as problem:
            without_server(problem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with the end of the log of each server that was there. Captured text may hold half a surrogate
    pair, which xdist cannot send: the run would end in an internal error."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    if report.failed and item.get_closest_marker("servers"):
        report.sections.extend((f"log of {server}", server.log_tail()) for server in started_servers())
    return report


@pytest.fixture(scope="session")
def promtool() -> Path:
    try:
        find_binary("prometheus")
        return find_binary("promtool")
    except MissingServer as problem:
        without_server(problem)


# -- the log of this process


@pytest.fixture(autouse=True)
def no_repeats_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier test logged within the period is no repeat, and its count no line of this test."""
    monkeypatch.setattr(log, "_repeats", Repeats())


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[str], int]:
    """How often a line was written."""
    caplog.set_level(logging.DEBUG, "nsqdigest")

    def times(event: str) -> int:
        return [record.getMessage() for record in caplog.records].count(event)

    return times


# -- processes of one test


def factory_of(server_type: type[ServerT], folder: Path, **settings: str) -> Iterator[Callable[..., ServerT]]:
    made: list[ServerT] = []
    numbers = itertools.count(1)

    def make(*options: str) -> ServerT:
        server = server_type(folder / f"{server_type.binary}-{next(numbers)}", *options, **settings)
        made.append(server)
        server.start()
        return server

    yield make
    for server in made:
        server.kill()
        server.forget()


@pytest.fixture
def nsqd_factory(tmp_path: Path) -> Iterator[NsqdFactory]:
    yield from factory_of(Nsqd, tmp_path)


@pytest.fixture
def nsqd(nsqd_factory: NsqdFactory) -> Nsqd:
    return nsqd_factory()


@pytest.fixture(scope="session")
def redis_binary(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", RedisServer.binary))


@pytest.fixture
def redis_factory(tmp_path: Path, redis_binary: str) -> Iterator[RedisFactory]:
    yield from factory_of(RedisServer, tmp_path, binary=redis_binary)


@pytest.fixture
def redis_server(redis_factory: RedisFactory) -> RedisServer:
    return redis_factory()


# -- one Redis for all tests that do not touch the server itself


@pytest.fixture(scope="session")
def shared_redises() -> Iterator[dict[str, RedisServer]]:
    """By kind, each started when a test first asks for it."""
    started: dict[str, RedisServer] = {}
    yield started
    for server in started.values():
        server.kill()
        server.forget()


@pytest.fixture
def shared_redis(
    redis_binary: str, shared_redises: dict[str, RedisServer], tmp_path_factory: pytest.TempPathFactory
) -> RedisServer:
    if redis_binary not in shared_redises:
        server = RedisServer(tmp_path_factory.mktemp("redis"), binary=redis_binary)
        server.start()
        shared_redises[redis_binary] = server
    return shared_redises[redis_binary]


@pytest.fixture
def redis_url(shared_redis: RedisServer) -> str:
    shared_redis.cli("FLUSHALL")
    return shared_redis.url


@pytest.fixture
def redis_client(redis_url: str, shared_redis: RedisServer) -> Iterator[redis.Redis]:
    with shared_redis.client() as client:
        yield client


@pytest.fixture
async def redis_async(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client
