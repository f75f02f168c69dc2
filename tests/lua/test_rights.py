"""rights.lua: what a user may not send, without sending it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import redis

from nsqdigest.store import scripts
from support.ports import HOST
from support.servers import RedisServer

pytestmark = pytest.mark.script

KEY = b"{test:0}:doctor"
COMMANDS = [b"hset @ f v", b"zrange @ 0 1", b"zunionstore @ 1 @", b"script load 0", b"time"]


@pytest.fixture
def can_tell(redis_binary: str) -> None:
    if redis_binary == "redis-server-6.2":
        pytest.skip("Redis can tell from 7.0 on")


@pytest.fixture
def asked_by(can_tell: None, shared_redis: RedisServer, redis_url: str) -> Iterator[redis.Redis]:
    """A user with no right but to ask; a test gives more."""
    shared_redis.cli("ACL", "SETUSER", "poor", "reset", "on", ">secret", "+evalsha")
    shared_redis.cli("SCRIPT", "LOAD", scripts.load("rights").text)
    with redis.Redis(host=HOST, port=shared_redis.port, username="poor", password="secret", protocol=2) as client:
        yield client
    shared_redis.cli("ACL", "DELUSER", "poor")


def ask(client: redis.Redis) -> list[bytes]:
    answer: list[Any] = cast(Any, client).execute_command("EVALSHA", scripts.load("rights").sha, 0, KEY, *COMMANDS)
    assert answer[0] == 1
    return answer[1:]


def test_each_command_that_is_refused_is_told_as_it_was_asked(asked_by: redis.Redis) -> None:
    assert ask(asked_by) == COMMANDS


def test_what_is_allowed_is_not_told(asked_by: redis.Redis, shared_redis: RedisServer) -> None:
    shared_redis.cli("ACL", "SETUSER", "poor", "~{test:*", "+hset", "+zrange", "+script|load")
    assert ask(asked_by) == [b"zunionstore @ 1 @", b"time"]


def test_a_right_for_other_keys_is_none(asked_by: redis.Redis, shared_redis: RedisServer) -> None:
    shared_redis.cli("ACL", "SETUSER", "poor", "~{other:*", "+@all")
    assert ask(asked_by) == COMMANDS[:3]


def test_redis_6_2_says_that_it_cannot_tell(redis_binary: str, redis_client: redis.Redis) -> None:
    if redis_binary != "redis-server-6.2":
        pytest.skip("Redis can tell from 7.0 on")
    sha = redis_client.script_load(scripts.load("rights").text.decode())
    assert redis_client.evalsha(sha, 0, KEY, *COMMANDS) == [0]


@pytest.mark.usefixtures("can_tell")
def test_none_of_the_commands_is_run(redis_client: redis.Redis) -> None:
    redis_client.script_load(scripts.load("rights").text.decode())
    assert ask(redis_client) == []
    assert redis_client.dbsize() == 0
