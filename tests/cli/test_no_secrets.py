"""`check --no-secrets`: what the machine must not have is let pass, all the rest is checked."""

from __future__ import annotations

import json

import pytest

from nsqdigest.base.errors import EXIT_CONFIG, EXIT_OK
from support.files import SMALLEST
from support.shell import Shell

pytestmark = pytest.mark.unit

HOOK = 'type = "webhook"\nurl = "https://example.com/hook"\n'
WITH_SECRETS = (
    SMALLEST.replace('type = "log"', HOOK + 'secret = ["env:NEW", "file:old.secret"]\nheaders = {x-key = "env:KEY"}')
    + '\n[redis]\nurl = "env:REDIS_URL"\n\n[admin]\ntoken = "file:token"\n'
    + '\n[nsq.tls]\nca_file = "ca.pem"\ncert_file = "client.pem"\nkey_file = "client.key"\n'
)
NOT_CHECKED = [
    ('sinks.out.secret[0]', '"env:NEW" is not at hand'),
    ('sinks.out.secret[1]', '"file:old.secret" is not at hand'),
    ('sinks.out.headers.x-key', '"env:KEY" is not at hand'),
    ('redis.url', '"env:REDIS_URL" is not at hand'),
    ('admin.token', '"file:token" is not at hand'),
    ('nsq.tls.ca_file', "ca.pem is not there"),
    ('nsq.tls.cert_file', "client.pem is not there"),
    ('nsq.tls.key_file', "client.key is not there"),
]  # fmt: skip


def test_what_is_not_at_hand_is_named_and_no_mistake(shell: Shell) -> None:
    shell.write(WITH_SECRETS)
    assert len(shell.run("check").stderr.splitlines()) == len(NOT_CHECKED)
    done = shell.run("check", "--no-secrets")
    assert (done.returncode, done.stdout) == (EXIT_OK, "nsqdigest.toml: ok: 1 route over 1 topic to 1 sink\n")
    rows = done.stderr.splitlines()
    assert [row.split(": ", 3)[2:] for row in rows] == [list(each) for each in NOT_CHECKED]
    assert all(row.startswith("not checked: nsqdigest.toml:") for row in rows)


def test_as_json_they_have_their_parts(shell: Shell) -> None:
    shell.write(WITH_SECRETS)
    done = shell.run("check", "--no-secrets", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, done.stderr, list(answer)) == (
        EXIT_OK,
        "",
        ["ok", "problems", "warnings", "not_checked"],
    )
    assert (answer["ok"], answer["problems"], answer["warnings"]) == (True, [], [])
    assert [(each["path"], each["problem"]) for each in answer["not_checked"]] == NOT_CHECKED
    assert {each["file"] for each in answer["not_checked"]} == {"nsqdigest.toml"}
    assert all(isinstance(each["line"], int) for each in answer["not_checked"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('secret = "env:NO-NAME"', "names no variable of the environment"),
        ('secret = "file:~/secret"', "begins with ~"),
        ('secret = "${SECRET}"', 'write "env:SECRET"'),
        ('secret = "plain"', "is not a webhook secret"),
        ('secret = "env:WRONG"', "is not a webhook secret"),
        ('secret = "file:open.secret"', "which others than its owner may write"),
        ('secret = "file:empty.secret"', "which is empty"),
        ('secrte = "env:NEW"', 'did you mean "secret"?'),
        ('timeout = "1 hour"', 'write "1h"'),
    ],
)
def test_all_else_is_checked_also_what_is_at_hand(shell: Shell, line: str, expected: str) -> None:
    shell.write(SMALLEST.replace('type = "log"', HOOK + line))
    shell.write("x", "open.secret").chmod(0o666)
    shell.write("", "empty.secret").chmod(0o600)
    done = shell.run("check", "--no-secrets", WRONG="whsec_?")
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    assert expected in done.stderr
    assert shell.run("check", "--no-secrets", "--json", WRONG="whsec_?").returncode == EXIT_CONFIG


def test_a_variable_that_is_empty_is_not_at_hand(shell: Shell) -> None:
    """As the secrets of a repository are where a pull request from a fork is checked."""
    shell.write(SMALLEST.replace('type = "log"', HOOK + 'secret = "env:HOOK_SECRET"'))
    assert shell.run("check", HOOK_SECRET="").returncode == EXIT_CONFIG
    assert shell.run("check", "--no-secrets", HOOK_SECRET="").returncode == EXIT_OK


def test_no_rule_judges_what_stands_in_for_it(shell: Shell) -> None:
    """The default of `secret` is no secret, which would be advised against; that of `max_duration` is below `base`."""
    backoff = '\n[backoff]\nbase = "45s"\nmax_duration = "env:LONGEST"\n'
    shell.write(SMALLEST.replace('type = "log"', HOOK + 'secret = "env:HOOK_SECRET"') + backoff)
    done = shell.run("check", "--no-secrets")
    assert done.returncode == EXIT_OK
    assert "not signed" not in done.stderr
    assert shell.run("check", HOOK_SECRET="whsec_" + "A" * 44, LONGEST="30s").returncode == EXIT_CONFIG


def test_an_authority_that_is_at_hand_is_read_though_the_key_is_not(shell: Shell) -> None:
    shell.write("no certificate", "ca.pem")
    shell.write(SMALLEST + '\n[nsq.tls]\nca_file = "ca.pem"\ncert_file = "client.pem"\nkey_file = "client.key"\n')
    done = shell.run("check", "--no-secrets")
    assert done.returncode == EXIT_CONFIG
    assert done.stderr.splitlines() == [
        "nsqdigest.toml:13: nsq.tls.ca_file: ca.pem holds no certificates; name a file of them in PEM form"
    ]
