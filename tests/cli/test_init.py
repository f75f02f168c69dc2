"""`nsqdigest init`: a file to begin with, which overwrites nothing and is right as it is."""

from __future__ import annotations

import re
import stat

import pytest

from nsqdigest.base.errors import EXIT_NO, EXIT_OK
from nsqdigest.config import ConfigError, example, parse_text, starter
from nsqdigest.config.toml_lines import locate
from nsqdigest.delivery.sinks.table import KINDS
from support.shell import Shell

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("words", [(), ("mine.toml",), ("--all",), ("--all", "my folder.toml")])
def test_what_it_writes_passes_check_and_takes_the_event_that_it_names(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.run("init", *words)
    name = next((word for word in words if word.endswith(".toml")), "nsqdigest.toml")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    rows = done.stdout.splitlines()
    assert rows[0] == f"{name} is written. Next:"
    argument = {"nsqdigest.toml": "", "mine.toml": " mine.toml", "my folder.toml": " 'my folder.toml'"}[name]
    for command in ("check", "doctor", "run"):
        assert any(row.endswith(f"  nsqdigest {command}{argument}") for row in rows)
    assert any(row.endswith(f"| nsqdigest try{argument and f' -c{argument}'}") for row in rows)
    assert max(map(len, rows)) <= 80
    assert shell.run("check", name).stdout.startswith(f"{name}: ok: 1 route over 1 topic to ")
    assert shell.run("try", "-c", name, stdin=b'{"user": "ada"}').returncode == EXIT_OK
    assert stat.S_IMODE((shell.folder / name).stat().st_mode) & 0o027 == 0, "others may not read it"


def test_of_the_short_one_check_has_nothing_to_advise(shell: Shell) -> None:
    shell.run("init")
    assert shell.run("check").stderr == ""


def test_a_file_that_is_there_stays_as_it_is(shell: Shell) -> None:
    shell.write("mine")
    done = shell.run("init")
    assert (done.returncode, done.stdout) == (EXIT_NO, "")
    assert done.stderr == (
        "nsqdigest: nsqdigest.toml is there already, and stays as it is; "
        "move it away, name another, or print one: nsqdigest init -\n"
    )
    assert (shell.folder / "nsqdigest.toml").read_text("utf-8") == "mine"


def test_nor_does_it_follow_a_link_that_leads_nowhere(shell: Shell) -> None:
    (shell.folder / "nsqdigest.toml").symlink_to(shell.folder / "elsewhere.toml")
    assert shell.run("init").returncode == EXIT_NO
    assert not (shell.folder / "elsewhere.toml").exists()


@pytest.mark.parametrize("name", ["nowhere/x.toml", "."])
def test_where_it_cannot_write_it_says_so(shell: Shell, name: str) -> None:
    done = shell.run("init", name)
    assert (done.returncode, done.stdout) == (EXIT_NO, "")
    assert re.match(rf"nsqdigest: {re.escape(name)} (cannot be written: |is there already)", done.stderr)


@pytest.mark.parametrize(("words", "text"), [((), starter.text(KINDS)), (("--all",), example.text(KINDS))])
def test_to_stdout_it_is_the_file_alone(shell: Shell, words: tuple[str, ...], text: str) -> None:
    done = shell.run("init", *words, "-")
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_OK, text, "")
    assert list(shell.folder.iterdir()) == []


# -- the file

SHOWN = [row[2:] for row in starter.text(KINDS).splitlines() if re.match(r"# (?:\[|[a-z_]+ = )", row)]


def test_every_option_that_it_shows_may_be_taken_as_it_stands() -> None:
    text = starter.text(KINDS)
    for row in SHOWN:
        text = text.replace(f"# {row}\n", f"{row}\n")
    config = parse_text(text, "f.toml", {"HOOK_SECRET": "whsec_" + "A" * 44, "NSQDIGEST_TOKEN": "x" * 16}, KINDS)
    assert [warning.path for warning in config.warnings] == ["sinks.hook"], "which no route names yet"
    assert len(locate(text)) > len(locate(starter.text(KINDS))) + 20


@pytest.mark.parametrize("row", [row for row in SHOWN if "=" in row and "env:" not in row])
def test_each_option_that_it_shows_stands_in_its_table(row: str) -> None:
    """One alone, without those around it (of the webhook all, since a sink needs a type)."""
    text = starter.text(KINDS)
    wanted = SHOWN if row in _of_webhook() else [row]
    for each in wanted:
        text = text.replace(f"# {each}\n", f"{each}\n", 1)
    try:
        parse_text(text, "f.toml", {"HOOK_SECRET": "whsec_" + "A" * 44, "NSQDIGEST_TOKEN": "x" * 16}, KINDS)
    except ConfigError as error:
        pytest.fail(str(error))


def _of_webhook() -> list[str]:
    start = next(number for number, row in enumerate(SHOWN) if row.startswith("[sinks.hook]"))
    return SHOWN[start : start + 6]


def test_no_line_of_prose_is_wider_than_the_code() -> None:
    assert all(len(row) <= 120 for row in starter.text(KINDS).splitlines() if not re.match(r"# [a-z_]+ = ", row))
