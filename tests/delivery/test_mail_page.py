"""docs/mail.md: its configuration is one without advice, its subjects are those of its mails, its picture is small."""

from __future__ import annotations

import re
from email import message_from_bytes, policy
from pathlib import Path

import pytest

from nsqdigest.config import parse_text
from nsqdigest.delivery.bodies.sample import sample_of
from nsqdigest.delivery.mail import connections
from nsqdigest.delivery.mail.answers import GREYLISTED_S
from nsqdigest.delivery.mail.content import MOST_EVENTS
from nsqdigest.delivery.sinks.email import EmailSinkSettings, composer_of
from nsqdigest.delivery.sinks.table import KINDS

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "mail.md").read_text("utf-8")


def test_the_configuration_is_one_without_advice_and_its_mail_has_the_subject_and_the_headers() -> None:
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    text = '[nsq]\nnsqd_tcp_addresses = ["127.0.0.1:4150"]\n' + found.group(1)
    config = parse_text(text, "f.toml", {"MAIL_PASSWORD": "x"}, KINDS)
    assert config.warnings == ()
    sink = config.sinks["mail"]
    assert isinstance(sink, EmailSinkSettings)
    mail = composer_of(sink)(sample_of(config.routes[0]), {})
    message = message_from_bytes(mail.content, policy=policy.default)
    assert f"`{message['subject'].replace('42', 'payments')}`" in PAGE
    for name in ("Message-ID", "Date", "References", "In-Reply-To", "Auto-Submitted", "Precedence", "X-Nsqdigest-Id"):
        assert message[name] is not None
        assert f"`{name}`" in PAGE


def test_its_numbers_are_those_of_the_program() -> None:
    assert f"the {MOST_EVENTS} newest events" in PAGE
    assert (
        f"closed after {connections.IDLE_S:g} seconds without a mail and after {connections.MOST_MAILS} mails" in PAGE
    )
    assert GREYLISTED_S == 300
    assert "not before five minutes" in PAGE


def test_the_picture_is_small() -> None:
    assert (DOCS / "pictures" / "mail.png").stat().st_size < 100_000
