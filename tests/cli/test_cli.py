"""The installed command: what it says, where it says it, and the exit code that scripts go by."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from email import message_from_string, policy
from pathlib import Path

import pytest

import nsqdigest
from nsqdigest.base.errors import EXIT_CONFIG, EXIT_NO, EXIT_OK, EXIT_USAGE
from nsqdigest.cli.preview import for_terminal
from support.files import SMALLEST
from support.ports import HOST
from support.shell import PROGRAM, Shell
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.unit

COMMANDS = (
    "init", "check", "try", "preview", "simulate", "doctor", "test-sink", "run", "status", "timelines", "show",
    "explain", "flush", "delete", "adopt",
    "dead", "pause", "resume", "audit", "demo", "completion", "help",
)  # fmt: skip
SUBCOMMANDS = tuple(("dead", word) for word in ("list", "show", "replay", "drop", "events"))

SIX_MISTAKES = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:99999"]
max_inflight = 10

[policies.default]
minimum_delay = "5min"

[sinks.out]
type = "webhook"
url = "http://example.com/hook"

[[routes]]
topic = "events"
timeline = "{user"
sink = "otu"
"""
SIX_PLACES = [
    "nsqdigest.toml:2: nsq.nsqd_tcp_addresses[0]: ",
    "nsqdigest.toml:3: nsq.max_inflight: ",
    "nsqdigest.toml:6: policies.default.minimum_delay: ",
    "nsqdigest.toml:10: sinks.out.url: ",
    "nsqdigest.toml:14: routes[0].timeline: ",
    "nsqdigest.toml:15: routes[0].sink: ",
]


# -- help


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_every_command_and_what_to_try(shell: Shell, option: str) -> None:
    done = shell.run(option)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout
        assert f"nsqdigest {command}" in done.stdout


@pytest.mark.parametrize("words", [*((command,) for command in COMMANDS), *SUBCOMMANDS])
def test_the_help_of_a_command_shows_an_example(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.run(*words, "--help")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert f"Usage: nsqdigest {' '.join(words)}" in done.stdout
    assert "Example" in done.stdout
    assert f"\n    nsqdigest {' '.join(words)}" in done.stdout


@pytest.mark.parametrize("command", ["run", "check"])
def test_the_help_says_where_the_configuration_is_looked_for(shell: Shell, command: str) -> None:
    shown = " ".join(shell.run(command, "--help").stdout.split())
    assert "-c, --config FILE" in shown
    assert "NSQDIGEST_CONFIG, ./nsqdigest.toml, /etc/nsqdigest/nsqdigest.toml" in shown


def test_the_version_is_that_of_the_package(shell: Shell) -> None:
    done = shell.run("--version")
    assert (done.returncode, done.stdout) == (EXIT_OK, f"nsqdigest, version {nsqdigest.__version__}\n")


@pytest.mark.parametrize("words", [("bogus",), ("check", "--bogus"), ("check", "-c"), ("check", "one", "two")])
def test_wrong_usage_is_exit_code_2_and_says_what_is_wrong(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.run(*words)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert "Error: " in done.stderr


# -- check: a file that is fine


def test_a_file_that_is_fine_is_one_line_and_exit_code_0(shell: Shell) -> None:
    shell.write(SMALLEST)
    done = shell.run("check", "-c", "nsqdigest.toml")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert done.stdout == "nsqdigest.toml: ok: 1 route over 1 topic to 1 sink\n"


def test_fine_as_json(shell: Shell) -> None:
    shell.write(SMALLEST)
    done = shell.run("check", "-c", "nsqdigest.toml", "--json")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert json.loads(done.stdout) == {"ok": True, "problems": [], "warnings": []}


def test_a_warning_goes_to_stderr_and_is_no_problem(shell: Shell) -> None:
    shell.write(SMALLEST.replace("4150", "4151"))
    done = shell.run("check", "-c", "nsqdigest.toml")
    assert done.returncode == EXIT_OK
    assert done.stdout == "nsqdigest.toml: ok: 1 route over 1 topic to 1 sink\n"
    (line,) = done.stderr.splitlines()
    assert "warning" in line
    assert "nsqdigest.toml:2" in line
    assert len(json.loads(shell.run("check", "-c", "nsqdigest.toml", "--json").stdout)["warnings"]) == 1


def test_the_environment_may_override_a_value(shell: Shell) -> None:
    shell.write(SMALLEST)
    assert shell.run("check", NSQDIGEST__NSQ__MAX_IN_FLIGHT="500").returncode == EXIT_OK
    done = shell.run("check", NSQDIGEST__NSQ__MAX_IN_FLIGHT="many")
    assert done.returncode == EXIT_CONFIG
    assert "NSQDIGEST__NSQ__MAX_IN_FLIGHT" in done.stderr


# -- check: mistakes


@pytest.mark.parametrize("command", ["check", "doctor", "run"])
def test_six_mistakes_are_six_lines_in_one_answer(shell: Shell, command: str) -> None:
    shell.write(SIX_MISTAKES)
    done = shell.run(command, "-c", "nsqdigest.toml")
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    lines = done.stderr.splitlines()
    assert [line[: len(place)] for line, place in zip(lines, SIX_PLACES, strict=True)] == SIX_PLACES


def test_each_mistake_comes_with_the_remedy(shell: Shell) -> None:
    shell.write(SIX_MISTAKES)
    lines = shell.run("check").stderr.splitlines()
    ways_out = [
        "write one from 1 to 65535", 'did you mean "max_in_flight"?', 'write "5m"', "write https://", "write one like",
        'did you mean "out"?',
    ]  # fmt: skip
    assert [remedy in line for line, remedy in zip(lines, ways_out, strict=True)] == [True] * 6


def test_six_mistakes_as_json(shell: Shell) -> None:
    shell.write(SIX_MISTAKES)
    done = shell.run("check", "-c", "nsqdigest.toml", "--json")
    assert (done.returncode, done.stderr) == (EXIT_CONFIG, "")
    answer = json.loads(done.stdout)
    assert (answer["ok"], answer["warnings"]) == (False, [])
    lines = [
        f"{each['file']}:{each['line']}: {each['path']}: {each['problem']}; {each['remedy']}"
        for each in answer["problems"]
    ]
    assert lines == shell.run("check", "-c", "nsqdigest.toml").stderr.splitlines()


def test_advice_as_json_has_its_parts_too(shell: Shell) -> None:
    shell.write(SMALLEST.replace("4150", "4151"))
    (only,) = json.loads(shell.run("check", "--json").stdout)["warnings"]
    assert (only["file"], only["line"], only["path"]) == ("nsqdigest.toml", 2, "nsq.nsqd_tcp_addresses[0]")
    assert only["remedy"] == "the TCP port of most is 4150"


@pytest.mark.parametrize("command", ["check", "doctor", "audit", "run"])
def test_the_file_may_be_an_argument(shell: Shell, command: str) -> None:
    shell.write(SIX_MISTAKES, "mine.toml")
    done = shell.run(command, "mine.toml")
    assert done.returncode == EXIT_CONFIG
    assert len(done.stderr.splitlines()) == 6
    assert done.stderr.startswith("mine.toml:2: ")
    assert shell.run(command, "mine.toml", "-c", "mine.toml").returncode == EXIT_CONFIG
    both = shell.run(command, "mine.toml", "-c", "other.toml")
    assert (both.returncode, "two configurations" in both.stderr) == (2, True)


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_file_that_this_user_may_not_read_is_a_mistake_with_the_remedy(shell: Shell, command: str) -> None:
    shell.write(SMALLEST).chmod(0)
    # As root everything may be read, unless the right to is given away.
    words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if words and not shutil.which(words[0]):
        pytest.skip("root may read everything, and there is no setpriv to give that away")
    done = subprocess.run(
        [*words, PROGRAM, command, "-c", "nsqdigest.toml"], cwd=shell.folder, env=shell.environ,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        EXIT_CONFIG,
        "nsqdigest.toml: may not be read by this user; change its owner or its mode (chmod)\n",
    )


@pytest.mark.parametrize("command", ["check", "doctor", "run"])
def test_with_a_mistake_nothing_is_connected(shell: Shell, command: str) -> None:
    with socket.create_server((HOST, 0)) as nsqd, socket.create_server((HOST, 0)) as redis:
        ports = [server.getsockname()[1] for server in (nsqd, redis)]
        shell.write(
            SMALLEST.replace("4150", str(ports[0])).replace('"out"', '"otu"')
            + f'\n[redis]\nurl = "redis://{HOST}:{ports[1]}/0"\n'
        )
        assert shell.run(command).returncode == EXIT_CONFIG
        for server in (nsqd, redis):
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()


def test_check_connects_to_nothing_also_where_the_file_is_fine(shell: Shell) -> None:
    with socket.create_server((HOST, 0)) as nsqd:
        shell.write(SMALLEST.replace("4150", str(nsqd.getsockname()[1])))
        assert shell.run("check").returncode == EXIT_OK
        nsqd.setblocking(False)
        with pytest.raises(BlockingIOError):
            nsqd.accept()


@pytest.mark.parametrize(
    "text",
    [b"", b"not toml", b"[nsq]\nchannel = 'unfinished", b"\xff\xfe", b"[nsq]\nx = 1\nx = 2\n", b"\x00" * 100],
)
def test_a_file_that_can_not_be_read_is_a_mistake_of_the_file(shell: Shell, text: bytes) -> None:
    shell.write(text)
    done = shell.run("check", "-c", "nsqdigest.toml")
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    assert all(line.startswith("nsqdigest.toml") for line in done.stderr.splitlines())
    assert done.stderr


def test_a_secret_that_is_not_there_is_a_mistake_and_one_that_is_there_is_not_shown(shell: Shell) -> None:
    webhook = 'type = "webhook"\nurl = "https://example.com/hook"\nsecret = "env:HOOK_SECRET"'
    shell.write(SMALLEST.replace('type = "log"', webhook))
    done = shell.run("check")
    assert done.returncode == EXIT_CONFIG
    assert "HOOK_SECRET" in done.stderr
    done = shell.run("check", HOOK_SECRET="not a secret at all")
    assert done.returncode == EXIT_CONFIG
    assert "not a secret at all" not in done.stderr


# -- where the file is looked for


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_is_not_there_is_named(shell: Shell, name: str) -> None:
    done = shell.run("check", "-c", name)
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    assert done.stderr.startswith(f"{name}: ")


@pytest.mark.skipif(
    Path("/etc/nsqdigest/nsqdigest.toml").exists(), reason="this machine has a configuration for everyone"
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_without_a_configuration_it_says_where_it_looked(shell: Shell, command: str) -> None:
    done = shell.run(command)
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    (line,) = done.stderr.splitlines()
    for remedy in ("nsqdigest.toml", "/etc/nsqdigest/nsqdigest.toml", "-c FILE", "NSQDIGEST_CONFIG", "nsqdigest demo"):
        assert remedy in line


def test_the_folders_own_file_is_found(shell: Shell) -> None:
    shell.write(SMALLEST)
    assert shell.run("check").stdout.startswith("nsqdigest.toml: ok")


def test_the_environments_file_comes_before_the_folders(shell: Shell) -> None:
    shell.write(SIX_MISTAKES)
    shell.write(SMALLEST, "other/fine.toml")
    assert shell.run("check", NSQDIGEST_CONFIG="other/fine.toml").stdout.startswith("other/fine.toml: ok")


def test_the_named_file_comes_before_the_environments(shell: Shell) -> None:
    shell.write(SMALLEST)
    assert shell.run("check", "-c", "nsqdigest.toml", NSQDIGEST_CONFIG="missing.toml").returncode == EXIT_OK


@pytest.mark.parametrize(
    ("command", "hint"),
    [("chek", 'did you mean "check"?'), ("Doctor", 'did you mean "doctor"?'), ("xyz", "there are init, check, ")],
)
def test_a_command_mistyped_is_answered_with_the_nearest(shell: Shell, command: str, hint: str) -> None:
    done = shell.run(command)
    assert (done.returncode, f'there is no command "{command}"; {hint}' in done.stderr) == (2, True)


# -- starting quickly


def test_check_loads_nothing_that_only_the_daemon_needs(shell: Shell) -> None:
    shell.write(SMALLEST)
    code = (
        "import sys\nfrom nsqdigest.cli import cli\n"
        "cli(['check', '-c', 'nsqdigest.toml'], standalone_mode=False)\n"
        "print(sorted({'aiohttp', 'redis', 'hiredis', 'nsqdigest.daemon', 'nsqdigest.nsq'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=shell.folder, env=shell.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


# -- what the documentation names


def test_every_command_in_the_operators_page_exists(shell: Shell) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text("utf-8")
    named = set(re.findall(r"nsqdigest (dead [a-z]+|[a-z][a-z-]+)(?= |`)", page))
    assert len(named) >= 10
    for words in named:
        assert shell.run(*words.split(), "--help").returncode == EXIT_OK, words


# -- preview


def test_a_preview_is_the_body_that_would_be_posted_and_what_it_is_of_goes_to_stderr(shell: Shell) -> None:
    webhook = 'type = "webhook"\nurl = "https://example.com/x"\nbody = "file:m.j2"\nsecret = ""'
    shell.write(SMALLEST.replace('type = "log"', webhook))
    shell.write('{"text": "{{ data.total }} in {{ data.timeline }}: {{ data.records[0].value.mine }}"}', "m.j2")
    done = shell.run("preview", "--sample")
    assert (done.returncode, done.stdout) == (EXIT_OK, '{"text": "17 in 42: mine"}\n')
    assert done.stderr == "route events to sink out: application/json, 26 bytes; a sample, nothing is sent\n"
    (only,) = json.loads(shell.run("preview", "--sample", "--json").stdout)
    assert only == {
        "route": "events", "sink": "out", "content_type": "application/json", "body": done.stdout.rstrip(),
        "target": None,
    }  # fmt: skip


MAIL = """type = "email"
host = "smtp.example.com"
from = "Alerts <alerts@example.com>"
to = ["{email}", "ops@example.com"]"""


def test_the_preview_of_a_mail_is_a_file_that_mail_programs_open(shell: Shell) -> None:
    shell.write(SMALLEST.replace('type = "log"', MAIL))
    done = shell.run("preview", "--sample")
    assert done.returncode == EXIT_OK
    message = message_from_string(done.stdout, policy=policy.default)
    assert message["to"] == "someone@example.com, ops@example.com"
    assert message["subject"] == "17 events · 42: payment 1042 failed: card declined"
    assert message.get_content_type() == "multipart/alternative"
    assert "to sink out, to someone@example.com, ops@example.com: message/rfc822, " in done.stderr


def test_on_a_terminal_it_is_the_headers_and_the_text() -> None:
    content = b"Subject: =?utf-8?b?w6kbWzMxbQ==?=\r\nMIME-Version: 1.0\r\n\r\n17 events \x1b[31m\r\n"
    shown = for_terminal(content, "message/rfc822")
    assert shown == "Subject: é\\u001b[31m\n\n17 events \\u001b[31m"


def test_the_preview_of_a_digest_has_the_fields_that_the_route_names(shell: Shell) -> None:
    route = 'timeline = "user:{user.id}"\ngroup = "error.kind"\nmatch = {severity = ["error", "fatal"]}'
    shell.write(SMALLEST.replace('timeline = "{user}"', route))
    data = json.loads(shell.run("preview", "--sample", "--route", "events").stdout)["data"]
    assert (data["timeline"], data["total"]) == ("user:42", 17)
    assert {group["group"]: group["count"] for group in data["groups"]} == {"TimeoutError": 12, "CardDeclined": 5}
    value = data["groups"][0]["records"][0]["value"]
    assert (value["severity"], value["error"]) == ("error", {"kind": "TimeoutError"})


@pytest.mark.parametrize(
    ("words", "exit_code", "answer"),
    [
        ((), EXIT_USAGE, "name a timeline, or write --sample"),
        (("--sample", "user:42"), EXIT_USAGE, "name a timeline, or write --sample"),
        (("--sample", "--sink", "zebra"), EXIT_NO, 'there is no sink "zebra" in nsqdigest.toml; there is out'),
        (("--sample", "--route", "evnts"), EXIT_NO, 'no route "evnts" in nsqdigest.toml; did you mean "events"?'),
    ],
)
def test_a_preview_of_what_is_not_there_says_what_is(
    shell: Shell, words: tuple[str, ...], exit_code: int, answer: str
) -> None:
    shell.write(SMALLEST)
    done = shell.run("preview", *words)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert answer in done.stderr
