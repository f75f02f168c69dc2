"""What people bring along from other tools and languages: each is told what it is, and what to write here."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nsqdigest.base.errors import Mistake
from nsqdigest.config import Config, ConfigError, parse_text
from nsqdigest.delivery.sinks.table import KINDS

pytestmark = pytest.mark.unit

FILE = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:4150"]

[redis]

[policies.default]

[sinks.out]
type = "log"

[admin]

[[routes]]
topic = "events"
timeline = "{user}"
sink = "out"
"""


def with_line(table: str, line: str) -> str:
    """The file with this line first in its table, and without the same option there."""
    key = line.partition("=")[0]
    kept = "".join(row for row in FILE.splitlines(keepends=True) if not row.startswith(key))
    return kept.replace(f"{table}\n", f"{table}\n{line}\n", 1)


def read(text: str, environ: Mapping[str, str] | None = None) -> Config:
    return parse_text(text, "f", environ or {}, KINDS)


def mistake(text: str, environ: Mapping[str, str] | None = None) -> Mistake:
    """The only one."""
    with pytest.raises(ConfigError) as caught:
        read(text, environ)
    (only,) = caught.value.problems
    return only


def said(text: str, environ: Mapping[str, str] | None = None) -> str:
    only = mistake(text, environ)
    return f"{only.problem}; {only.remedy}"


def advice(text: str, environ: Mapping[str, str] | None = None) -> list[Mistake]:
    return list(read(text, environ).warnings)


# -- no TOML


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (
            with_line("[policies.default]", "immediate = True"),
            7,
            "true and false are lower case in TOML; write immediate = true",
        ),
        (
            with_line("[policies.default]", "immediate = no"),
            7,
            "true and false are lower case in TOML; write immediate = false",
        ),
        (
            with_line("[policies.default]", "minimum_delay = 5m # short"),
            7,
            'durations, sizes and addresses stand in quotes; write minimum_delay = "5m"',
        ),
        (
            with_line("[admin]", "listen = 127.0.0.1:4180"),
            12,
            'durations, sizes and addresses stand in quotes; write listen = "127.0.0.1:4180"',
        ),
        (with_line("[admin]", "token = hunter2x!"), 12, 'text, durations and sizes stand in quotes; write token = "…"'),
        (with_line("[nsq]", "max_in_flight = 2,500"), 2, "not how TOML writes a number; write max_in_flight = 2500"),
        (
            with_line("[admin]", "token = null"),
            12,
            'has no value, and TOML has no null; leave the line out, or write token = ""',
        ),
        (
            FILE + "match = {}\n[nsq]\n",
            18,
            "[nsq] stands in line 1 already; write it once, with all that belongs to it",
        ),
        (
            FILE + "[routes]\n",
            17,
            "[[routes]] stands in line 13 already; write [[routes]], with two brackets, above each route",
        ),
        (FILE + 'sink = "x"\n', 17, "sink stands in line 16 already; leave one of them out"),
        (
            with_line("[[routes]]", "topic = “events”"),
            14,
            'these are curly quotes; write straight ones: topic = "…"',
        ),
        (with_line("[sinks.out]", 'path = "-" // stdout'), 9, "not a comment in TOML; comments begin with #"),
        ("// mine\n" + FILE, 1, "not a comment in TOML; comments begin with #"),
        (
            with_line("[sinks.out]", r'path = "C:\x"'),
            9,
            "a \\ within \"…\" begins an escape; write text with a \\ in single quotes: '…'",
        ),
        (with_line("[sinks.out]", 'path = "-'), 9, "a quote is not closed; close it on its line"),
        (with_line("[sinks.out]", 'path = "-";'), 9, "the line goes on behind its value; leave out what follows it"),
        (with_line("[sinks.out]", 'path := "-"'), 9, "one = stands between a key and its value; write path = …"),
        ("nsq:\n  channel: x\n", 1, "this is YAML; nsqdigest reads TOML: write [nsq]"),
        ("# mine\n---\ntopic: events\n", 2, 'this is YAML; nsqdigest reads TOML: write topic = "…"'),
        (with_line("[[routes]]", "topic: events"), 14, 'this looks like YAML; nsqdigest reads TOML: write topic = "…"'),
        (
            '{\n  "nsq": {"channel": "x"}\n}\n',
            1,
            'this is JSON; nsqdigest reads TOML: write [nsq], and below it key = "value"',
        ),
        ('[{"a": 1}]', 1, 'this is JSON; nsqdigest reads TOML: write [nsq], and below it key = "value"'),
    ],
)
def test_what_is_no_toml_is_named(text: str, line: int, expected: str) -> None:
    assert said(text) == expected
    assert (mistake(text).line, mistake(text).path) == (line, "")


def test_no_value_is_repeated_that_may_be_a_secret() -> None:
    for row in ("token = hunter2", "token = “hunter2”", "token: hunter2", 'token = "hunter2" // x', "token = hunter2;"):
        assert "hunter2" not in mistake(with_line("[admin]", row))


# -- one thing where another stands


@pytest.mark.parametrize(
    ("table", "line", "expected"),
    [
        (
            "[[routes]]",
            'policy = {minimum_delay = "5m"}',
            "a table is not text: a route names its policy; "
            'write a table [policies.NAME] with it, and policy = "NAME" here',
        ),
        (
            "[[routes]]",
            'topic = ["a", "b"]',
            "a list is not text: a route has one topic; write a [[routes]] for each topic, with a name of its own",
        ),
        (
            "[[routes]]",
            'policy = ["x", "y"]',
            "a list is not text: a route has one policy; write a [[routes]] for each policy, with a name of its own",
        ),
        ("[nsq]", 'channel = ["a"]', 'a list is not text; write "a"'),
        ("[nsq]", 'channel = ["a", "b"]', "a list is not text; write one text, in quotes"),
        ("[admin]", "listen = 4180", '4180 is not an address; write "127.0.0.1:4180"'),
        ("[nsq]", "nsqd_tcp_addresses = [4150]", '4150 is not an address; write "127.0.0.1:4150"'),
        ("[nsq]", 'nsqd_tcp_addresses = "a:1, b:2"', '"a:1, b:2" is not a list; write ["a:1", "b:2"]'),
        ("[redis]", 'host = "db1"', 'stands in the URL; write url = "redis://db1:6379/0"'),
        ("[redis]", 'host = "db1"\nport = 6380\ndb = 2', 'stands in the URL; write url = "redis://db1:6380/2"'),
        (
            "[redis]",
            'password = "hunter2"',
            'stands in the URL; write url = "redis://USER:PASSWORD@127.0.0.1:6379/0"',
        ),
        ("[sinks.out]", 'path = "~/x"', '"~/x" begins with ~, which only a shell replaces; write the whole path'),
    ],
)  # fmt: skip
def test_what_stands_where_something_else_belongs_is_named(table: str, line: str, expected: str) -> None:
    assert said(with_line(table, line)) == expected


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("[[routes]]", "[[route]]", "unknown table; did you mean [[routes]]?"),
        ("[sinks.out]", "[sink.out]", "unknown table; did you mean [sinks.NAME]?"),
        ("[nsq]", "[nsqs]", "unknown table; did you mean [nsq]?"),
    ],
)
def test_a_misspelt_table_is_one_mistake_and_its_own_are_found(right: str, wrong: str, expected: str) -> None:
    text = FILE.replace(right, wrong)
    assert said(text) == expected
    with pytest.raises(ConfigError) as caught:
        read(text.replace('topic = "events"', 'topic = "a b"'))
    assert [(each.line, each.path) for each in caught.value.problems if "topic" in each.path] == [
        (14, "routes[0].topic")
    ]


# -- routes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'key = "order_id"',
            '"order_id" has no field, so that all events would have the same key; write "{order_id}"',
        ),
        (
            'key = "the key"',
            '"the key" has no field, so that all events would have the same key; write one like "{id}"',
        ),
        ('key = "{{ id }}"', '"{{ id }}" is a template of another language; write "{id}"'),
        ('timeline = "{{ user }}"', '"{{ user }}" is a template of another language; write "{user}"'),
        ('timeline = "{{.user}}"', '"{{.user}}" is a template of another language; write "{user}"'),
        ('timeline = "${user}"', '"${user}" is a template of another language; write "{user}"'),
        (
            'timeline = "{user[0]}"',
            '"{user[0]}" has "{user[0]}", which is not a path of a field: what a list holds cannot be named; '
            'write it like "user.id"',
        ),
        (
            'timeline = "{$.user.id}"',
            '"{$.user.id}" has "{$.user.id}", which is not a path of a field; write "{user.id}"',
        ),
        ('timestamp = "{{ at }}"', '"{{ at }}" is a template where a field is named; write "at"'),
        ('timestamp = "$.meta.at"', '"$.meta.at" is not a path of a field; write "meta.at"'),
        ('group = "${kind}"', '"${kind}" is a template where a field is named; write "kind"'),
        ('group = "of {kind}"', '"of {kind}" is a template where a field is named; write "kind"'),
        ('match = {"{{ severity }}" = 1}', '"{{ severity }}" is a template where a field is named; write "severity"'),
        (
            'match = {owner = "{user}"}',
            '"{user}" looks like a template, and nothing fills it in; write the value that the field has',
        ),
    ],
)
def test_what_would_mix_or_destroy_in_a_route_is_a_mistake(line: str, expected: str) -> None:
    assert said(with_line("[[routes]]", line)) == expected


def test_where_a_field_is_named_braces_may_stand_around_it() -> None:
    lines = 'timestamp = "{meta.at}"\ngroup = "{kind}"\nmatch = {"{event.kind}" = "error"}'
    (route,) = read(with_line("[[routes]]", lines)).routes
    assert (route.timestamp, route.group, route.match) == ("meta.at", "kind", (("event.kind", ("error",)),))


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        (
            with_line("[[routes]]", 'timeline = "user"'),
            "routes[0].timeline",
            "has no field: all events of the route go into one timeline; "
            'write "{user}", unless that is meant',
        ),
        (
            with_line("[[routes]]", 'match = {severity = "~err.*"}'),
            "routes[0].match.severity",
            '"~err.*" looks like a pattern, of which only a * at the end has a meaning; '
            'list the values, or write how they begin, "err*"; "= ~err.*" is this text',
        ),
        (
            FILE + '[sinks.other]\ntype = "log"\n',
            "sinks.other",
            'no route has this sink; write sink = "other" in one, or leave it out',
        ),
        (
            FILE + "[policies.slow]\n",
            "policies.slow",
            'no route has this policy; write policy = "slow" in one, or leave it out',
        ),
        (
            with_line("[redis]", 'timeout = "60s"'),
            "redis.timeout",
            "redis.timeout is 1m, and the msg_timeout of most nsqds is 1m: nsqd hands messages over again while they "
            'wait; write timeout = "30s" or less under [redis]',
        ),
        (
            with_line("[nsq]", 'msg_timeout = "5s"'),
            "nsq.msg_timeout",
            "redis.timeout is 5s, and nsq.msg_timeout is 5s: nsqd hands messages over again while they wait; "
            'write timeout = "2s500ms" or less under [redis]',
        ),
    ],
)  # fmt: skip
def test_what_is_seldom_meant_is_advised_against(text: str, path: str, expected: str) -> None:
    (only,) = advice(text)
    assert (only.path, f"{only.problem}; {only.remedy}") == (path, expected)


def test_nothing_is_advised_of_a_plain_file() -> None:
    assert advice(FILE) == []


# -- values that stand elsewhere


@pytest.mark.parametrize(
    ("table", "line", "expected"),
    [
        (
            "[redis]",
            'url = "redis://:env:PW@h"',
            'env: within the text is only text; put the whole value into a variable and write "env:NAME" alone',
        ),
        (
            "[redis]",
            'url = "redis://:${PW}@h"',
            '${ is only text: nothing replaces it; put the whole value into a variable and write "env:NAME" alone',
        ),
        (
            "[redis]",
            'url = "redis://:file:/run/pw@h"',
            'file: within the text is only text; put the whole value into a variable and write "env:NAME" alone',
        ),
        ("[admin]", 'token = "$TOKEN"', 'TOKEN is not looked up when it is written like this; write "env:TOKEN"'),
        ("[admin]", 'token = "${TOKEN}"', 'TOKEN is not looked up when it is written like this; write "env:TOKEN"'),
        ("[admin]", 'token = "ENV:TOKEN"', 'TOKEN is not looked up when it is written like this; write "env:TOKEN"'),
        ("[admin]", 'token = "{{ TOKEN }}"', 'TOKEN is not looked up when it is written like this; write "env:TOKEN"'),
        ("[admin]", 'token = "{env.TOKEN}"', 'TOKEN is not looked up when it is written like this; write "env:TOKEN"'),
        ("[nsq]", 'auth_secret = "%S%"', 'S is not looked up when it is written like this; write "env:S"'),
        (
            "[nsq]",
            'nsqd_tcp_addresses = ["${NSQD}:4150"]',
            '${ is only text: nothing replaces it; put the whole value into a variable and write "env:NAME" alone',
        ),
        (
            "[sinks.out]",
            'type = "webhook"\nurl = "https://example.com/${PATH}"',
            '${ is only text: nothing replaces it; put the whole value into a variable and write "env:NAME" alone',
        ),
        (
            "[sinks.out]",
            'type = "webhook"\nurl = "https://example.com"\nheaders = {authorization = "Bearer env:TOKEN"}',
            'env: within the text is only text; put the whole value into a variable and write "env:NAME" alone',
        ),
    ],
)  # fmt: skip
def test_a_reference_that_nothing_follows_is_a_mistake(table: str, line: str, expected: str) -> None:
    text = with_line(table, line) if "type" not in line else FILE.replace('type = "log"', line)
    assert said(text) == expected


def test_what_a_variable_holds_is_taken_as_it_stands() -> None:
    config = read(with_line("[redis]", 'url = "env:URL"'), {"URL": "redis://:a${b}env:c@h"})
    assert config.redis.url == "redis://:a${b}env:c@h"


# -- variables


def test_one_underscore_where_two_belong_is_told() -> None:
    (only,) = advice(FILE, {"NSQDIGEST_NSQ__MAX_IN_FLIGHT": "5"})
    assert only == (
        "environment NSQDIGEST_NSQ__MAX_IN_FLIGHT: is no variable of nsqdigest, and changes nothing; "
        "write NSQDIGEST__NSQ__MAX_IN_FLIGHT"
    )
    assert only.as_json() == {
        "file": "environment",
        "line": None,
        "path": "NSQDIGEST_NSQ__MAX_IN_FLIGHT",
        "problem": "is no variable of nsqdigest, and changes nothing",
        "remedy": "write NSQDIGEST__NSQ__MAX_IN_FLIGHT",
    }


@pytest.mark.parametrize("variable", ["NSQDIGEST_LOG_LEVEL", "nsqdigest_zebra", "NSQDIGEST_ZEBRA"])
def test_any_variable_that_begins_like_ours_and_is_none_is_told(variable: str) -> None:
    assert [each.path for each in advice(FILE, {variable: "x"})] == [variable]


@pytest.mark.parametrize("variable", ["NSQDIGEST_CONFIG", "NSQDIGEST_SERVICE_HOST", "NSQDIGEST_PORT_4180_TCP_ADDR"])
def test_variables_that_are_known_or_that_kubernetes_sets_are_not(variable: str) -> None:
    assert advice(FILE, {variable: "x"}) == []


def test_nor_is_one_that_the_file_names() -> None:
    assert advice(with_line("[admin]", 'token = "env:NSQDIGEST_TOKEN"'), {"NSQDIGEST_TOKEN": "a-token-of-16-ch"}) == []
