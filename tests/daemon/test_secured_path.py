"""The daemon over mutual TLS, snappy and AUTH: events, dead letters and the drain; and refusals are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.auth_server import EVERYTHING, AuthServer
from support.certificates import Certificates
from support.daemon import Daemon, run_command, toml
from support.servers import Nsqd
from support.stage import TOPIC, Stage
from support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers]

SECRET = "correct horse battery staple"
DEAD = "nsqdigest.dead"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    with AuthServer({SECRET: EVERYTHING}) as server:
        yield server


@pytest.fixture
def nsqd(stage: Stage, certificates: Certificates, auth_server: AuthServer) -> Nsqd:
    stage.receiver()
    return stage.nsqd(
        f"--tls-cert={certificates.server.cert_file}",
        f"--tls-key={certificates.server.key_file}",
        f"--tls-root-ca-file={certificates.ca_file}",
        "--tls-client-auth-policy=require-verify",
        "--tls-required=tcp-https",
        f"--auth-http-address={auth_server.address}",
    )


def secured(stage: Stage, folder: Path, certificates: Certificates, **tls: Any) -> Daemon:
    secret = folder / "nsq.secret"
    secret.write_text(SECRET + "\n", encoding="utf-8")
    secret.chmod(0o600)
    settings = {
        "nsq": {"compression": "snappy", "auth_secret": f"file:{secret}"},
        "nsq.tls": {
            "ca_file": str(certificates.ca_file),
            "cert_file": str(certificates.client.cert_file),
            "key_file": str(certificates.client.key_file),
            **tls,
        },
    }
    return stage.daemon(settings)


def test_the_whole_path_goes_over_tls_snappy_and_auth(
    stage: Stage, nsqd: Nsqd, auth_server: AuthServer, certificates: Certificates, tmp_path: Path
) -> None:
    nsqd.create_channel(DEAD, "readers")
    daemon = secured(stage, tmp_path, certificates)
    daemon.start()
    publisher = stage.publisher(nsqd)
    publisher.publish(1_000)
    nsqd.publish(TOPIC, b"not JSON")
    stage.wait_until_all_is_delivered()
    wait_until(lambda: nsqd.channel_stats(DEAD, "readers")["depth"] == 1, 10.0, "the dead letter")
    (client,) = nsqd.channel_stats(TOPIC, "nsqdigest")["clients"]
    assert (client["tls"], client["tls_version"], client["snappy"], client["authed"]) == (True, "TLS1.3", True, True)
    daemon.term()
    assert daemon.wait() == 0
    assert nsqd.channel_stats(TOPIC, "nsqdigest")["in_flight_count"] == 0
    assert {(asked["secret"], asked["tls"], asked["common_name"]) for asked in auth_server.asked} == {
        (SECRET, "true", "nsqdigest")
    }
    assert SECRET not in daemon.log_text()
    stage.check()


def test_a_refusal_is_told_once_and_the_daemon_waits_long_for_the_operator(
    stage: Stage, nsqd: Nsqd, certificates: Certificates, tmp_path: Path
) -> None:
    daemon = secured(stage, tmp_path, certificates, ca_file=str(certificates.other_ca_file))
    daemon.launch()
    (said,) = wait_until(lambda: daemon.said("consumer.connection.failed"), 10.0, "the refusal")
    assert "TLS failed: its certificate is signed by an authority that is not trusted here" in said["error"]
    assert said["again_s"] > 10
    assert [line for line in daemon.said("library") if "tornado" in line["event"]] == []
    assert not daemon.is_ready()
    daemon.term()
    assert daemon.wait() == 0


def test_insecure_is_warned_about_at_the_start(
    stage: Stage, nsqd: Nsqd, certificates: Certificates, tmp_path: Path
) -> None:
    daemon = secured(stage, tmp_path, certificates, ca_file="", insecure=True)
    daemon.start()
    advice = " ".join(line["advice"] for line in daemon.said("config.advice"))
    assert "any server can pose as nsqd" in advice


def test_a_file_of_tls_that_is_not_there_ends_it_before_anything_is_connected(
    stage: Stage, nsqd: Nsqd, certificates: Certificates, tmp_path: Path
) -> None:
    daemon = secured(stage, tmp_path, certificates, cert_file="nowhere.pem")
    daemon.folder.mkdir()
    daemon.config_path.write_text(toml(daemon.settings, daemon.routes), encoding="utf-8")
    connections = nsqd.log_tail(1_000).count("TCP: new client")
    ended = run_command("run", "-c", str(daemon.config_path))
    assert ended.returncode == 78
    assert "nsq.tls.cert_file: " in ended.stderr
    assert (
        "nowhere.pem is not there; make it; a relative path starts at the folder of the configuration" in ended.stderr
    )
    assert nsqd.log_tail(1_000).count("TCP: new client") == connections
