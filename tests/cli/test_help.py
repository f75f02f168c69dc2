"""`help`, `completion`, and what is mistyped on the command line."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from nsqdigest.base.errors import EXIT_OK, EXIT_USAGE
from support.files import SMALLEST
from support.shell import PROGRAM, Shell
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.unit

COMMANDS = ("init", "check", "try", "doctor", "run", "audit", "pause", "resume", "demo", "completion", "help")


def usage_error(shell: Shell, *words: str) -> str:
    done = shell.run(*words)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    return done.stderr.partition("Error: ")[2].strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_what_its_option_shows(shell: Shell, command: str) -> None:
    done = shell.run("help", command)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert done.stdout == shell.run(command, "--help").stdout


def test_help_alone_is_that_of_all(shell: Shell) -> None:
    assert shell.run("help").stdout == shell.run("--help").stdout


@pytest.mark.parametrize("words", [("--help",), *((command, "--help") for command in COMMANDS)])
def test_no_line_of_help_is_wider_than_a_terminal(shell: Shell, words: tuple[str, ...]) -> None:
    rows = shell.run(*words, COLUMNS="80").stdout.splitlines()
    assert max(map(len, rows)) <= 80
    assert not any(row.endswith("...") for row in rows[1:]), "cut off"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("help", "chekc"), 'there is no command "chekc"; did you mean "check"?'),
        (("cofnig",), 'there is no command "cofnig"; there are init, check, try, preview, '),
        (("version",), 'there is no command "version"; write `nsqdigest --version`'),
        (("start",), 'there is no command "start"; did you mean "run"?'),
        (("-c", "x.toml", "check"), "options stand behind the command: nsqdigest COMMAND -c FILE"),
        (("--cofnig", "x.toml"), "options stand behind the command: nsqdigest COMMAND --config FILE"),
        (("--jsn", "check"), "options stand behind the command: nsqdigest COMMAND --json"),
        (("pause",), "name what to pause: nsqdigest pause topic|route|sink NAME"),
        (("pause", "topic"), "name the topic: nsqdigest pause topic alerts|events"),
        (("resume", "sink"), "name the sink: nsqdigest resume sink out"),
        (
            ("pause", "events"),
            '"events" is a topic and a route of nsqdigest.toml; write nsqdigest pause topic events',
        ),
        (("pause", "out"), '"out" is a sink of nsqdigest.toml; write nsqdigest pause sink out'),
        (
            ("pause", "topik", "events"),
            '"topik" is neither topic, route nor sink; did you mean nsqdigest pause topic events?',
        ),
        (("resume", "sinks"), '"sinks" is neither topic, route nor sink; did you mean nsqdigest resume sink NAME?'),
        (("pause", "evnets"), '"evnets" is neither topic, route nor sink; did you mean nsqdigest pause route events?'),
        (("pause", "x"), '"x" is neither topic, route nor sink; write nsqdigest pause topic|route|sink NAME'),
    ],
)
def test_what_is_mistyped_is_answered_with_what_is_meant(shell: Shell, words: tuple[str, ...], expected: str) -> None:
    shell.write(SMALLEST + '\n[[routes]]\nname = "loud"\ntopic = "alerts"\ntimeline = "{user}"\nsink = "out"\n')
    assert usage_error(shell, *words).startswith(expected)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--bogus",), "--bogus"),
        (("check", "--jsn"), "--json"),
        (("check", "--no-secret"), "--no-secrets"),
        (("try", "--topik", "x"), "--topic"),
        (("completion", "tcsh"), "'bash', 'zsh', 'fish'"),
    ],
)
def test_what_click_says_of_an_option_or_a_word_names_what_is_meant(
    shell: Shell, words: tuple[str, ...], meant: str
) -> None:
    assert meant in usage_error(shell, *words)


def test_a_file_mistyped_is_answered_with_the_nearest_beside_it(shell: Shell) -> None:
    shell.write(SMALLEST)
    assert shell.run("check", "nsqdigst.toml").stderr == (
        "nsqdigst.toml: there is no such file; did you mean nsqdigest.toml?\n"
    )
    assert shell.run("check", "prod.toml").stderr == (
        "prod.toml: there is no such file; name another, or write one with `nsqdigest init prod.toml`\n"
    )


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_by_either_option(shell: Shell, option: str) -> None:
    assert shell.run(option).stdout.startswith("nsqdigest, version ")


# -- completion


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_what_that_shell_reads(shell: Shell, name: str) -> None:
    done = shell.run("completion", name)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert f"_NSQDIGEST_COMPLETE={name}_complete" in done.stdout
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"there is no {name} on this machine")
    subprocess.run([program, "-n"], input=done.stdout, text=True, timeout=PATIENCE_S, check=True)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("ch",), ["check"]),
        (("check", "--no"), ["--no-secrets"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("help", "do"), ["doctor"]),
        (("pause", ""), ["topic", "route", "sink"]),
        (("pause", "route", "e"), ["events"]),
        (("pause", "-c", "nowhere.toml", "route", ""), []),
    ],
)
def test_bash_completes_commands_options_and_words(shell: Shell, typed: tuple[str, ...], expected: list[str]) -> None:
    shell.write(SMALLEST)
    words = " ".join(f"'{word}'" for word in ("nsqdigest", *typed))
    script = (
        f'eval "$(nsqdigest completion bash)"; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; '
        '_nsqdigest_completion nsqdigest; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{PROGRAM.parent}{os.pathsep}{shell.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=shell.folder, env=shell.environ | {"PATH": path},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.stdout.split() == expected
