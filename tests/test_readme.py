"""README.md is true: its commands and its file run as they stand there, its digest is what comes out, its links lead
somewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from nsqdigest.base.errors import EXIT_OK
from nsqdigest.config import parse_text
from nsqdigest.delivery.bodies.terminal import lines_of
from nsqdigest.delivery.sinks.table import KINDS
from support.files import SMALLEST
from support.keeper import kept
from support.ports import HOST, free_port
from support.servers import Nsqd, RedisServer
from support.shell import PROGRAM, Shell
from support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
START = README.partition("## The first digest in three minutes\n")[2].partition("\n## ")[0]
LINKS = sorted(set(re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)))
MOST_LINES = 175


def block(begin: str) -> str:
    """The fenced block behind a text."""
    found = re.search(rf"{re.escape(begin)}\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def commands() -> list[str]:
    return re.findall(r"^    (\S.*)$", START, re.MULTILINE)


SIX_LINES = block("The smallest configuration, six lines of TOML:\n")
DIGEST = block("<!-- as JSON -->")
ON_A_TERMINAL = block("<!-- on a terminal -->")
EVENT = {"user": "ada", "what": "login failed"}
MINIMUM_DELAY_S = 5 * 60


# -- what it shows


@pytest.mark.unit
def test_the_smallest_configuration_has_six_lines_and_is_that_of_the_contract() -> None:
    assert len(SIX_LINES.splitlines()) == 6
    of_readme, of_contract = (parse_text(text, "x.toml", {}, KINDS) for text in (SIX_LINES, SMALLEST))
    assert of_readme == of_contract
    assert not of_readme.warnings


def assert_agrees_with_itself(document: dict[str, Any]) -> None:
    """One event that went out at once, under the default policy."""
    data = document["data"]
    (record,) = data["records"]
    opened_ms = round(datetime.fromisoformat(document["timestamp"]).timestamp() * 1000)
    next_ms = round(datetime.fromisoformat(data["next_earliest"]).timestamp() * 1000)
    assert data["first"] == data["last"] == record["timestamp"]
    assert data["total"] == data["shown"] == data["iteration"] == 1
    assert opened_ms - 60_000 < record["timestamp"] <= opened_ms
    assert abs(next_ms - opened_ms - MINIMUM_DELAY_S * 1000) < 2_000
    identity = UUID(data["id"])
    assert identity.version == 7
    assert abs((identity.int >> 80) - opened_ms) < 2_000
    message_id, instant_ns = record["key"].split("-")
    assert re.fullmatch("[0-9a-f]{16}", message_id)
    assert int(instant_ns) // 1_000_000 == record["timestamp"]
    assert record["value"] == EVENT


def shape(value: Any, name: str = "") -> Any:
    """The same with what differs from run to run left out."""
    if isinstance(value, dict):
        return {key: shape(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return type(value) if name in ("id", "first", "last", "timestamp", "key", "next_earliest") else value


@pytest.mark.unit
def test_its_digest_agrees_with_itself() -> None:
    assert_agrees_with_itself(json.loads(DIGEST))


@pytest.mark.unit
def test_its_digest_on_a_terminal_is_the_same_one() -> None:
    assert "\n".join(lines_of(DIGEST.encode(), colour=False, width=80)).strip() == ON_A_TERMINAL.strip()


# -- what it tells to do


@pytest.mark.integration
def test_its_commands_end_in_the_digest_that_it_shows(nsqd: Nsqd, redis_server: RedisServer, tmp_path: Path) -> None:
    starts_nsqd, starts_redis, *ours, publishes = commands()
    assert [starts_nsqd.split()[0], starts_redis.split()[0]] == ["nsqd", "redis-server"]
    assert ours == ["nsqdigest init", "nsqdigest check", "nsqdigest run"]
    tcp, http = nsqd.ports[:2]
    # Everything as it stands there, but on the ports of these servers.
    shell = Shell(tmp_path)
    shell.environ |= {
        "NSQDIGEST__NSQ__NSQD_TCP_ADDRESSES": f"{HOST}:{tcp}",
        "NSQDIGEST__REDIS__URL": redis_server.url,
        "NSQDIGEST__ADMIN__LISTEN": f"{HOST}:{free_port()}",
    }
    for command in ours[:-1]:
        assert shell.run(*shlex.split(command)[1:]).returncode == EXIT_OK
    out = tmp_path / "out.txt"
    with out.open("wb") as stream:
        daemon = kept(subprocess.Popen(
            [PROGRAM, *shlex.split(ours[-1])[1:]], cwd=tmp_path, env=shell.environ, stdout=stream,
            stderr=subprocess.DEVNULL,
        ))  # fmt: skip
    try:
        subprocess.run(
            shlex.split(publishes.replace("127.0.0.1:4151", f"{HOST}:{http}")), check=True, capture_output=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        wait_until(lambda: out.read_bytes().endswith(b"\n"), PATIENCE_S, "the digest")
        document = json.loads(out.read_text("utf-8"))
        assert_agrees_with_itself(document)
        assert shape(document) == shape(json.loads(DIGEST))
    finally:
        daemon.terminate()
        assert daemon.wait() == EXIT_OK


@pytest.mark.unit
@pytest.mark.parametrize("row", re.findall(r"^\|.*\| (`nsqdigest .*`) \|$", README, re.MULTILINE))
def test_a_command_that_it_names_exists(tmp_path: Path, row: str) -> None:
    for command in re.findall(r"`nsqdigest ([^`]*)`", row):
        words = command.partition(" <")[0].split()
        groups = 2 if words[0] == "dead" else 1
        done = Shell(tmp_path).run(*words[:groups], "--help")
        assert done.returncode == EXIT_OK
        assert all(word in done.stdout for word in words[groups:] if word.startswith("--"))


# -- how it looks elsewhere


@pytest.mark.unit
@pytest.mark.parametrize("link", [link for link in LINKS if not link.startswith("https://")])
def test_a_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / link).is_file()


@pytest.mark.unit
def test_it_is_short_and_needs_no_markup_that_a_package_index_takes_away() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    without_code = re.sub(r"```.*?```|`[^`]*`|^    .*$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"<(?!!--)[^>]*>", without_code) == []
