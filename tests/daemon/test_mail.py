"""Mails through the real daemon: what arrives, a mail server that greylists, one that is down, and a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Certificates
from support.daemon import Daemon, run_command
from support.mail_server import HANG_UP, MailServer, Received
from support.ports import HOST
from support.stage import TOPIC, Stage, stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

__all__ = ["stage"]

ROUTE = {"name": "events", "topic": TOPIC, "timeline": "user:{user.id}", "group": "kind", "sink": "mail"}


@pytest.fixture
def server() -> Iterator[MailServer]:
    with MailServer() as server:
        yield server


def started(stage: Stage, server: MailServer, policy: dict[str, Any] | None = None, **options: Any) -> Daemon:
    stage.nsqd()
    sink = {
        "type": "email", "host": HOST, "port": server.port, "tls": "none", "from": "Alerts <alerts@example.com>",
        "to": ["{user.email}", "ops@example.com"], "timeout": "1s", "retry_base": "50ms", "retry_cap": "500ms",
        "retry_after_max": "500ms",
    }  # fmt: skip
    daemon = stage.daemon({"policies.default": policy or {}, "sinks.mail": {**sink, **options}}, [ROUTE])
    daemon.admin = {"token": "a-long-enough-token"}
    daemon.start()
    return daemon


def publish(stage: Stage, *users: str, **fields: Any) -> None:
    for user in users:
        event = {"user": {"id": user, "email": f"{user}@example.com"}, "kind": "TimeoutError", "message": f"for {user}"}
        stage.nsqds[0].publish(TOPIC, json.dumps(event | fields).encode())


def identities(mails: list[Received]) -> list[str]:
    return [str(mail.message["message-id"]) for mail in mails]


def line(daemon: Daemon) -> str:
    return next(line for line in daemon.get("/readyz?verbose")[1].splitlines() if "sink mail" in line)


def test_each_timeline_gets_a_mail_of_its_own_and_later_ones_gather(stage: Stage, server: MailServer) -> None:
    daemon = started(stage, server)
    publish(stage, "ada", "bob")
    wait_until(lambda: len(server.accepted) == 2, 10, "the first mails")
    with daemon.holding("sink", "mail"):
        publish(stage, *["ada"] * 5)
        wait_until(lambda: stage.ledger()["added"] == 7, what="five more to be stored")
    wait_until(lambda: len(server.accepted) == 3, what="the digest")
    first, last = sorted(server.accepted[:2], key=lambda mail: mail.recipients), server.accepted[2]
    assert [mail.recipients for mail in first] == [
        [f"{name}@example.com", "ops@example.com"] for name in ("ada", "bob")
    ]
    assert last.message["subject"] == "5 events · user:ada: TimeoutError ×5"
    assert last.message["references"] == first[0].message["references"] != first[1].message["references"]
    assert len({*identities(server.accepted)}) == 3
    wait_until(lambda: stage.ledger()["delivered"] == 7, what="the digest to be closed")
    daemon.stop()
    stage.check_logs()


def test_a_server_that_greylists_is_asked_again_for_the_one_who_waits(stage: Stage, server: MailServer) -> None:
    server.refuse("ops@example.com", "450 4.2.0 greylisted")
    daemon = started(stage, server)
    publish(stage, "ada")
    wait_until(lambda: daemon.metric("digest_attempts_total", outcome="again") >= 2, 10, "two attempts")
    server.accept("ops@example.com")
    wait_until(lambda: stage.ledger().get("delivered") == 1, 10, "the digest to be closed")
    assert [mail.recipients for mail in server.accepted] == [["ada@example.com"], ["ops@example.com"]]
    assert len({mail.content for mail in server.received}) == 1
    stage.check_logs()


def test_while_a_server_is_down_the_sink_is_refusing_and_then_the_same_mail_arrives(
    stage: Stage, server: MailServer
) -> None:
    daemon = started(stage, server)
    server.say("CONTENT", HANG_UP)
    publish(stage, "ada")
    wait_until(lambda: server.received, 10, "the mail that is cut off")
    server.down()
    wait_until(lambda: "refusing since" in line(daemon), 10, "the sink to be in trouble")
    wait_until(lambda: daemon.said("scheduler.digest.failed"), 5, "the line in the log")
    failed = daemon.said("scheduler.digest.failed")[-1]
    assert f"{HOST}:{server.port}: " in failed["detail"]
    daemon.stop()
    server.up()
    daemon.start()
    wait_until(lambda: server.accepted, 15, "the mail")
    assert len({*identities(server.received)}) == 1
    assert len({mail.content for mail in server.received}) == 1
    wait_until(lambda: "delivering" in line(daemon), 10, "the trouble to be over")
    stage.check_logs()


def test_a_server_at_an_ip_address_is_shown_with_what_is_wrong_and_not_with_a_part_of_its_address(
    stage: Stage, server: MailServer
) -> None:
    daemon = started(stage, server, tls="starttls")
    publish(stage, "ada")
    wait_until(lambda: "refusing since" in line(daemon), 10, "a server that offers no TLS")
    assert f"1 digest waits: {HOST}:{server.port} offers no STARTTLS; nothing goes there in the clear" in line(daemon)
    [sink] = json.loads(daemon.get("/api/status")[1])["sinks"]
    assert sink["why"].startswith(f"{HOST}:{server.port} offers no STARTTLS")
    stage.check_logs()


def test_another_file_of_authorities_under_the_same_name_needs_only_a_reload(stage: Stage, tmp_path: Path) -> None:
    made = Certificates(tmp_path / "certificates")
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(made.other_ca_file.read_bytes())
    with MailServer(made.server) as server:
        daemon = started(stage, server, tls="starttls", ca_file=str(trusted))
        publish(stage, "ada")
        wait_until(lambda: "refusing since" in line(daemon), 10, "a server that nobody vouches for")
        trusted.write_bytes(made.ca_file.read_bytes())
        daemon.reload()
        wait_until(lambda: server.accepted, 15, "the mail")
        [said] = daemon.said("daemon.reloaded")
        assert said["changes"] == "sinks: ~ mail rebuilt (new contents of its files)"
        daemon.reload("unchanged")
        daemon.stop()
    stage.check_logs()


def test_an_event_that_names_nobody_is_a_dead_letter(stage: Stage, server: MailServer) -> None:
    daemon = started(stage, server)
    for number in range(4):
        publish(stage, f"nobody{number}", user={"id": f"{number}", "email": "ada@example.com\r\nBcc: evil@example.com"})
    publish(stage, "ada")
    wait_until(lambda: server.accepted, 10, "the mail of the other")
    wait_until(lambda: daemon.metric("dead_letters_total", reason="no-target") == 4, 10, "the dead letters")
    assert [mail.recipients[0] for mail in server.received] == ["ada@example.com"]
    said = daemon.said("consumer.message.dead_lettered")[0]
    assert said["detail"].endswith(": to[0]: the address has a character before the @ that is not allowed there")
    assert "delivering" in line(daemon)
    stage.check_logs()


def test_who_is_refused_for_good_is_counted_and_logged(stage: Stage, server: MailServer) -> None:
    server.refuse("ada@example.com", "550 5.1.1 nobody \x1b[31m")
    daemon = started(stage, server)
    publish(stage, "ada")
    wait_until(lambda: stage.ledger().get("delivered") == 1, 10, "the digest to be closed")
    assert daemon.metric("mail_recipients_refused_total", sink="mail") == 1
    (said,) = daemon.said("scheduler.recipient.refused")
    assert (said["recipient"], said["detail"]) == ("ada@example.com", "550 5.1.1: not accepted (RCPT TO)")
    stage.check_logs()


def test_what_nobody_takes_is_dead_after_three_attempts_and_goes_out_when_it_is_replayed(
    stage: Stage, server: MailServer
) -> None:
    server.say("CONTENT", *["554 5.7.1 spam"] * 3)
    daemon = started(stage, server)
    publish(stage, "ada")
    wait_until(lambda: stage.ledger().get("buried") == 1, 10, "the digest to be dead")
    (dead,) = json.loads(run_command("dead", "list", "--json", "-c", str(daemon.config_path)).stdout)
    assert (dead["reason"], dead["attempts"]) == ("refused", 3)
    done = run_command("dead", "replay", dead["id"], "-c", str(daemon.config_path))
    assert done.returncode == 0, done.stderr
    wait_until(lambda: server.accepted, 10, "the mail")
    assert len({*identities(server.received)}) == 1
    stage.check_logs()


def test_a_preview_is_the_mail_that_is_sent_later(stage: Stage, server: MailServer) -> None:
    delays = {"immediate": False, "minimum_delay": "6s", "increment_delay": "0s", "maximum_delay": "6s"}
    daemon = started(stage, server, delays)
    publish(stage, "ada", message="\u202e\x1b[31mred")
    wait_until(lambda: daemon.metric("records_added_total", route="events") == 1, 10, "the event to be stored")
    shown = run_command("preview", "user:ada", "-c", str(daemon.config_path))
    assert shown.returncode == 0, shown.stderr
    assert "message/rfc822" in shown.stderr
    assert "Subject: user:ada: TimeoutError: [31mred" in shown.stdout
    wait_until(lambda: server.accepted, 20, "the mail")
    sent = server.accepted[0].content.decode()
    kept = ("From:", "To:", "Subject:", "Auto-Submitted:", "Content-")
    assert [each for each in shown.stdout.splitlines() if each.startswith(kept) and "boundary" not in each] == [
        each for each in sent.splitlines() if each.startswith(kept) and "boundary" not in each
    ]
    stage.check_logs()


def test_a_sample_is_sent_by_hand(stage: Stage, server: MailServer) -> None:
    daemon = started(stage, server, to="ops@example.com")
    done = run_command("test-sink", "mail", "-c", str(daemon.config_path))
    assert done.returncode == 0, done.stdout
    assert "delivered in" in done.stdout
    (mail,) = server.accepted
    assert mail.message["subject"].startswith("17 events · nsqdigest-test")
