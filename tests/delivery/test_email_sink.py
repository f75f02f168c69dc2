"""The email sink against a real mail server: what arrives, over which connections, and what becomes of each answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.base.templates import Template
from nsqdigest.config import Secret
from nsqdigest.delivery.bodies.sample import digest_json
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.mail import connections
from nsqdigest.delivery.mail.addresses import Mailbox
from nsqdigest.delivery.mail.compose import Mail
from nsqdigest.delivery.mail.session import Server
from nsqdigest.delivery.sinks import email as email_sink
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.email import Email, EmailSinkSettings
from nsqdigest.delivery.sinks.template_files import TemplateFile
from nsqdigest.delivery.targets import NoTarget, Source
from support.certificates import Certificates
from support.mail_server import HANG_UP, MailServer
from support.ports import HOST, free_port
from support.raw_server import Peer, RawServer, silent
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

NAMES = Names("events", "payments", "mail")
ID = "01a1ede2-66fb-7c42-8d0e-3f1f1c9f7a10"
OPS, DEV, LEFT = (Mailbox(f"{name}@example.com") for name in ("ops", "dev", "left"))
EVENT = {"message": "no answer from db-3", "kind": "TimeoutError", "user": {"email": "ada@example.com"}}
Make = Callable[..., Email]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server() -> Iterator[MailServer]:
    with MailServer() as server:
        yield server


@pytest.fixture
def metrics() -> Metrics:
    return Metrics({("sink",): [("mail",)]})


@pytest.fixture
async def email(server: MailServer, metrics: Metrics) -> AsyncIterator[Make]:
    made: list[Email] = []

    def make(**options: Any) -> Email:
        made.append(Email(settings(**{"port": server.port, **options}), metrics))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()
    await asyncio.sleep(0)  # what was closed says so in the next turn of the loop


def settings(**options: Any) -> EmailSinkSettings:
    values: dict[str, Any] = {
        "name": "mail", "type": "email", "concurrency": 4, "timeout_ms": 5000, "max_attempts": 0, "max_age_ms": 0,
        "retry_base_ms": 1000, "retry_cap_ms": 1000, "retry_after_max_ms": 3_600_000, "max_body_bytes": 262_144,
        "host": HOST, "port": 25, "tls": "none", "ca_file": "", "user": "", "password": None,
        "sender": Mailbox("alerts@example.com", "Alerts"), "to": (OPS,), "reply_to": None, "subject": None,
        "text": None, "html": None, "list_unsubscribe": None,
    }  # fmt: skip
    return EmailSinkSettings(**{**values, **options})


def digest(number: int = 0, events: list[dict[str, Any]] | None = None) -> OutgoingDigest:
    body = digest_json(events or [EVENT], NAMES, ("kind",))
    identity = ID[:-4] + f"{number:04x}"
    return OutgoingDigest(identity, "events", "payments", 1, 1, body.replace(ID.encode(), identity.encode()))


def aimed(sink: Email, event: dict[str, Any] = EVENT) -> OutgoingDigest:
    """As the daemon hands it to a sink with templates."""
    aim = email_sink.aim(sink._settings)
    assert aim is not None
    return digest(events=[event])._replace(target=aim.of(Source("events", "payments", json.dumps(event).encode())))


# -- what arrives


async def test_a_mail_says_what_happened_in_text_and_html(server: MailServer, email: Make) -> None:
    outcome = await email().deliver(digest())
    assert outcome == Outcome(Verdict.DELIVERED, "250", 250)
    (mail,) = server.accepted
    message = mail.message
    assert (mail.sender, mail.recipients) == ("alerts@example.com", ["ops@example.com"])
    assert message["subject"] == "payments: TimeoutError: no answer from db-3"
    assert (message["from"], message["to"]) == ("Alerts <alerts@example.com>", "ops@example.com")
    assert message.get_content_type() == "multipart/alternative"
    for part in ("plain", "html"):
        assert "no answer from db-3" in mail.part(part)
        assert "ada@example.com" in mail.part(part)
    assert not message.defects


async def test_its_headers_are_made_of_the_digest(server: MailServer, email: Make) -> None:
    await email().deliver(digest())
    message = server.accepted[0].message
    identity = ID[:-4] + "0000"
    assert message["message-id"] == f"<{identity}@example.com>"
    assert message["x-nsqdigest-id"] == identity
    assert parsedate_to_datetime(message["date"]).isoformat() == "2026-11-18T09:00:00+00:00"
    assert message["auto-submitted"] == "auto-generated"
    assert message["references"] == message["in-reply-to"]
    assert message["list-unsubscribe"] is None


async def test_each_attempt_has_the_same_bytes(server: MailServer, email: Make) -> None:
    server.say("CONTENT", "451 4.3.0 later", "554 5.6.0 no")
    sink, again = email(), email()
    for each in (sink, again, sink):
        await each.deliver(digest())
    assert len({mail.content for mail in server.received}) == 1
    assert len(server.received) == 3


async def test_the_bytes_are_ascii_with_short_lines_whatever_the_events_hold(server: MailServer, email: Make) -> None:
    odd = {"message": "é😀 \u202e" + "W" * 10_000, "kind": "ключ", "trace": "a\n.\n..b\nFrom x\n"}
    assert (await email().deliver(digest(events=[odd]))).verdict is Verdict.DELIVERED
    (mail,) = server.accepted
    assert mail.content.isascii()
    assert max(map(len, mail.content.split(b"\r\n"))) <= 78
    assert "\u202e" not in mail.part("plain") + mail.part("html")
    assert "        .\n        ..b\n        From x\n" in mail.part("plain")


async def test_the_newest_record_decides_to_whom_it_goes_and_what_the_subject_says(
    server: MailServer, email: Make
) -> None:
    sink = email(to=(Template.parse("{user.email}"), OPS), subject=Template.parse("[{route}] {timeline}: {message}"))
    await sink.deliver(aimed(sink, EVENT | {"message": "a\r\nBcc: evil@example.com\u202e"}))
    (mail,) = server.accepted
    assert mail.recipients == ["ada@example.com", "ops@example.com"]
    assert mail.message["subject"] == "[events] payments: a Bcc: evil@example.com"
    assert mail.message["bcc"] is None


@pytest.mark.parametrize(
    "address",
    [
        "ada@example.com, evil@example.com", "ada@example.com\r\nBcc: evil@example.com", "Ada <ada@example.com>",
        "ada@example.com\0", "", "ada", "@example.com", "ada@", '"a b"@example.com', "a%evil.com@example.com",
        "ada@exa\u202emple.com", "a\u200bda@example.com", "=?utf-8?q?x?=@example.com", "a" * 65 + "@example.com",
        "ada@[127.0.0.1]", "-ada@example.com", 7, None, ["ada@example.com"],
    ],
)  # fmt: skip
def test_what_is_no_address_is_no_target(address: object) -> None:
    aim = email_sink.aim(settings(to=(Template.parse("{user.email}"),)))
    assert aim is not None
    with pytest.raises(NoTarget) as raised:
        aim.of(Source("events", "payments", json.dumps({"user": {"email": address}}).encode()))
    assert str(raised.value).startswith("to: the address ") or "the field" in str(raised.value)
    assert "evil" not in str(raised.value)
    assert raised.value.quoting.isprintable()


async def test_a_refusal_of_whom_an_event_named_says_nothing_of_other_digests(server: MailServer, email: Make) -> None:
    server.refuse("ada@example.com", "550 5.1.1 nobody")
    sink = email(to=(Template.parse("{user.email}"),))
    outcome = await sink.deliver(aimed(sink))
    assert (outcome.verdict, outcome.is_of_sink) == (Verdict.REFUSED, False)
    server.say("MAIL", "451 4.3.0 later")
    assert (await sink.deliver(aimed(sink))).is_of_sink
    server.refuse(OPS.address, "550 5.1.1 nobody")
    assert (await email().deliver(digest())).is_of_sink


async def test_templates_of_the_operator_make_the_parts(server: MailServer, email: Make) -> None:
    text = TemplateFile("mail.txt.j2", "{{ data.total }} <of> {{ data.timeline }}\n")
    html = TemplateFile("mail.html.j2", "<p>{{ data.records[0].value.message }}</p>\n")
    await email(text=text, html=html).deliver(digest(events=[{"message": "<b>&"}]))
    await email(text=text).deliver(digest(1))
    both, alone = server.accepted
    assert both.part("plain") == "1 <of> payments\n"
    assert both.part("html") == "<p>&lt;b&gt;&amp;</p>\n"
    assert alone.message.get_content_type() == "text/plain"


async def test_a_template_that_fails_sends_nothing_and_is_named(server: MailServer, email: Make) -> None:
    html = TemplateFile("/etc/mail.html.j2", "\n{{ data.records[0].value.nothing }}")
    outcome = await email(html=html).deliver(digest())
    assert outcome.verdict is Verdict.UNRENDERED
    assert outcome.cause.startswith('/etc/mail.html.j2:2: "nothing" is not there; ')
    assert server.connections == 0


async def test_a_list_can_be_left_where_the_file_says_how(server: MailServer, email: Make) -> None:
    url = Template.parse("https://example.com/stop?user={user.email}")
    sink = email(list_unsubscribe=url, reply_to=DEV)
    await sink.deliver(aimed(sink))
    (mail,) = server.accepted
    assert mail.message["list-unsubscribe"] == "<https://example.com/stop?user=ada%40example.com>"
    assert mail.message["list-unsubscribe-post"] == "List-Unsubscribe=One-Click"
    assert mail.message["reply-to"] == "dev@example.com"
    assert 'href="https://example.com/stop?user=ada%40example.com"' in mail.part("html")


async def test_an_address_of_another_alphabet_needs_a_server_that_takes_it(server: MailServer, email: Make) -> None:
    to = (Mailbox("zoë@example.com"),)
    assert (await email(to=to).deliver(digest())).verdict is Verdict.DELIVERED
    assert server.accepted[0].recipients == ["zoë@example.com"]
    assert "SMTPUTF8" in server.accepted[0].options
    with MailServer(utf8=False) as old:
        outcome = await email(to=to, port=old.port).deliver(digest())
        assert (outcome.verdict, old.received) == (Verdict.REFUSED, [])
        assert "SMTPUTF8" in outcome.cause


async def test_what_is_larger_than_the_server_takes_is_not_sent(email: Make) -> None:
    with MailServer(size_limit=2_000) as small:
        sink = email(port=small.port)
        outcome = await sink.deliver(digest())
        assert outcome.verdict is Verdict.REFUSED
        assert "bytes, and the server takes 2,000; write a smaller max_body" in outcome.cause
        assert small.commands["MAIL"] == 0


# -- connections


async def test_one_connection_is_used_again(server: MailServer, email: Make) -> None:
    sink = email()
    for number in range(5):
        await sink.deliver(digest(number))
    assert (len(server.accepted), server.connections) == (5, 1)


async def test_mails_at_the_same_time_have_a_connection_each(server: MailServer, email: Make) -> None:
    sink = email()
    for _ in range(2):
        await asyncio.gather(*(sink.deliver(digest(number)) for number in range(4)))
    assert len(server.accepted) == 8
    assert server.connections == 4


async def test_a_connection_that_the_server_closed_meanwhile_is_made_anew_at_once(
    server: MailServer, email: Make
) -> None:
    sink = email()
    await sink.deliver(digest())
    server.hang_up()
    assert (await sink.deliver(digest(1))).verdict is Verdict.DELIVERED
    server.say("MAIL", "421 4.4.2 idle for too long")
    assert (await sink.deliver(digest(2))).verdict is Verdict.DELIVERED
    assert server.connections == 3


async def test_an_idle_connection_is_asked_first_and_closed_at_last(
    server: MailServer, email: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CHECKED_AFTER_S", 0.0)
    sink = email()
    await sink.deliver(digest())
    await sink.deliver(digest(1))
    assert server.commands["NOOP"] == 1
    server.say("NOOP", "500 what?")
    assert (await sink.deliver(digest(2))).verdict is Verdict.DELIVERED
    assert server.connections == 2


async def test_after_many_mails_a_connection_is_begun_anew(
    server: MailServer, email: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_MAILS", 2)
    sink = email()
    for number in range(5):
        await sink.deliver(digest(number))
    assert server.connections == 3


async def test_a_mail_that_is_refused_does_not_cost_the_connection(server: MailServer, email: Make) -> None:
    sink = email()
    server.say("RCPT", "550 5.1.1 nobody")
    server.say("CONTENT", "554 5.7.1 spam")
    for number in range(3):
        await sink.deliver(digest(number))
    assert (len(server.accepted), server.connections) == (1, 1)


# -- answers


@pytest.mark.parametrize(
    ("command", "answer", "expected"),
    [
        (
            "MAIL",
            "421 4.3.2 closing",
            Outcome(Verdict.UNAVAILABLE, "421 4.3.2: the server takes nothing now (MAIL FROM)", 421),
        ),
        ("MAIL", "451 4.3.0 later", Outcome(Verdict.AGAIN, "451 4.3.0: error of the server (MAIL FROM)", 451, 300)),
        ("MAIL", "452 full", Outcome(Verdict.AGAIN, "452: no room (MAIL FROM)", 452)),
        ("MAIL", "550 5.7.1 not you", Outcome(Verdict.UNAVAILABLE, "550 5.7.1: not accepted (MAIL FROM)", 550)),
        ("MAIL", "530 5.7.0 log in", Outcome(Verdict.UNAVAILABLE, "530 5.7.0: login required (MAIL FROM)", 530)),
        ("MAIL", "552 5.3.4 too large", Outcome(Verdict.REFUSED, "552 5.3.4: over its limit (MAIL FROM)", 552)),
        (
            "RCPT",
            "450 4.2.1 greylisted",
            Outcome(Verdict.AGAIN, "450 4.2.1: mailbox not available now (RCPT TO)", 450, 300),
        ),
        ("RCPT", "452 4.5.3 too many", Outcome(Verdict.AGAIN, "452 4.5.3: no room (RCPT TO)", 452)),
        ("RCPT", "550 5.1.1 no <ops> here", Outcome(Verdict.REFUSED, "550 5.1.1: not accepted (RCPT TO)", 550)),
        ("RCPT", "552 full", Outcome(Verdict.AGAIN, "552: over its limit (RCPT TO)", 552)),
        ("RCPT", "550 5.4.5 quota", Outcome(Verdict.UNAVAILABLE, "550 5.4.5: not accepted (RCPT TO)", 550)),
        ("RCPT", "421 bye", Outcome(Verdict.UNAVAILABLE, "421: the server takes nothing now (RCPT TO)", 421)),
        ("CONTENT", "451 4.7.1 later", Outcome(Verdict.AGAIN, "451 4.7.1: error of the server (content)", 451, 300)),
        ("CONTENT", "554 5.7.1 spam", Outcome(Verdict.REFUSED, "554 5.7.1: refused (content)", 554)),
        ("CONTENT", "421 bye", Outcome(Verdict.UNAVAILABLE, "421: the server takes nothing now (content)", 421)),
    ],
)
async def test_an_answer_decides(server: MailServer, email: Make, command: str, answer: str, expected: Outcome) -> None:
    """Its words are in the outcome's answer alone."""
    server.say(command, answer)
    assert await email().deliver(digest()) == expected._replace(answer=answer[4:])


async def test_a_connection_cut_after_the_final_dot_is_tried_again_under_the_same_id(
    server: MailServer, email: Make
) -> None:
    server.say("CONTENT", HANG_UP)
    sink = email()
    outcome = await sink.deliver(digest())
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert outcome.cause == f"{HOST}:{server.port}: the server closed the connection (content)"
    assert (await sink.deliver(digest())).verdict is Verdict.DELIVERED
    first, second = server.received
    assert first.content == second.content


# -- several recipients


async def test_who_took_it_does_not_get_it_again(server: MailServer, email: Make) -> None:
    server.refuse(DEV.address, "450 4.2.0 greylisted")
    sink = email(to=(OPS, DEV))
    outcome = await sink.deliver(digest())
    assert (outcome.verdict, outcome.retry_after_s) == (Verdict.AGAIN, 300)
    assert outcome.cause == "450 4.2.0: mailbox not available now (RCPT TO), 1 of 2 recipients"
    server.accept(DEV.address)
    assert (await sink.deliver(digest())).verdict is Verdict.DELIVERED
    first, second = server.accepted
    assert (first.recipients, second.recipients) == ([OPS.address], [DEV.address])
    assert first.content == second.content


async def test_who_is_refused_for_good_holds_nobody_up_and_is_reported(
    server: MailServer, email: Make, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuse(LEFT.address, "550 5.1.1 <left> has left\x1b[31m")
    outcome = await email(to=(OPS, LEFT)).deliver(digest())
    assert outcome == Outcome(Verdict.DELIVERED, "250, refused for 1 of 2 recipients", 250)
    assert metrics.value("mail_recipients_refused_total", sink="mail") == 1
    (record,) = [each for each in caplog.records if each.getMessage() == "scheduler.recipient.refused"]
    fields: dict[str, Any] = record.fields  # type: ignore[attr-defined]
    assert (fields["recipient"], fields["detail"]) == (LEFT.address, "550 5.1.1: not accepted (RCPT TO)")


async def test_a_recipient_refused_for_good_later_ends_it_for_the_others_have_it(
    server: MailServer, email: Make
) -> None:
    server.refuse(LEFT.address, "450 4.2.0 later")
    sink = email(to=(OPS, LEFT))
    assert (await sink.deliver(digest())).verdict is Verdict.AGAIN
    server.refuse(LEFT.address, "550 5.1.1 nobody")
    assert (await sink.deliver(digest())).verdict is Verdict.DELIVERED
    assert len(server.accepted) == 1


async def test_who_cannot_take_it_for_long_holds_the_next_digest_up_no_longer(
    server: MailServer, email: Make, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.refuse(LEFT.address, "452 4.2.2 mailbox full")
    sink = email(to=(OPS, LEFT))
    for _ in range(2):
        outcome = await sink.deliver(digest())
        assert (outcome.verdict, outcome.is_of_sink) == (Verdict.AGAIN, False)
    monkeypatch.setattr(connections, "WAITED_FOR_S", 0.0)
    assert await sink.deliver(digest()) == Outcome(Verdict.DELIVERED, "250, refused for 1 of 1 recipients", 250)
    assert metrics.value("mail_recipients_refused_total", sink="mail") == 1
    assert [mail.recipients for mail in server.accepted] == [[OPS.address]]


async def test_a_mail_cancelled_in_the_middle_leaves_no_connection(email: Make) -> None:
    async def slow(peer: Peer) -> None:
        await peer.write(b"220 here\r\n")
        for answer in (b"250 here\r\n", b"250 ok\r\n", b"550 5.1.1 nobody\r\n"):
            await peer.line()
            await peer.write(answer)
        assert await peer.line() == b"RSET\r\n"
        reached.set()
        await peer.hung_up()
        left.set()

    reached, left = asyncio.Event(), asyncio.Event()
    async with RawServer(slow) as server:
        task = asyncio.create_task(email(port=server.port).deliver(digest()))
        await reached.wait()
        task.cancel()
        await asyncio.wait([task])
        await left.wait()
        assert task.cancelled()


async def test_where_nobody_takes_it_the_hopeful_answer_decides(server: MailServer, email: Make) -> None:
    server.refuse(OPS.address, "450 4.2.0 later")
    server.refuse(LEFT.address, "550 5.1.1 nobody")
    sink = email(to=(LEFT, OPS))
    outcome = await sink.deliver(digest())
    assert (outcome.verdict, server.received) == (Verdict.AGAIN, [])
    server.refuse(OPS.address, "550 5.1.1 nobody")
    assert (await sink.deliver(digest())).verdict is Verdict.REFUSED


# -- servers that are no good


async def test_nobody_listens(email: Make) -> None:
    port = free_port()
    outcome = await email(port=port).deliver(digest())
    assert outcome == Outcome(Verdict.UNAVAILABLE, f"{HOST}:{port}: Connection refused (greeting)")


async def test_a_name_that_nobody_knows(email: Make) -> None:
    outcome = await email(host="mail.invalid").deliver(digest())
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert "its name cannot be looked up" in outcome.cause


async def _garbage(peer: Peer) -> None:
    await peer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await peer.hung_up()


async def _endless(peer: Peer) -> None:
    while True:
        await peer.write(b"220-" + b"x" * 65_536)


async def _endless_lines(peer: Peer) -> None:
    while True:
        await peer.write(b"220-welcome\r\n" * 4_096)


async def _drip(peer: Peer) -> None:
    for byte in b"220-" + b"x" * 100_000:
        await peer.write(bytes([byte]))
        await asyncio.sleep(0.02)


async def _hang_up(peer: Peer) -> None:
    pass


async def _busy(peer: Peer) -> None:
    await peer.write(b"421 4.3.2 too many connections\r\n")
    await peer.hung_up()


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        (_garbage, "answers what is no SMTP (greeting)"),
        (_endless, "answers what is no SMTP (greeting)"),
        (_endless_lines, "answers what is no SMTP (greeting)"),
        (_drip, "no answer within 0.4 s"),
        (silent, "no answer within 0.4 s"),
        (_hang_up, "the server closed the connection (greeting)"),
        (_busy, "421 4.3.2: the server takes nothing now (greeting)"),
    ],
)
async def test_a_server_that_speaks_no_smtp_or_too_slowly(
    email: Make, script: Callable[[Peer], Any], detail: str
) -> None:
    async with RawServer(script) as server:
        async with asyncio.timeout(PATIENCE_S):
            outcome = await email(port=server.port, timeout_ms=400).deliver(digest())
        assert outcome.verdict is Verdict.UNAVAILABLE
        assert outcome.cause.endswith(detail)


async def test_what_a_server_writes_in_an_old_encoding_is_text_that_can_be_stored(email: Make) -> None:
    """A digest is buried with it, and `test-sink --json` shows it."""

    async def latin_1(peer: Peer) -> None:
        for answer in (b"220 here\r\n", b"250 here\r\n", "554 5.7.1 unzul\xe4ssig\r\n".encode("latin-1")):
            await peer.write(answer)
            await peer.line()

    async with RawServer(latin_1) as server:
        outcome = await email(port=server.port).deliver(digest())
    assert outcome.answer == "5.7.1 unzul\ufffdssig"


async def test_a_server_that_stops_reading_keeps_no_connection() -> None:
    async def stuck(peer: Peer) -> None:
        await peer.write(b"220 here\r\n")
        for answer in (b"250-here\r\n250 SIZE 99999999\r\n", b"250 ok\r\n", b"250 ok\r\n", b"354 go on\r\n"):
            await peer.line()
            await peer.write(answer)
        reached.set()
        await ended.wait()
        await peer.hung_up()
        left.set()

    reached, ended, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
    mail = Mail("a@example.com", ("b@example.com",), (b"x" * 70 + b"\r\n") * 250_000, False)
    async with RawServer(stuck) as server:
        ours = connections.Connections(Server(HOST, server.port, "none", None, "", None), lambda *_: None)
        task = asyncio.create_task(ours.send(ID, mail))
        await reached.wait()
        task.cancel()
        await asyncio.wait([task])
        ended.set()
        await left.wait()
    assert task.cancelled()


# -- TLS and login


@pytest.mark.parametrize("way", ["PLAIN", "LOGIN"])
async def test_a_server_that_repeats_the_login_reveals_no_password(email: Make, way: str) -> None:
    async def repeats(peer: Peer) -> None:
        await peer.write(b"220 here\r\n")
        await peer.line()
        await peer.write(f"250-here\r\n250 AUTH {way}\r\n".encode())
        if way == "LOGIN":
            await peer.line()
            await peer.write(b"334 UGFzc3dvcmQ6\r\n")
        await peer.write(b"535 5.7.8 what is " + await peer.line())

    async with RawServer(repeats) as server:
        sink = email(port=server.port, user="alerts", password=Secret("hunter2"))
        outcome = await sink.deliver(digest())
    assert outcome.answer == f"5.7.8 what is {'AUTH PLAIN ' if way == 'PLAIN' else ''}***"


@pytest.mark.parametrize("implicit", [False, True])
async def test_tls_with_a_login(certificates: Certificates, email: Make, implicit: bool) -> None:
    login = ("alerts", "pässword")
    with MailServer(certificates.server, implicit=implicit, login=login) as server:
        options = {"port": server.port, "tls": "implicit" if implicit else "starttls", "user": login[0]}
        ca_file = str(certificates.ca_file)
        sink = email(**options, ca_file=ca_file, password=Secret(login[1]))
        assert await sink.deliver(digest()) == Outcome(Verdict.DELIVERED, "250", 250)
        assert server.accepted[0].tls
        assert repr(sink._settings).count("pässword") == 0
        wrong = await email(**options, ca_file=ca_file, password=Secret("no")).deliver(digest())
        assert wrong.verdict is Verdict.UNAVAILABLE
        assert wrong.cause == "535 5.7.8: user or password wrong (AUTH)"


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize(
    ("which", "detail"),
    [
        ("wrong_host", "TLS failed: its certificate is valid, but not for localhost"),
        ("common_name_only", "TLS failed: its certificate is valid, but not for localhost"),
        ("strange", r"TLS failed: its certificate is signed by an authority that is not trusted here \(.*\)"),
        ("expired", "TLS failed: its certificate has expired"),
    ],
)
async def test_a_certificate_that_does_not_pass(
    certificates: Certificates, email: Make, implicit: bool, which: str, detail: str
) -> None:
    with MailServer(getattr(certificates, which), implicit=implicit) as server:
        tls = "implicit" if implicit else "starttls"
        host = "localhost" if "localhost" in detail else HOST
        sink = email(host=host, port=server.port, tls=tls, ca_file=str(certificates.ca_file))
        outcome = await sink.deliver(digest())
        assert outcome.verdict is Verdict.UNAVAILABLE
        assert re.search(detail, outcome.cause)
        assert server.received == []


async def test_starttls_is_never_done_without(server: MailServer, email: Make) -> None:
    outcome = await email(tls="starttls").deliver(digest())
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert "offers no STARTTLS; nothing goes there in the clear" in outcome.cause
    assert server.received == []


async def test_tls_where_the_server_speaks_none(server: MailServer, email: Make) -> None:
    outcome = await email(tls="implicit").deliver(digest())
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert "TLS failed: the server at this address does not speak TLS" in outcome.cause


async def test_a_server_without_a_login_is_not_sent_the_password(server: MailServer, email: Make) -> None:
    outcome = await email(user="alerts", password=Secret("secret")).deliver(digest())
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert "offers no login (AUTH)" in outcome.cause


async def test_a_closed_sink_has_no_connection_left(server: MailServer, email: Make, tmp_path: Path) -> None:
    sink = email()
    await sink.deliver(digest())
    assert sink._connections is not None
    assert len(sink._connections._idle) == 1
    await sink.close()
    assert sink._connections._idle == []
