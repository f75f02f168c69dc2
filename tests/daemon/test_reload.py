"""HUP: the file is read again and taken whole, or not at all; what it leaves as it was goes on as if nothing was."""

from __future__ import annotations

import http.client
import json
import re
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.reasons import ReloadOutcome
from support.certificates import Certificates
from support.daemon import Daemon
from support.ports import HOST
from support.publishing import Background
from support.receiver import HANG, OK, Answer, Receiver
from support.servers import Nsqd, Nsqlookupd
from support.stage import CHANNEL, PROVE, QUIET, TOPIC, Stage, stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

__all__ = ["stage"]

ALERTS = "alerts"
EVENTS = 20_000 if PROVE else 6_000
TOKEN = "a-long-enough-token"
ROUTE = {"name": "events", "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": "hook"}
OF_ALERTS = {"name": "alerts", "topic": ALERTS, "timeline": "{timeline}", "key": "{id}", "sink": "second"}


def running(stage: Stage, settings: Mapping[str, Mapping[str, Any]] | None = None) -> Daemon:
    """One nsqd, two receivers, and a daemon whose one route leads to the first of them."""
    if not stage.nsqds:
        stage.nsqd()
    while len(stage.receivers) < 2:
        stage.receiver()
    daemon = stage.daemon({**QUIET, **(settings or {})}, [dict(ROUTE)])
    daemon.settings.pop("sinks.second", None)  # type: ignore[attr-defined]
    daemon.start()
    return daemon


def second(stage: Stage, **more: Any) -> dict[str, Any]:
    """The table of a sink to the second receiver."""
    return {**stage.settings()["sinks.hook"], "url": stage.receivers[1].url, "timeout": "5s", **more}


def change(daemon: Daemon, table: str, **values: Any) -> None:
    daemon.settings = {**daemon.settings, table: {**daemon.settings.get(table, {}), **values}}


def connections(nsqd: Nsqd, topic: str = TOPIC, channel: str = CHANNEL) -> set[tuple[str, int]]:
    clients = nsqd.channel_stats(topic, channel)["clients"]
    return {(client["remote_address"], client["connect_ts"]) for client in clients}


def address(pair: tuple[str, int]) -> str:
    return f"{pair[0]}:{pair[1]}"


def state_line(daemon: Daemon, name: str) -> str:
    lines = daemon.get("/readyz?verbose")[1].splitlines()
    return next((line for line in lines if line[4:].startswith(f"{name}: ")), "")


def config_hashes(daemon: Daemon) -> list[str]:
    return re.findall(r'^nsqdigest_config_info{hash="(\w+)"} 1.0$', daemon.get("/metrics")[1], re.MULTILINE)


def ids(receiver: Receiver) -> set[str]:
    return {value["id"] for value in receiver.values()}


def publish(nsqd: Nsqd, topic: str, *names: str, **fields: Any) -> None:
    nsqd.publish_many(topic, [json.dumps({"id": name, "timeline": name, **fields}).encode() for name in names])


# -- under load


def good_files(stage: Stage, daemon: Daemon) -> list[Callable[[], None]]:
    def without_alerts() -> None:
        daemon.routes = [dict(ROUTE)]

    def with_alerts() -> None:
        change(daemon, "sinks.second", **second(stage))
        daemon.routes = [dict(ROUTE), dict(OF_ALERTS)]

    return [
        lambda: change(daemon, "nsq", max_in_flight=700, batch_size=100, requeue_delay="100ms"),
        lambda: change(daemon, "policies.default", minimum_delay="300ms", increment_delay="5ms"),
        with_alerts,
        lambda: change(daemon, "sinks.second", headers={"x-from": "nsqdigest"}),
        lambda: change(daemon, "backoff", base="20ms", recovery="step"),
        lambda: change(daemon, "scheduler", batch=50, interval="100ms"),
        lambda: change(daemon, "limits", key="200B", event="32KiB", timelines=5000),
        without_alerts,
        lambda: change(daemon, "nsq", lookupd_poll_jitter=0.1, max_in_flight=2500),
        lambda: change(daemon, "log", level="debug"),
    ]


def bad_files(daemon: Daemon) -> list[tuple[Callable[[], None], str]]:
    """And what is said of each."""
    path = daemon.config_path

    def no_file() -> None:
        daemon.config_path = path.with_name("elsewhere.toml")
        path.unlink()

    return [
        (lambda: change(daemon, "redis", url="redis://127.0.0.1:1/0"), "redis.url"),
        (lambda: change(daemon, "redis", namespace="other", partitions=3), "2 options cannot change without a restart"),
        (lambda: change(daemon, "nsq", max_in_flght=5), 'did you mean "max_in_flight"?'),
        (lambda: change(daemon, "sinks.hook", secret="env:NOT_THERE"), "env:NOT_THERE"),
        (lambda: change(daemon, "sinks.hook", url="nowhere"), "sinks.hook.url"),
        (lambda: change(daemon, "policies.default", minimum_delay="5min"), "is not a duration"),
        (lambda: daemon.admin.update(listen="127.0.0.1:4999"), "admin.listen"),
        (lambda: setattr(daemon, "routes", []), "write at least one [[routes]]"),
        (lambda: setattr(daemon, "routes", [{**ROUTE, "sink": "hok"}]), 'did you mean "hook"?'),
        (no_file, "there is no such file"),
    ]  # fmt: skip


def test_ten_good_and_ten_bad_files_under_load_lose_nothing_and_end_no_connection(stage: Stage) -> None:
    nsqd, other = stage.nsqd(), stage.nsqd()
    daemon = running(stage, {"sinks.hook": {"timeout": "5s", "concurrency": 1}})
    wait_until(lambda: connections(nsqd) and connections(other), PATIENCE_S, "both nsqds")
    before = connections(nsqd), connections(other)
    path = daemon.config_path
    with Background(stage.publisher(nsqd), EVENTS, per_s=2_000):
        for good, (bad, words) in zip(good_files(stage, daemon), bad_files(daemon), strict=True):
            good()
            daemon.reload("applied")
            kept = daemon.settings, daemon.routes, dict(daemon.admin)
            bad()
            daemon.reload("refused")
            assert words in state_line(daemon, "config")
            daemon.settings, daemon.routes, daemon.admin = kept
            daemon.config_path = path
    daemon.reload("unchanged")
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)
    assert (connections(nsqd), connections(other)) == before
    assert len({post.peer for post in stage.receivers[0].posts}) == 1
    counts = {outcome: daemon.metric("config_reloads_total", outcome=outcome) for outcome in ReloadOutcome}
    assert counts == {"applied": 10, "refused": 10, "unchanged": 1, "failed": 0}
    assert daemon.metric("config_last_reload_successful") == 1


def has_posted(receiver: Receiver, number: int) -> bool:
    return any(post.headers.get("x-number") == str(number) for post in receiver.posts)


def test_every_part_is_rebuilt_under_load_and_nothing_is_lost_or_comes_twice(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = running(stage, {"nsq": {"max_in_flight": 500}})
    wait_until(lambda: connections(nsqd), PATIENCE_S, "the nsqd")
    receiver, more = stage.receivers[0], stage.publisher(nsqd, prefix="more")
    load = Background(stage.publisher(nsqd), EVENTS // 2, per_s=2_000)
    with load:
        for number in range(4):
            wait_until(partial(load.reached, number / 5), PATIENCE_S)
            before = connections(nsqd)
            change(daemon, "nsq", heartbeat_interval=f"{3 + number}s")
            change(daemon, "sinks.hook", headers={"x-number": str(number)})
            change(daemon, "scheduler", lease=f"{15 - number}s")
            daemon.reload()
            wait_until(lambda: connections(nsqd) and not connections(nsqd) & before, PATIENCE_S, "other connections")  # noqa: B023
            more.publish(1)  # a digest of each configuration, however quick the load was
            wait_until(partial(has_posted, receiver, number), what=f"a digest of reload {number}")
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)
    assert nsqd.channel_stats(TOPIC, CHANNEL)["timeout_count"] == 0


# -- each kind of change


def test_routes_topics_and_sinks_come_and_go(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = running(stage)
    nsqd.create_channel(ALERTS, CHANNEL)
    change(daemon, "sinks.second", **second(stage))
    daemon.routes = [dict(ROUTE), dict(OF_ALERTS)]
    [hash_before] = config_hashes(daemon)
    daemon.reload()
    [hash_after] = config_hashes(daemon)
    assert hash_after != hash_before
    publish(nsqd, ALERTS, "ada")
    wait_until(lambda: ids(stage.receivers[1]) == {"ada"}, PATIENCE_S, "the digest of a new route")
    [said] = daemon.said("daemon.reloaded")
    assert said["changes"] == "sinks: + second; routes: + alerts; topics: + alerts"
    wait_until(lambda: daemon.metric("digests_delivered_total", sink="second", route="alerts") == 1, PATIENCE_S)

    stage.receivers[1].answer(Answer(503))
    publish(nsqd, ALERTS, "bob")
    wait_until(lambda: len(stage.receivers[1].posts) > 1, PATIENCE_S, "a digest that cannot be delivered")
    daemon.settings = {name: table for name, table in daemon.settings.items() if name != "sinks.second"}
    daemon.routes = [dict(ROUTE)]
    daemon.reload()
    assert nsqd.channel_stats(ALERTS, CHANNEL)["clients"] == []
    wait_until(lambda: daemon.said("store.route.orphan"), PATIENCE_S, "the orphan to be said")
    wait_until(lambda: daemon.said("scheduler.sink.left"), PATIENCE_S, "the sink to be closed")
    assert daemon.metric("records_open", route="alerts") == 0
    assert daemon.get("/readyz")[0] == 200
    publish(nsqd, ALERTS, "cyd")
    daemon.routes = [dict(ROUTE), {**OF_ALERTS, "sink": "hook"}]
    daemon.reload()
    wait_until(lambda: ids(stage.receivers[0]) == {"bob", "cyd"}, PATIENCE_S, "what waited for the route")
    stage.check_logs()


def test_a_changed_sink_finishes_what_is_under_way_and_goes_on_at_its_new_place(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = running(stage)
    first, other = stage.receivers
    first.answer(OK, Answer(after_s=1.0))
    publish(nsqd, TOPIC, "ada")
    wait_until(lambda: first.posts, PATIENCE_S, "a post")
    change(daemon, "sinks.hook", url=other.url)
    daemon.reload()
    publish(nsqd, TOPIC, "bob")
    wait_until(lambda: ids(other) == {"bob"}, PATIENCE_S, "the new place")
    wait_until(lambda: daemon.said("scheduler.sink.left"), PATIENCE_S, "the end of the old one")
    assert (ids(first), len(first.posts)) == ({"ada"}, 1)
    [said] = daemon.said("daemon.reloaded")
    assert said["changes"] == "sinks: ~ hook rebuilt (url)"
    assert first.url not in daemon.log_text()
    stage.check_logs()


def test_a_sink_that_answered_410_is_free_again_whatever_the_file_says(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = running(stage)
    stage.receivers[0].answer(Answer(410))
    publish(nsqd, TOPIC, "ada")
    wait_until(lambda: daemon.said("scheduler.sink.stopped"), PATIENCE_S, "the sink to be stopped")
    stage.receivers[0].answer(OK)
    daemon.reload("unchanged")
    wait_until(lambda: ids(stage.receivers[0]) == {"ada"}, PATIENCE_S, "the digest that waited")
    assert state_line(daemon, "sink hook") == "[+] sink hook: delivering"


def test_a_changed_policy_reaches_the_timelines_that_wait(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = running(stage, {"policies.default": {"immediate": False, "minimum_delay": "1h", "maximum_delay": "2h"}})
    publish(nsqd, TOPIC, "ada", "bob")
    wait_until(lambda: stage.ledger().get("open") == 2, PATIENCE_S, "both to be stored")
    change(daemon, "policies.default", minimum_delay="100ms", maximum_delay="1s")
    daemon.reload()
    wait_until(lambda: ids(stage.receivers[0]) == {"ada", "bob"}, PATIENCE_S, "the digests")
    [said] = daemon.said("daemon.reloaded")
    assert said["changes"] == "policies: ~ default (minimum_delay 1h → 100ms, maximum_delay 2h → 1s)"


def test_nsqds_of_the_file_come_and_go_and_nothing_of_one_that_goes_is_left_in_flight(stage: Stage) -> None:
    nsqd, other = stage.nsqd(), stage.nsqd()
    daemon = running(stage, {"nsq": {"nsqd_tcp_addresses": [address(nsqd.tcp_address)]}})
    load = Background(stage.publisher(nsqd), EVENTS // 2, per_s=2_000)
    with load:
        wait_until(lambda: load.reached(0.2), PATIENCE_S)
        kept = connections(nsqd)
        change(daemon, "nsq", nsqd_tcp_addresses=[address(each.tcp_address) for each in (nsqd, other)])
        daemon.reload()
        wait_until(lambda: connections(other), PATIENCE_S, "the new nsqd")
        assert connections(nsqd) == kept
        wait_until(lambda: load.reached(0.5), PATIENCE_S)
        change(daemon, "nsq", nsqd_tcp_addresses=[address(other.tcp_address)])
        daemon.reload()
        wait_until(lambda: not connections(nsqd), PATIENCE_S, "the old nsqd to be left")
        left = nsqd.channel_stats(TOPIC, CHANNEL)
        assert (left["in_flight_count"], left["timeout_count"]) == (0, 0)
        assert daemon.metric("nsqd_connections_lost_total") == 0
    change(daemon, "nsq", nsqd_tcp_addresses=[address(nsqd.tcp_address)])
    daemon.reload()
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)


def test_other_nsqlookupds_and_the_connections_that_they_named(stage: Stage, tmp_path: Path) -> None:
    with Nsqlookupd(tmp_path / "one") as one, Nsqlookupd(tmp_path / "two") as two:
        both = [f"--lookupd-tcp-address={host}:{port}" for host, port in (one.tcp_address, two.tcp_address)]
        nsqd = stage.nsqd("--broadcast-address=127.0.0.1", *both)
        lookups = {"nsqd_tcp_addresses": [], "lookupd_poll_interval": "200ms"}
        daemon = running(stage, {"nsq": {**lookups, "lookupd_http_addresses": [address(one.http_address)]}})
        wait_until(lambda: connections(nsqd), PATIENCE_S, "the nsqd to be found")
        before = connections(nsqd)
        change(daemon, "nsq", lookupd_http_addresses=[address(two.http_address)])
        daemon.reload()
        wait_until(lambda: state_line(daemon, "nsqlookupd") == "[+] nsqlookupd: 1 of 1 answer", PATIENCE_S)
        one.stop()
        assert connections(nsqd) == before
        publish(nsqd, TOPIC, "ada")
        wait_until(lambda: ids(stage.receivers[0]) == {"ada"}, PATIENCE_S, "the digest")
        stage.check_logs()


def test_another_channel_drains_the_consumers_and_connects_anew(stage: Stage) -> None:
    nsqd = stage.nsqd()
    nsqd.create_channel(TOPIC, "other")
    daemon = running(stage)
    before = connections(nsqd)
    assert before
    change(daemon, "nsq", channel="other", heartbeat_interval="3s")
    daemon.reload()
    wait_until(lambda: connections(nsqd, channel="other"), PATIENCE_S, "the other channel")
    assert connections(nsqd) == set()
    publish(nsqd, TOPIC, "ada")
    wait_until(lambda: ids(stage.receivers[0]) == {"ada"}, PATIENCE_S, "the digest")
    assert daemon.metric("nsqd_connections_lost_total") == 0
    stage.check_logs()


def test_renewed_files_of_tls_are_taken_although_the_file_names_the_same_ones(stage: Stage, tmp_path: Path) -> None:
    made = Certificates(tmp_path / "certificates")
    nsqd = stage.nsqd(f"--tls-cert={made.server.cert_file}", f"--tls-key={made.server.key_file}")
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(made.ca_file.read_bytes())
    daemon = running(stage, {"nsq.tls": {"ca_file": str(trusted)}})
    wait_until(lambda: connections(nsqd), PATIENCE_S, "the nsqd")
    before = connections(nsqd)
    daemon.reload("unchanged")
    assert connections(nsqd) == before
    trusted.write_bytes(made.ca_file.read_bytes() + made.other_ca_file.read_bytes())
    daemon.reload()
    wait_until(lambda: connections(nsqd) and not connections(nsqd) & before, PATIENCE_S, "a new connection")
    trusted.write_text("no certificate", encoding="utf-8")
    daemon.reload("refused")
    assert "holds no certificates" in state_line(daemon, "config")


def test_the_token_the_log_and_pauses(stage: Stage) -> None:
    stage.nsqd()
    daemon = running(stage)
    daemon.admin = {"token": TOKEN}
    change(daemon, "sinks.second", **second(stage))
    daemon.routes = [dict(ROUTE), {**OF_ALERTS, "topic": TOPIC}]
    daemon.reload()
    for kind, name in (("topic", TOPIC), ("sink", "hook"), ("sink", "second"), ("route", "alerts")):
        assert post(daemon, "/api/pause", kind=kind, name=name) == 200
    change(daemon, "sinks.hook", headers={"x-from": "nsqdigest"})
    daemon.settings = {name: table for name, table in daemon.settings.items() if name != "sinks.second"}
    daemon.routes = [dict(ROUTE)]
    daemon.admin = {"token": TOKEN + "-of-today"}
    change(daemon, "log", level="debug", format="human")
    daemon.reload()
    assert "admin.token" in daemon.log_text()
    assert TOKEN not in daemon.log_text()
    assert re.search(r"INFO +\S*nsqdigest.toml is reloaded: .*log.level \"info\" → \"debug\"", daemon.log_text())
    paused = [line for line in daemon.get("/metrics")[1].splitlines() if line.startswith("nsqdigest_paused{")]
    assert sorted(paused) == [
        'nsqdigest_paused{kind="route",name="events"} 0.0',
        'nsqdigest_paused{kind="sink",name="hook"} 1.0',
        f'nsqdigest_paused{{kind="topic",name="{TOPIC}"}} 1.0',
    ]
    assert "paused" in state_line(daemon, "sink hook")
    assert post(daemon, "/api/resume", kind="topic", name=TOPIC) == 401
    assert post(daemon, "/api/resume", TOKEN + "-of-today", kind="sink", name="hook") == 200
    assert post(daemon, "/api/resume", TOKEN + "-of-today", kind="topic", name=TOPIC) == 200
    publish(stage.nsqds[0], TOPIC, "ada")
    wait_until(lambda: ids(stage.receivers[0]) == {"ada"}, PATIENCE_S, "the digest")


def post(daemon: Daemon, path: str, token: str = TOKEN, **fields: str) -> int:
    connection = http.client.HTTPConnection(HOST, daemon.ports[0], timeout=PATIENCE_S)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    connection.request("POST", path, json.dumps(fields), headers)
    status = connection.getresponse().status
    connection.close()
    return status


# -- at an odd moment


def test_a_daemon_that_waits_for_redis_takes_another_address_of_it(stage: Stage) -> None:
    nsqd = stage.nsqd()
    stage.receiver()
    daemon = stage.daemon()
    good = daemon.settings
    change(daemon, "redis", url="redis://127.0.0.1:1/0")
    daemon.launch()
    wait_until(lambda: daemon.said("daemon.store.waiting"), PATIENCE_S, "it to wait")
    daemon.settings = good
    daemon.reload()
    wait_until(daemon.is_ready, PATIENCE_S, "it to be ready")
    publish(nsqd, TOPIC, "ada")
    wait_until(lambda: ids(stage.receivers[0]) == {"ada"}, PATIENCE_S, "the digest")
    change(daemon, "redis", url="redis://127.0.0.1:1/0")
    daemon.reload("refused")
    stage.check_logs()


def test_while_redis_is_away_it_is_taken_at_once(stage: Stage) -> None:
    nsqd, redis = stage.nsqd(), stage.redis("--appendonly", "yes", "--appendfsync", "always")
    daemon = running(stage)
    publish(nsqd, TOPIC, "ada")
    wait_until(lambda: ids(stage.receivers[0]) == {"ada"}, PATIENCE_S, "the digest")
    redis.kill()
    publish(nsqd, TOPIC, "bob")
    wait_until(lambda: "failing" in state_line(daemon, "store"), PATIENCE_S, "Redis to be missed")
    change(daemon, "sinks.second", **second(stage))
    daemon.routes = [{**ROUTE, "sink": "second"}]
    daemon.reload()
    redis.start()
    wait_until(lambda: ids(stage.receivers[1]) == {"bob"}, PATIENCE_S, "the digest at its new place")
    stage.check_logs()


def test_one_that_ends_ignores_it_and_many_at_once_are_one_or_two(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = running(stage)
    change(daemon, "scheduler", interval="150ms")
    daemon.write_file()
    for _ in range(20):
        daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.metric("config_reloads_total") >= 1, PATIENCE_S, "the reload")
    daemon.reload("unchanged")  # one more than those that were asked for before
    assert daemon.metric("config_reloads_total") <= 4
    stage.receivers[0].answer(HANG)
    publish(nsqd, TOPIC, "ada")
    wait_until(lambda: stage.receivers[0].posts, PATIENCE_S, "a post")
    daemon.term()
    wait_until(lambda: daemon.said("daemon.draining"), PATIENCE_S, "the drain")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.said("daemon.reload.ignored"), PATIENCE_S, "the words")
    stage.receivers[0].answer(OK)
    assert daemon.wait() == 0


def test_term_in_the_middle_of_a_reload_hands_everything_back(stage: Stage) -> None:
    """The consumer of before waits for Redis, and its successor for the consumer."""
    nsqd = stage.nsqd()
    daemon = running(stage, {"redis": {"timeout": "5m"}, "nsq": {"drain_timeout": "2s"}})
    stage.hold_writes()
    publish(nsqd, TOPIC, *(f"t{number}" for number in range(50)))
    wait_until(lambda: stage.in_flight() == 50, PATIENCE_S, "all to be in flight")
    change(daemon, "nsq", heartbeat_interval="3s")
    daemon.write_file()
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: daemon.get("/readyz?verbose")[1].count("0 of 1 nsqd connected"), PATIENCE_S, "the new consumer")
    daemon.term()
    assert daemon.wait() == 0
    wait_until(lambda: stage.in_flight() == 0, 5.0, "nothing to be in flight")
    assert nsqd.channel_stats(TOPIC, CHANNEL)["timeout_count"] == 0
    stage.check_logs()
