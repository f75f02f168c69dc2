"""`nsqdigest try`: where the events come from, which topic they are of, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from nsqdigest.base.errors import EXIT_CONFIG, EXIT_NO, EXIT_OK, EXIT_USAGE
from support.files import SMALLEST
from support.shell import PROGRAM, Shell
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.unit

GOOD, BAD = b'{"user": "ada"}\n', b'{"usr": "ada"}\n'
SECOND_TOPIC = '\n[[routes]]\ntopic = "alerts"\ntimeline = "{host}"\nsink = "out"\n'


def results(stdout: str) -> list[str]:
    return [each["result"] for each in json.loads(stdout)["events"]]


def usage_error(shell: Shell, *words: str, stdin: bytes = b"") -> str:
    done = shell.run("try", *words, stdin=stdin)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    return done.stderr.partition("Error: ")[2].strip()


@pytest.mark.parametrize("words", [(), ("-",), ("event.json",)])
def test_an_event_comes_from_stdin_or_from_a_file(shell: Shell, words: tuple[str, ...]) -> None:
    shell.write(SMALLEST)
    shell.write(GOOD, "event.json")
    done = shell.run("try", *words, stdin=GOOD)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert done.stdout.startswith("taken by 1 route\n  route     events\n  timeline  ada\n")


@pytest.mark.parametrize(
    ("stdin", "expected"),
    [(GOOD, ["taken"]), (BAD, ["dead-letter"]), (GOOD + BAD + GOOD, ["taken", "dead-letter", "taken"])],
)
def test_the_exit_code_is_1_where_one_event_is_a_dead_letter(shell: Shell, stdin: bytes, expected: list[str]) -> None:
    shell.write(SMALLEST)
    done = shell.run("try", "--json", stdin=stdin)
    assert (done.returncode, results(done.stdout)) == (EXIT_NO if BAD in stdin else EXIT_OK, expected)
    assert json.loads(done.stdout)["ok"] is (BAD not in stdin)
    assert shell.run("try", stdin=stdin).returncode == done.returncode


def test_and_where_no_route_takes_it(shell: Shell) -> None:
    shell.write(SMALLEST + 'match = {kind = "error"}\n')
    done = shell.run("try", stdin=GOOD)
    assert (done.returncode, done.stdout.splitlines()[1]) == (
        EXIT_NO,
        '  route     events: kind is not there; it takes "error"',
    )


def test_who_knows_better_says_what_a_line_is(shell: Shell) -> None:
    shell.write(SMALLEST)
    pretty = b'{\n"user": 1\n}\n'
    assert results(shell.run("try", "--json", stdin=pretty).stdout) == ["taken"]
    assert results(shell.run("try", "--json", "--lines", stdin=pretty).stdout) == ["dead-letter"] * 3
    assert results(shell.run("try", "--json", "--whole", stdin=GOOD + GOOD).stdout) == ["dead-letter"]


def test_of_several_topics_one_is_named(shell: Shell) -> None:
    shell.write(SMALLEST + SECOND_TOPIC)
    assert usage_error(shell, stdin=GOOD) == "the routes have 2 topics, alerts and events; name one with --topic"
    assert (
        usage_error(shell, "--topic", "evnts", stdin=GOOD) == 'no route has the topic "evnts"; did you mean "events"?'
    )
    assert usage_error(shell, "--topic", "x", stdin=GOOD) == 'no route has the topic "x"; there are alerts and events'
    assert shell.run("try", "--topic", "events", stdin=GOOD).returncode == EXIT_OK
    assert results(shell.run("try", "--topic", "alerts", "--json", stdin=GOOD).stdout) == ["dead-letter"]


@pytest.mark.parametrize(
    ("words", "stdin", "expected"),
    [
        ((), b"", 'there is no event in the input; write one like: echo \'{"user": "ada"}\' | nsqdigest try'),
        ((), b"\n \n", "there is no event in the input"),
        (("nsqdigest.toml",), b"", "nsqdigest.toml is no event; for the configuration write -c nsqdigest.toml"),
        (('{"user": 1}',), b"", "an event comes from a file or from stdin: echo '{…}' | nsqdigest try"),
        (("nowhere.json",), b"", "nowhere.json: there is no such file"),
        ((".",), b"", ".: Is a directory"),
        ((), b" " * (64 << 20) + b"{}", "the input is larger than 64 MiB; try a part of it: head -n 1000 FILE"),
    ],
)
def test_an_input_without_an_event_is_wrong_usage(
    shell: Shell, words: tuple[str, ...], stdin: bytes, expected: str
) -> None:
    shell.write(SMALLEST)
    assert usage_error(shell, *words, stdin=stdin).startswith(expected)


def test_mistakes_of_the_file_come_first(shell: Shell) -> None:
    shell.write(SMALLEST.replace('"out"', '"otu"'))
    done = shell.run("try", stdin=GOOD)
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    assert 'did you mean "out"?' in done.stderr


def test_no_secret_is_needed(shell: Shell) -> None:
    hook = 'type = "webhook"\nurl = "env:HOOK_URL"\nsecret = "file:hook.secret"'
    shell.write(SMALLEST.replace('type = "log"', hook) + '\n[redis]\nurl = "env:REDIS_URL"\n')
    assert shell.run("check").returncode == EXIT_CONFIG
    done = shell.run("try", stdin=GOOD)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")


def test_but_what_decides_about_events_is(shell: Shell) -> None:
    shell.write(SMALLEST + '\n[limits]\nevent = "env:LIMIT"\n')
    done = shell.run("try", stdin=GOOD)
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    assert done.stderr == 'nsqdigest.toml:13: limits.event: "env:LIMIT" is not at hand\n'
    assert shell.run("try", stdin=GOOD, LIMIT="64KiB").returncode == EXIT_OK


def test_an_output_that_cannot_show_a_character_gets_its_code(shell: Shell) -> None:
    shell.write(SMALLEST)
    done = shell.run("try", stdin='{"user": "é"}'.encode(), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout.splitlines()[2]) == (EXIT_OK, r"  timeline  \xe9")


def on_a_terminal(folder: Path, *words: str, columns: int, **environ: str) -> str:
    """The output of a command on a terminal of so many columns; its input is empty there."""
    terminal, other_end = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NSQDIGEST")} | environ
    environ |= {"COLUMNS": str(columns), "TERM": "xterm"}
    process = subprocess.Popen([PROGRAM, *words], cwd=folder, env=environ, stdin=other_end, stdout=other_end)
    os.close(other_end)
    shown = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        shown += data
    os.close(terminal)
    process.wait(PATIENCE_S)
    return shown.decode()


def test_who_types_an_event_is_told_how_it_ends(shell: Shell) -> None:
    shell.write(SMALLEST)
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "try", "--json"], cwd=shell.folder, env=shell.environ, stdin=other_end, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(other_end)
    os.write(terminal, GOOD + b"\x04")
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    os.close(terminal)
    assert (stderr, results(stdout)) == ("Type or paste an event; Ctrl-D ends it.\n", ["taken"])


@pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
def test_on_a_terminal_lines_are_wrapped_and_coloured(shell: Shell, no_color: str, is_coloured: bool) -> None:
    shell.write(SMALLEST)
    shell.write(GOOD + BAD, "events.jsonl")
    shown = on_a_terminal(shell.folder, "try", "events.jsonl", columns=60, NO_COLOR=no_color)
    rows = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert "line 1: taken by 1 route" in rows
    assert max(map(len, rows)) <= 60
    assert ("\x1b" in shown) is is_coloured


def test_a_pipe_that_is_closed_early_is_no_mistake(shell: Shell) -> None:
    shell.write(SMALLEST)
    shell.write(GOOD * 5_000, "events.jsonl")
    done = subprocess.run(
        f"'{PROGRAM}' try events.jsonl | head -n 1", shell=True, cwd=shell.folder, env=shell.environ,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("line 1: taken by 1 route\n", "")


HOOK = (
    '\n[sinks.hook]\ntype = "webhook"\nurl = "https://{tenant}.example.com/s3cret/{user}"\n[[routes]]\nname = "hooks"\n'
)
HOOK += 'topic = "events"\ntimeline = "{user}"\nsink = "hook"\n'


def test_where_a_digest_of_it_would_go_is_shown_without_the_path_of_the_file(shell: Shell) -> None:
    shell.write(SMALLEST + HOOK)
    done = shell.run("try", stdin=b'{"user": "a/b", "tenant": "acme"}')
    assert done.returncode == EXIT_OK
    assert "  target    https://acme.example.com/… ({user} = a%2Fb)\n" in done.stdout
    assert "s3cret" not in done.stdout


def test_an_event_whose_digest_would_go_nowhere_is_a_no(shell: Shell) -> None:
    shell.write(SMALLEST + HOOK)
    done = shell.run("try", stdin=GOOD)
    assert done.returncode == EXIT_NO
    assert "dead letter: no-target" in done.stdout
    (event,) = json.loads(shell.run("try", "--json", stdin=GOOD).stdout)["events"]
    (first,) = event["routes"]
    assert (first["target"], first["no_target"]) == (None, None)
    assert event["dead_letter"]["reason"] == "no-target"
    assert event["dead_letter"]["detail"].endswith(': url: the field "tenant" is not there')
