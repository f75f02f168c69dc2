"""docs/redis.md gives the daemon's user every command that it sends, in scripts and beside them, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nsqdigest
from nsqdigest.store.servers.rights import ALL_RIGHTS, Rights, right_of
from support.stores import redis_settings, rights

pytestmark = pytest.mark.unit

PACKAGE = Path(nsqdigest.__file__).parent
# Asked of Sentinels, or only where it may be.
ELSEWHERE = {"sentinel", "config"}
# Sent by the driver when it connects.
CONNECTING = {"select", "client"}


def called_by_scripts() -> set[str]:
    texts = [path.read_text("utf-8") for path in PACKAGE.joinpath("lua").rglob("*.lua")]
    return {name.lower() for text in texts for name in re.findall(r"call\('([A-Z]+)'", text)}


def sent_beside_them() -> set[str]:
    texts = [path.read_text("utf-8") for path in PACKAGE.joinpath("store").rglob("*.py")]
    return {name.lower() for text in texts for name in re.findall(r'\[b"([A-Z]+)"[,\]]', text)}


def test_every_command_that_is_sent_is_given() -> None:
    given = {word.lstrip("+").partition("|")[0] for word in rights() if word.startswith("+")}
    assert (called_by_scripts() | sent_beside_them()) - ELSEWHERE - given == set()
    assert given - CONNECTING - called_by_scripts() - sent_beside_them() == set()


def test_the_daemon_and_the_doctor_ask_about_each_of_them() -> None:
    assert sorted(f"+{right_of(command)}" for command in ALL_RIGHTS) == sorted(w for w in rights() if w.startswith("+"))


def test_they_are_for_the_keys_of_the_namespace_alone() -> None:
    assert [word for word in rights() if word.startswith("~")] == ["~{nsqdigest:*"]
    assert not [word for word in rights() if word.startswith(("+@", "allkeys", "allcommands"))]


def test_what_is_not_used_is_not_needed() -> None:
    needed = Rights.needed_by(redis_settings("redis://h:6379/0"))
    assert not {right_of(command) for command in needed.commands} & {"wait", "asking", "cluster|slots", "select"}
    assert needed.user == "default"


def test_what_the_url_and_the_durability_ask_for_is_needed() -> None:
    cluster = Rights.needed_by(redis_settings("redis+cluster://u%40:p@h:6379", durability="replica"))
    single = Rights.needed_by(redis_settings("redis://u%40:p@h:6379/1"))
    assert {*cluster.commands, *single.commands} == set(ALL_RIGHTS)
    assert cluster.user == single.user == "u@"
