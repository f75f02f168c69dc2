"""A daemon follows its nsqds through nsqlookupd, under load, and shows which there are."""

from __future__ import annotations

import signal
import socket
from typing import Any

import pytest

from nsqdigest.config import Address
from support.follower import Start, registering
from support.lookupd import registered
from support.publishing import Background
from support.servers import Nsqlookupd
from support.stage import CHANNEL as STAGE_CHANNEL
from support.stage import TOPIC, Stage
from support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers]


def behind(lookupds: list[Nsqlookupd], **more: Any) -> dict[str, dict[str, Any]]:
    return {
        "nsq": {
            "nsqd_tcp_addresses": [],
            "lookupd_http_addresses": [str(Address(*lookupd.http_address)) for lookupd in lookupds],
            "lookupd_poll_interval": "100ms",
            "heartbeat_interval": "1s",
            **more,
        }
    }


def test_a_daemon_follows_nsqds_that_come_move_and_restart_under_load(stage: Stage, started: Start) -> None:
    lookupd = started(Nsqlookupd)
    first = stage.nsqd(*registering(lookupd))
    stage.receiver()
    daemon = stage.daemon(behind([lookupd]))
    daemon.start()
    with Background(stage.publisher(first, prefix="first"), 4_000, per_s=2_000):
        second = stage.nsqd(*registering(lookupd))
        stage.publisher(second, prefix="second").publish(500)
        wait_until(lambda: daemon.metric("nsqd_connections", topic=TOPIC) == 2, 5, "both nsqds")
        lookupd.kill()
        second.restart()
        stage.publisher(second, prefix="without").publish(500)
        wait_until(lambda: second.channel_stats(TOPIC, STAGE_CHANNEL)["depth"] == 0, 5, "it to flow without nsqlookupd")
        lookupd.start()
        second.move()
        stage.publisher(second, prefix="moved").publish(500)
    stage.wait_until_all_is_delivered()
    stage.check()
    assert daemon.metric("lookupd_failures_total", reason="unreachable") > 0


def test_readiness_says_which_nsqds_there_are(stage: Stage, started: Start) -> None:
    lookupd, other = started(Nsqlookupd), started(Nsqlookupd)
    other.stop()
    stage.receiver()
    daemon = stage.daemon(behind([lookupd, other]))
    daemon.start()
    detail = daemon.get("/readyz?verbose")[1]
    assert f"[+] topic {TOPIC}: no nsqlookupd knows an nsqd that has it yet; the daemon goes on asking" in detail
    assert "[+] nsqlookupd: 1 of 2 answer" in detail
    nsqds = [stage.nsqd(*registering(lookupd)) for _ in range(2)]
    wait_until(lambda: f"{TOPIC}: 2 of 2 nsqd connected" in daemon.get("/readyz?verbose")[1], 5, "both")
    nsqds[0].pause()
    wait_until(lambda: f"{TOPIC}: 1 of 2 nsqd connected" in daemon.get("/readyz?verbose")[1], 8, "one to be given up")
    assert daemon.metric("nsqd_connections_lost_total", reason="silent") == 1
    lookupd.stop()
    wait_until(lambda: "nsqlookupd: 0 of 2 answer" in daemon.get("/readyz?verbose")[1], 5, "no answers")
    assert daemon.is_ready(), "what is connected flows on"
    daemon.signal(signal.SIGUSR2)
    wait_until(lambda: len(daemon.said("daemon.state.nsqd")) == 2, 5, "its state")
    said = {line["nsqd"]: line["connected"] for line in daemon.said("daemon.state.nsqd")}
    assert said == {str(Address(*nsqds[0].tcp_address)): False, str(Address(*nsqds[1].tcp_address)): True}
    assert {line["sources"] for line in daemon.said("daemon.state.nsqd")} == {str(Address(*lookupd.http_address))}
    stage.check_logs()


def test_an_nsqd_that_the_file_does_not_allow_gets_no_connection(stage: Stage, started: Start) -> None:
    """nsqlookupd takes registrations from everybody. This one is at an address where a connection would succeed."""
    lookupd = started(Nsqlookupd)
    own = stage.nsqd(*registering(lookupd))
    stage.receiver()
    daemon = stage.daemon(behind([lookupd], allow_nsqds=["127.0.0.1"]))
    with socket.create_server(("127.0.0.2", 0)) as imposter:
        imposter.setblocking(False)
        address = str(Address(*imposter.getsockname()))
        with registered(lookupd, TOPIC, *imposter.getsockname()):
            daemon.start()
            stage.publisher(own, prefix="own").publish(1)
            wait_until(lambda: daemon.metric("nsqds_refused_total", topic=TOPIC) == 1, what="the refusal")
            stage.wait_until_all_is_delivered()
            assert f"{TOPIC}: 1 of 1 nsqd connected" in daemon.get("/readyz?verbose")[1]
            with pytest.raises(BlockingIOError):
                imposter.accept()
            daemon.settings = {**daemon.settings, **behind([lookupd])}
            daemon.reload()
            wait_until(lambda: is_connected_to(imposter), what="a connection without the list")
    (said,) = daemon.said("discovery.address.refused")
    assert (said["addresses"], said["topic"]) == (address, TOPIC)
    assert "nsq.allow_nsqds" in said["hint"]


def is_connected_to(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_an_nsqd_that_is_no_longer_allowed_is_left_as_in_a_drain(stage: Stage, started: Start) -> None:
    lookupd = started(Nsqlookupd)
    own, other = stage.nsqd(*registering(lookupd)), stage.nsqd(*registering(lookupd), "--broadcast-address=localhost")
    stage.receiver()
    daemon = stage.daemon(behind([lookupd]))
    daemon.start()
    for nsqd in (own, other):
        stage.publisher(nsqd, prefix=str(nsqd.ports[0])).publish(10)
    wait_until(lambda: daemon.metric("nsqd_connections", topic=TOPIC) == 2, what="both nsqds")
    stage.wait_until_all_is_delivered()
    daemon.settings = {**daemon.settings, **behind([lookupd], allow_nsqds=["127.0.0.0/8"])}
    daemon.reload()
    wait_until(lambda: not other.channel_stats(TOPIC, STAGE_CHANNEL)["clients"], what="the end of its connection")
    wait_until(lambda: f"{TOPIC}: 1 of 1 nsqd connected" in daemon.get("/readyz?verbose")[1], what="one nsqd")
    assert daemon.metric("nsqd_connections_lost_total") == 0
    stage.check()


def test_without_nsqd_and_without_an_answer_it_is_not_ready(stage: Stage, started: Start) -> None:
    lookupd = started(Nsqlookupd)
    lookupd.stop()
    stage.receiver()
    daemon = stage.daemon(behind([lookupd]))
    daemon.launch()
    wait_until(lambda: daemon.said("discovery.lookupd.failed"), 5, "the failure to be said")
    status, text = daemon.get("/readyz")
    assert status == 503
    assert f"[-] topic {TOPIC}: no nsqd is known, and no nsqlookupd answers" in text
    daemon.term()
    assert daemon.wait() == 0
    stage.check_logs()
