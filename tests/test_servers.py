"""The helpers of tests/helpers/support do what other tests take for granted."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
import redis.asyncio

import support.servers
from support import waiting
from support.ports import free_port, is_free
from support.servers import MissingServer, Nsqd, Nsqlookupd, RedisServer, ServerError, find_binary
from support.waiting import NotInTime, until, wait_until

pytestmark = pytest.mark.integration

TOPIC, CHANNEL = "events", "test"


def test_nsqd_takes_messages_and_counts_them(nsqd: Nsqd) -> None:
    nsqd.create_channel(TOPIC, CHANNEL)
    nsqd.publish(TOPIC, b"one")
    assert nsqd.publish_many(TOPIC, [b"\x00\xff\n", b"three"]) == 2
    wait_until(lambda: nsqd.channel_stats(TOPIC, CHANNEL)["depth"] == 3, what="three messages in the channel")


def test_publishing_more_than_one_body_of_nsqd_holds_is_split(nsqd: Nsqd) -> None:
    body = bytes(1 << 19)
    assert nsqd.publish_many(TOPIC, (body for _ in range(20))) == 20
    assert nsqd.stats(TOPIC)["topics"][0]["message_count"] == 20


def test_nsqd_stopped_and_started_has_its_ports_and_messages_again(nsqd: Nsqd) -> None:
    nsqd.create_channel(TOPIC, CHANNEL)
    nsqd.publish(TOPIC, b"kept")
    ports = nsqd.ports
    nsqd.restart()
    assert nsqd.ports == ports
    assert nsqd.channel_stats(TOPIC, CHANNEL)["depth"] == 1


def test_a_refused_request_tells_why(nsqd: Nsqd) -> None:
    with pytest.raises(ServerError, match=r"400 .*INVALID_TOPIC"):
        nsqd.create_topic("not a topic")


def test_options_are_handed_to_nsqd(nsqd_factory: Callable[..., Nsqd]) -> None:
    small = nsqd_factory("--max-msg-size=8")
    with pytest.raises(ServerError, match="413"):
        small.publish(TOPIC, b"123456789")


def test_two_nsqds_have_ports_and_data_of_their_own(nsqd_factory: Callable[..., Nsqd]) -> None:
    first, second = nsqd_factory(), nsqd_factory()
    first.create_topic(TOPIC)
    assert not set(first.ports) & set(second.ports)
    assert second.stats()["topics"] == []


@pytest.mark.servers
def test_an_nsqd_tells_its_nsqlookupd_where_it_is_also_after_a_move(tmp_path: Path) -> None:
    with (
        Nsqlookupd(tmp_path / "nsqlookupd") as lookupd,
        Nsqd(tmp_path / "nsqd", "--lookupd-tcp-address={}:{}".format(*lookupd.tcp_address)) as nsqd,
    ):
        assert lookupd.nsqds_of(TOPIC) == set()
        nsqd.create_channel(TOPIC, CHANNEL)
        nsqd.publish(TOPIC, b"kept")
        wait_until(lambda: lookupd.nsqds_of(TOPIC) == {nsqd.tcp_address}, what="the nsqd to be named")
        before = nsqd.ports
        nsqd.move()
        assert not set(before) & set(nsqd.ports)
        assert nsqd.channel_stats(TOPIC, CHANNEL)["depth"] == 1
        wait_until(lambda: lookupd.nsqds_of(TOPIC) == {nsqd.tcp_address}, what="it to be named where it is now")


def test_a_killed_redis_that_logs_every_write_has_them_again(redis_factory: Callable[..., RedisServer]) -> None:
    server = redis_factory("--appendonly", "yes", "--appendfsync", "always")
    server.cli("SET", "key", "value")
    server.kill()
    with pytest.raises(redis.ConnectionError):
        server.cli("PING")
    server.start()
    assert server.cli("GET", "key") == b"value"


def test_a_paused_server_does_not_answer_until_it_is_resumed(redis_server: RedisServer) -> None:
    redis_server.pause()
    with redis_server.client(socket_timeout=0.1) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    redis_server.resume()
    assert redis_server.cli("PING")


def test_a_paused_server_can_be_stopped(redis_server: RedisServer) -> None:
    redis_server.pause()
    redis_server.stop()
    assert not redis_server.running


def test_a_password_is_part_of_the_url(redis_factory: Callable[..., RedisServer]) -> None:
    server = redis_factory("--requirepass", "secret")
    assert ":secret@" in server.url
    assert server.cli("PING")


@pytest.mark.parametrize("attempt", [1, 2])
def test_the_shared_redis_is_empty_for_each_test(attempt: int, redis_client: redis.Redis) -> None:
    assert redis_client.dbsize() == 0
    redis_client.set(f"left behind by {attempt}", "1")


async def test_the_shared_redis_has_an_asynchronous_client(redis_async: redis.asyncio.Redis) -> None:
    assert await redis_async.ping()


def test_a_port_lost_to_another_is_replaced_at_the_first_start(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = iter([redis_server.port, free_port()])
    monkeypatch.setattr(support.servers, "free_port", lambda: next(draws))
    with RedisServer(tmp_path / "second") as second:
        assert second.port != redis_server.port
        assert second.cli("DBSIZE") == 0


@pytest.mark.servers
def test_a_server_that_refuses_to_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)did not start.*no-such-option"):
        RedisServer(tmp_path, "--no-such-option", "1").start()


@pytest.mark.servers
def test_a_process_that_goes_with_its_object_leaves_its_port(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    port = server.port
    del server
    gc.collect()  # a refused connection may have left a traceback, which holds it
    wait_until(lambda: is_free(port), what="the port to be free")


def test_a_missing_binary_is_named() -> None:
    with pytest.raises(MissingServer, match="there is no nsq-nothing"):
        find_binary("nsq-nothing")


def test_waiting_returns_what_it_waited_for() -> None:
    answers = iter([0, None, 7])
    assert wait_until(lambda: next(answers)) == 7


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.02)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("named_s", "waited_s"), [(0.001, "0.02"), (0.03, "0.03")])
def test_waiting_in_vain_says_for_what_and_is_never_less_patient(named_s: float, waited_s: str) -> None:
    with pytest.raises(NotInTime, match=f"waited {waited_s} s for rain; at last it was 0"):
        wait_until(lambda: 0, named_s, "rain")


@pytest.mark.usefixtures("impatient")
async def test_waiting_on_the_loop_takes_plain_and_coroutine_predicates() -> None:
    async def five() -> int:
        return 5

    assert await until(five) == 5
    assert await until(lambda: 6) == 6
    with pytest.raises(NotInTime):
        await until(lambda: False)
