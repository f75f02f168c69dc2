"""scripts.py: how scripts are put together, where their errors lie, and what each answer of Redis means."""

from __future__ import annotations

import hashlib
import itertools
import re
from importlib import resources
from pathlib import Path

import pytest
from redis import exceptions as errors

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.store import scripts
from nsqdigest.store.servers.translation import translate

pytestmark = pytest.mark.unit

NAMES = [
    "add", "adopt", "audit", "bring_back", "census", "check_in", "claim", "delete", "drop_dead", "finish", "flush",
    "hello", "hold", "maintenance", "mend", "open", "recount", "renew", "rescore", "revive", "rights", "turn",
]  # fmt: skip
LUA = resources.files("nsqdigest") / "lua"


def lines_of(file: str) -> list[str]:
    return (LUA / file).read_text("utf-8").splitlines()


# -- loading


def test_these_are_all_scripts_there_are() -> None:
    assert scripts.names() == NAMES


def test_a_script_stands_in_the_folder_of_its_side_and_no_two_share_a_name() -> None:
    folders = [folder for folder in LUA.iterdir() if folder.is_dir() and folder.name != "lib"]
    there = sorted(f"{folder.name}/{file.name}" for folder in folders for file in folder.iterdir())
    assert there == sorted(scripts.files().values())
    assert [entry.name for entry in LUA.iterdir() if entry.is_file()] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_that_of_the_file_it_is_said_to_come_from(name: str) -> None:
    script = scripts.load(name)
    lines = script.text.decode().split("\n")
    assert len(lines) == len(script.origin)
    for line, (file, number) in zip(lines, script.origin, strict=True):
        assert line == lines_of(file)[number - 1]


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_its_file_is_there_but_the_includes(name: str) -> None:
    own = [number for file, number in scripts.load(name).origin if file == scripts.files()[name]]
    left_out = set(range(1, len(lines_of(scripts.files()[name])) + 1)) - set(own)
    assert all("@include" in lines_of(scripts.files()[name])[number - 1] for number in left_out)
    assert "@include" not in scripts.load(name).text.decode()


def test_an_include_stands_where_it_was_asked_for_once_with_what_it_needs_itself_before_it() -> None:
    files = [file for file, _ in scripts.load("open").origin]
    assert list(dict.fromkeys(files)) == [
        "delivery/open.lua",
        "lib/route_keys.lua",
        "lib/now.lua",
        "lib/move.lua",
        "lib/union.lua",
        "lib/records.lua",
        "lib/bytes.lua",
        "lib/schedule.lua",
        "lib/ledger.lua",
        "lib/head.lua",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_hash_is_that_of_the_text_and_of_nothing_else(name: str) -> None:
    script = scripts.load(name)
    assert script.sha == hashlib.sha1(script.text, usedforsecurity=False).hexdigest().encode()
    scripts.load.cache_clear()
    assert scripts.load(name) == script


@pytest.mark.parametrize("name", NAMES)
def test_every_script_opens_with_what_it_does_takes_answers_and_leaves_behind(name: str) -> None:
    header = list(itertools.takewhile(lambda line: line.startswith("--"), lines_of(scripts.files()[name])))
    assert re.match(rf"-- {name}[:,] ", header[0])
    chapters = [word for line in header if (word := line[3:].partition(" ")[0]).isupper() and len(word) > 3]
    assert chapters == ["KEYS", "ARGV", "RETURNS", "ERRORS", "EFFECT"]


def test_no_line_of_lua_is_longer_than_120_columns() -> None:
    files = sorted(Path(scripts.__file__).parents[1].glob("lua/*/*.lua"))
    too_long = [(file.name, line) for file in files for line in file.read_text("utf-8").splitlines() if len(line) > 120]
    assert files
    assert too_long == []


def test_no_two_scripts_have_one_hash() -> None:
    assert len({scripts.load(name).sha for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_script_searches_draws_or_swallows(name: str) -> None:
    text = re.sub(r"--.*", "", scripts.load(name).text.decode())
    # Looks before the first write: of what has another type, its error.
    text = re.sub(r"redis\.pcall\((command|'(ZCARD|HLEN)'), ", "", text)
    forbidden = re.compile(
        r"\b(pcall|xpcall|random|loadstring)\b|'(KEYS|SCAN|[HSZ]SCAN|EXPIRE|DEL|FLUSH\w+)'", re.IGNORECASE
    )
    pages = [("", "HSCAN")] if name == "maintenance" else []  # of one hash that it declares
    assert forbidden.findall(text) == pages


# -- where an error lies


@pytest.mark.parametrize(
    "frame", ["user_script:{}", "@user_script:{}", "f_0123456789abcdef0123456789abcdef01234567:{}"]
)
def test_a_line_of_an_error_becomes_that_of_our_file(frame: str) -> None:
    script = scripts.load("finish")
    position = next(n for n, (file, _) in enumerate(script.origin, 1) if file == "lib/ledger.lua")
    last = len(script.origin)
    said = script.locate(f"ERR {frame.format(position)}: boom, on {frame.format(last)}.")
    assert "lua/lib/ledger.lua:1: boom" in said
    assert f"lua/delivery/finish.lua:{len(lines_of('delivery/finish.lua'))}." in said


@pytest.mark.parametrize("text", ["user_script:0: x", "user_script:99999: x", "line 3 of something", ""])
def test_what_names_no_line_of_ours_is_left_as_it_is(text: str) -> None:
    assert scripts.load("finish").locate(text) == text


# -- what an error means

NO, AMBIGUOUS = Applied.NO, Applied.AMBIGUOUS
ERRORS: list[tuple[Exception, str, Applied]] = [
    # What may have been done: the answer did not come, or nobody knows what it means.
    (errors.TimeoutError("Timeout reading from socket"), "redis-timeout", AMBIGUOUS),
    (TimeoutError(), "redis-timeout", AMBIGUOUS),
    (errors.ConnectionError("Connection closed by server."), "redis-connection", AMBIGUOUS),
    (ConnectionResetError(104, "Connection reset by peer"), "redis-connection", AMBIGUOUS),
    (BrokenPipeError(32, "Broken pipe"), "redis-connection", AMBIGUOUS),
    (errors.InvalidResponse("Protocol error"), "redis-protocol", AMBIGUOUS),
    (AttributeError("'NoneType' object has no attribute '_add_writer'"), "redis-unknown", AMBIGUOUS),
    (RuntimeError("?"), "redis-unknown", AMBIGUOUS),
    (errors.ResponseError("BUSYKEY Target key name already exists."), "redis-unknown", AMBIGUOUS),
    (errors.ResponseError("UNHEARDOF of"), "redis-unknown", AMBIGUOUS),
    (errors.ResponseError("UNKILLABLE Sorry the script already executed write commands"), "redis-unknown", AMBIGUOUS),
    (errors.ResponseError(""), "redis-unknown", AMBIGUOUS),
    # Errors from within a script: what it wrote before stays written.
    (errors.ResponseError("WRONGTYPE Operation against a key"), "redis-script", AMBIGUOUS),
    (errors.ResponseError("ERR user_script:3: attempt to index a nil value"), "redis-script", AMBIGUOUS),
    (
        errors.ResponseError("ERR Script attempted to access a non local key in a cluster node"),
        "redis-slots",
        AMBIGUOUS,
    ),
    (
        errors.ResponseError("ERR Script attempted to access keys that do not hash to the same slot"),
        "redis-slots",
        AMBIGUOUS,
    ),
    (errors.ResponseError("The user executing the script can't run this command"), "redis-auth", AMBIGUOUS),
    (errors.NoPermissionError("ACL failure in script: User daemon has no permissions"), "redis-auth", AMBIGUOUS),
    # Refused before anything was written.
    (errors.MaxConnectionsError("Too many connections"), "redis-connections", NO),
    (errors.ConnectionError("No connection available."), "redis-connections", NO),
    (errors.ConnectionError("max number of clients reached"), "redis-connections", NO),
    (errors.ResponseError("ERR Error running script … Script killed by user with SCRIPT KILL"), "redis-killed", NO),
    (errors.MovedError("5 127.0.0.1:6379"), "redis-moved", NO),
    (errors.AskError("5 127.0.0.1:6379"), "redis-moved", NO),
    (errors.ClusterCrossSlotError("Keys in request don't hash to the same slot"), "redis-slots", NO),
    (errors.OutOfMemoryError("used memory > 'maxmemory'.", status_code="OOM"), "redis-full", NO),
    (
        errors.ReadOnlyError("You can't write against a read only replica.", status_code="READONLY"),
        "redis-readonly",
        NO,
    ),
    (errors.NoScriptError("No matching script.", status_code="NOSCRIPT"), "redis-noscript", NO),
    (errors.BusyLoadingError("Redis is loading the dataset in memory", status_code="LOADING"), "redis-loading", NO),
    (errors.MasterDownError("Link with MASTER is down", status_code="MASTERDOWN"), "redis-masterdown", NO),
    (errors.ClusterDownError("CLUSTERDOWN Hash slot not served"), "redis-clusterdown", NO),
    (errors.TryAgainError("TRYAGAIN Multiple keys request during rehashing"), "redis-tryagain", NO),
    (errors.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "redis-misconf", NO),
    (errors.ResponseError("NOREPLICAS Not enough good replicas to write."), "redis-noreplicas", NO),
    (errors.ResponseError("BUSY Redis is busy running a script."), "redis-busy", NO),
    (errors.AuthenticationError("Authentication required.", status_code="NOAUTH"), "redis-auth", NO),
    (errors.AuthenticationError("invalid username-password pair", status_code="WRONGPASS"), "redis-auth", NO),
    (errors.NoPermissionError("this user has no permissions", status_code="NOPERM"), "redis-auth", NO),
    # Redis 6.2 wraps what a command inside a script was refused for.
    (errors.ResponseError("ERR Error running script: @user_script:1: -OOM command not allowed"), "redis-full", NO),
    (errors.ResponseError("ERR Error running script: @user_script: 1: -READONLY You can't"), "redis-readonly", NO),
    (errors.ResponseError("ERR Error running script: @user_script:1: -MISCONF Redis is"), "redis-misconf", NO),
]


@pytest.mark.parametrize(("error", "reason", "applied"), ERRORS, ids=lambda value: str(value)[:40])
def test_what_comes_out_of_a_call_has_a_reason(error: Exception, reason: str, applied: Applied) -> None:
    translated = translate(error, scripts.load("add"))
    assert (translated.reason, translated.applied) == (reason, applied)


def test_the_detail_names_the_script_and_the_line() -> None:
    error = errors.ResponseError("ERR user_script:1: boom")
    assert str(translate(error, scripts.load("add"))) == "redis-script: add: ERR lua/intake/add.lua:1: boom"


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errors.OutOfMemoryError("", status_code="OOM"), "maxmemory"),
        (errors.ReadOnlyError("", status_code="READONLY"), "primary"),
        (errors.ResponseError("MISCONF"), "its log"),
        (errors.AuthenticationError("NOAUTH"), "write the password into redis.url"),
    ],
)
def test_where_an_operator_can_help_it_says_how(error: Exception, remedy: str) -> None:
    assert remedy in str(translate(error))


def test_an_error_of_ours_is_left_as_it_is() -> None:
    error = StoreError("redis-full", "detail", Applied.NO)
    assert translate(error, scripts.load("add")) is error


def test_what_redis_quotes_of_a_command_that_it_does_not_know_is_left_out() -> None:
    error = errors.ResponseError("unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'hunter2' ")
    assert str(translate(error)) == "redis-unknown: unknown command 'HELLO'"
