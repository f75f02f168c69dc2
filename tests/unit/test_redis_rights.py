"""docs/redis.md gives the daemon's user every command that it sends, in scripts and beside them, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import nsqdigest
from nsqdigest.doctor.rights import ALL_RIGHTS, right_of
from support.stores import rights

PACKAGE = Path(nsqdigest.__file__).parent
# Asked of Sentinels, or only where it may be.
ELSEWHERE = {"sentinel", "config"}
# Sent by the driver when it connects.
CONNECTING = {"select", "client"}


def called_by_scripts() -> set[str]:
    texts = [path.read_text("utf-8") for path in PACKAGE.joinpath("lua").rglob("*.lua")]
    return {name.lower() for text in texts for name in re.findall(r"call\('([A-Z]+)'", text)}


def sent_beside_them() -> set[str]:
    texts = [path.read_text("utf-8") for path in PACKAGE.glob("*.py")]
    return {name.lower() for text in texts for name in re.findall(r'\[b"([A-Z]+)"[,\]]', text)}


def test_every_command_that_is_sent_is_given() -> None:
    given = {word.lstrip("+").partition("|")[0] for word in rights() if word.startswith("+")}
    assert (called_by_scripts() | sent_beside_them()) - ELSEWHERE - given == set()
    assert given - CONNECTING - called_by_scripts() - sent_beside_them() == set()


def test_the_doctor_asks_about_each_of_them() -> None:
    assert sorted(f"+{right_of(command)}" for command in ALL_RIGHTS) == sorted(w for w in rights() if w.startswith("+"))


def test_they_are_for_the_keys_of_the_namespace_alone() -> None:
    assert [word for word in rights() if word.startswith("~")] == ["~{nsqdigest:*"]
    assert not [word for word in rights() if word.startswith(("+@", "allkeys", "allcommands"))]
