"""The options of an email sink in the file: what is read, what is refused with which remedy, what is advised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.errors import ConfigError
from nsqdigest.base.templates import Template
from nsqdigest.config import Config, Secret, parse_text
from nsqdigest.delivery.mail.addresses import Mailbox
from nsqdigest.delivery.sinks.email import EmailSinkSettings, composer_of, server_of
from nsqdigest.delivery.sinks.table import KINDS
from support.certificates import Certificates
from support.daemon import toml

pytestmark = pytest.mark.unit

SINK = {"type": "email", "host": "smtp.example.com", "from": "a@example.com", "to": "ops@example.com"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def read(
    sink: dict[str, Any], source: str = "f.toml", *, without_secrets: bool = False, policy: dict[str, Any] | None = None
) -> Config:
    tables = {
        "nsq": {"nsqd_tcp_addresses": ["127.0.0.1:4150"]}, "policies.default": policy or {},
        "sinks.mail": {**SINK, **sink},
    }  # fmt: skip
    text = toml(tables, [{"topic": "events", "timeline": "{user}", "sink": "mail", "group": "kind"}])
    return parse_text(text, source, {"MAIL": "hunter2"}, KINDS, without_secrets=without_secrets)


def settings(sink: dict[str, Any], source: str = "f.toml") -> EmailSinkSettings:
    found = read(sink, source).sinks["mail"]
    assert isinstance(found, EmailSinkSettings)
    return found


def problems(sink: dict[str, Any], source: str = "f.toml") -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(sink, source)
    return [f"{each.path.removeprefix('sinks.mail.')}: {each.problem}; {each.remedy}" for each in raised.value.problems]


def advice(sink: dict[str, Any]) -> list[str]:
    return [f"{each.path.removeprefix('sinks.mail.')}: {each.problem}; {each.remedy}" for each in read(sink).warnings]


def test_four_options_are_enough() -> None:
    found = settings({})
    assert (found.host, found.whole_port, found.tls) == ("smtp.example.com", 587, "starttls")
    assert (found.sender, found.to) == (Mailbox("a@example.com"), (Mailbox("ops@example.com"),))
    assert advice({}) == []


@pytest.mark.parametrize(("tls", "port"), [("starttls", 587), ("implicit", 465), ("none", 25)])
def test_the_port_follows_from_how_it_is_encrypted(tls: str, port: int) -> None:
    assert settings({"tls": tls}).whole_port == port
    assert settings({"tls": tls, "port": 2525}).whole_port == 2525


def test_recipients_are_one_or_a_list_fixed_or_of_the_newest_record() -> None:
    assert settings({"to": ["Ops <ops@example.com>", "{user.email}", "{team}@example.com"]}).to == (
        Mailbox("ops@example.com", "Ops"), Template.parse("{user.email}"), Template.parse("{team}@example.com"),
    )  # fmt: skip


def test_a_password_comes_from_elsewhere_and_is_shown_nowhere() -> None:
    found = settings({"user": "alerts", "password": "env:MAIL"})
    assert found.password == Secret("hunter2")
    assert "hunter2" not in repr(found) + repr(server_of(found))


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ({"host": "smtp://smtp.example.com:587"}, 'host: "smtp://smtp.example.com:587" is more than a host; '
                                                  'write host = "smtp.example.com" and port = 587'),
        ({"host": ""}, 'host: "" is neither a name nor an IP address; write one like "smtp.example.com"'),
        ({"tls": True}, 'tls: true is not one of its values; write "starttls", "implicit" or "none"'),
        ({"tls": "start_tls"}, 'tls: "start_tls" is not "starttls", "implicit" or "none"; write "starttls"'),
        ({"port": 99999}, "port: 99999 is too large; write 65535 or less"),
        ({"user": "x"}, 'user: there is no password; write password = "env:MAIL_PASSWORD"'),
        ({"password": "env:MAIL"}, "password: there is no user; write the user that it is of"),
        ({"user": "x", "password": "env:MAIL", "tls": "none"},
         'tls: tls = "none" would send user and password to smtp.example.com in the clear; '
         'write tls = "starttls" or "implicit"'),
        ({"from": "Alerts"}, 'from: "Alerts" is not an address; '
                             'write one like "alerts@example.com" or "Alerts <alerts@example.com>"'),
        ({"from": "{x}@example.com"}, 'is a template, and all mails of a sink have the same one; '),
        ({"to": []}, "to: a list has nobody in it; "),
        ({"to": ["x@y.org", "nobody"]}, 'to[1]: "nobody" is not an address; '),
        ({"to": "a@b.org, c@d.org"}, 'write a list: ["a@b.org", "c@d.org"]'),
        ({"to": "a@b.org, C <c@d.org>"}, 'write a list: ["a@b.org", "C <c@d.org>"]'),
        ({"to": "Ops, night <a@b.org>"}, "write '\"Ops, night\" <a@b.org>'"),
        (
            {"from": "Alerts, Inc. <a@b.org>"},
            'from: "Alerts, Inc. <a@b.org>" has a name that needs quotation marks; '
            "write '\"Alerts, Inc.\" <a@b.org>'",
        ),
        ({"to": "Ada <{user.email}>"}, 'to: "Ada <{user.email}>" makes no address, whatever its fields hold; '),
        ({"to": "{{ user.email }}"}, 'to: "{{ user.email }}" is a template of another language; write "{user.email}"'),
        ({"subject": "{{ x }}"}, 'subject: "{{ x }}" is a template of another language; write "{x}"'),
        ({"list_unsubscribe": "example.com/stop"}, "is not a URL that programs can call to unsubscribe; "),
        ({"list_unsubscribe": "https://example.com/a b"}, "is not a URL that programs can call to unsubscribe; "),
        ({"html": "<b>hi</b>"}, 'html: "<b>hi</b>" does not name a file; write one like "file:mail.html.j2"'),
        ({"text": "file:no.j2"}, "text: \"file:no.j2\" stands for no.j2, which is not there; "),
        ({"ca_file": "no.pem"}, "ca_file: no.pem is not there; "),
        ({"ca_file": "no.pem", "tls": "none"}, 'ca_file: is not used with tls = "none"; leave it out'),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_the_remedy(sink: dict[str, Any], expected: str) -> None:
    (found,) = problems(sink)
    assert expected in found


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ({"tls": "none"}, 'tls: digests go to smtp.example.com in the clear; write tls = "starttls"'),
        ({"port": 465}, 'port: 465 is a port where TLS begins at once; write tls = "implicit"'),
        (
            {"tls": "implicit", "port": 587},
            'port: 587 is a port where TLS begins with STARTTLS; write tls = "starttls"',
        ),
    ],
)
def test_what_works_and_is_seldom_meant_is_advised_against(sink: dict[str, Any], expected: str) -> None:
    assert advice(sink) == [expected]


def test_several_recipients_and_merged_retries_do_not_go_together() -> None:
    """A merge has a new id, by which nobody knows who took the mail before."""
    several, merge = {"to": ["ada@example.com", "ops@example.com"]}, {"on_retry": "merge"}
    with pytest.raises(ConfigError) as raised:
        read(several, policy=merge)
    (problem,) = raised.value.problems
    assert (problem.path, problem.remedy) == (
        "policies.default.on_retry", 'write "frozen", or a sink for each recipient',
    )  # fmt: skip
    assert read({}, policy=merge).policies["default"].on_retry == "merge"
    assert len(settings(several).to) == 2


def test_to_this_machine_mails_and_passwords_may_go_in_the_clear() -> None:
    assert advice({"host": "127.0.0.1", "tls": "none"}) == []
    assert settings({"host": "localhost", "tls": "none", "user": "x", "password": "env:MAIL"}).user == "x"


def test_a_file_of_authorities_is_read(certificates: Certificates, tmp_path: Path) -> None:
    found = settings({"ca_file": str(certificates.ca_file)})
    assert server_of(found).context is not None
    (tmp_path / "empty.pem").write_text("nothing")
    (wrong,) = problems({"ca_file": str(tmp_path / "empty.pem")})
    assert "holds no certificates" in wrong
    assert read({"ca_file": "no.pem"}, without_secrets=True).not_at_hand[0].path == "sinks.mail.ca_file"


def test_templates_are_rendered_with_samples_and_named_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "good.j2").write_text("{{ data.total }} {{ data.records[0].value.what | default('') }}")
    (tmp_path / "bad.j2").write_text("one\n{{ data.totl }}")
    source = str(tmp_path / "f.toml")
    assert settings({"text": "file:good.j2"}, source).text is not None
    (found,) = problems({"html": "file:bad.j2"}, source)
    assert 'did you mean "total"?' in found
    with pytest.raises(ConfigError) as raised:
        read({"html": "file:bad.j2"}, source)
    assert (raised.value.problems[0].file, raised.value.problems[0].line) == (str(tmp_path / "bad.j2"), 2)


def test_what_is_written_decides_which_parts_a_mail_has(tmp_path: Path) -> None:
    (tmp_path / "own.j2").write_text("own")
    source = str(tmp_path / "f.toml")

    def is_text_alone(**sink: str) -> bool:
        return composer_of(settings(sink, source))._letterhead.is_text_alone

    assert not is_text_alone()
    assert not is_text_alone(html="file:own.j2")
    assert not is_text_alone(html="file:own.j2", text="file:own.j2")
    assert is_text_alone(html="none")
    assert is_text_alone(text="file:own.j2")
