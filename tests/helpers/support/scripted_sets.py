"""Sentinels and Clusters whose servers answer what a test says, and `Servers` that ask them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.config import Address
from nsqdigest.store.servers import base
from nsqdigest.store.servers.base import Servers
from nsqdigest.store.servers.client import servers_of
from support.scripted_redis import HANG_UP, SILENCE, Answer, ScriptedRedis, Words
from support.stores import redis_settings
from support.waiting import PATIENCE_S

LONG_S = 10 * PATIENCE_S
LONG_MS = int(LONG_S * 1000)
"""What waits this long fails: a test ends after `PATIENCE_S`."""
LAST_SLOT = 16383

ODD = "it answered something else"

A, B, C = (Address(f"10.0.0.{number}", 6379) for number in (1, 2, 3))


@asynccontextmanager
async def opened(url: str, timeout_ms: int = 5000, connections: int = 2) -> AsyncIterator[Servers]:
    servers = servers_of(redis_settings(url, timeout_ms=timeout_ms), connections)
    try:
        yield servers
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await servers.close()


@asynccontextmanager
async def scripted(*answers: Answer) -> AsyncIterator[list[ScriptedRedis]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedRedis(answer)) for answer in answers]


def sentinels_url(servers: Sequence[ScriptedRedis], name: str = "main") -> str:
    return f"redis+sentinel://{','.join(str(server.address) for server in servers)}/{name}/0"


def cluster_url(servers: Sequence[ScriptedRedis]) -> str:
    return f"redis+cluster://{','.join(str(server.address) for server in servers)}"


async def refusal(servers: Servers, slot: int = 0) -> StoreError:
    with pytest.raises(StoreError) as raised:
        async with asyncio.timeout(PATIENCE_S):
            await servers.server_for(slot)
    assert raised.value.applied is Applied.NO
    return raised.value


async def address_of(servers: Servers, slot: int = 0) -> Address | None:
    async with asyncio.timeout(PATIENCE_S):
        return (await servers.server_for(slot)).address


def left_running() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(("look", "who", "forget"))]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look waits for ever, as far as a test is concerned."""
    monkeypatch.setattr(base, "DISCOVERY_S", LONG_S)


def hangs_up(_words: Words) -> object:
    return HANG_UP


def stays_silent(_words: Words) -> object:
    return SILENCE
