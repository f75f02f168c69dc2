"""The operator's file: what loads, what every mistake is told, and that there are only such mistakes."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqdigest.base.errors import Mistake
from nsqdigest.base.moments import format_duration
from nsqdigest.config import (
    Address,
    Config,
    ConfigError,
    Route,
    Secret,
    UnixSocket,
    example,
    find,
    load,
    parse_text,
    reading,
    units,
)
from nsqdigest.config.options import POLICY, ROUTE, SECTIONS, Section
from nsqdigest.config.problems import Wrong, toml
from nsqdigest.config.toml_lines import KeyPath, line_of, locate
from nsqdigest.delivery.sinks.log import LogSinkSettings
from nsqdigest.delivery.sinks.nsq import NsqSinkSettings
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.delivery.sinks.webhook import WebhookSinkSettings
from support.files import SMALLEST
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.unit

NSQD_OR_LOOKUPD = 'write nsqd_tcp_addresses = ["127.0.0.1:4150"] or lookupd_http_addresses = ["127.0.0.1:4161"]'
NSQ_SINK = f"""{SMALLEST}[sinks.queue]
type = "nsq"
nsqd_tcp_addresses = ["127.0.0.1:4250"]
topic = "digests"
"""
WEBHOOK = SMALLEST + '[sinks.hook]\ntype = "webhook"\nurl = "https://example.com/hook"\n'
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ALL_SECTIONS: dict[str, Section] = {
    **SECTIONS,
    "policies.default": POLICY,
    **{f"sinks.{kind.name}": kind.section for kind in KINDS.values()},
    "routes": ROUTE,
}
EXAMPLE_FILE = Path(__file__).parents[2] / "config" / "nsqdigest.toml"


def read(text: str, environ: Mapping[str, str] | None = None, source: str = "nsqdigest.toml") -> Config:
    return parse_text(text, source, environ or {}, KINDS)


def problems(text: str, environ: Mapping[str, str] | None = None, source: str = "nsqdigest.toml") -> list[Mistake]:
    with pytest.raises(ConfigError) as raised:
        parse_text(text, source, environ or {}, KINDS)
    return raised.value.problems


def outcome(text: str, environ: Mapping[str, str] | None = None) -> list[Mistake]:
    """Its problems, none if it loads; nothing else may happen."""
    try:
        read(text, environ)
    except ConfigError as error:
        return error.problems
    return []


def problem(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The only problem, without the file's name."""
    (only,) = problems(text, environ)
    return only.removeprefix("nsqdigest.toml:")


def advice(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Beside that on sinks and policies that no route has."""
    return [warning for warning in read(text, environ).warnings if "no route has" not in warning]


def hook(*lines: str, **environ: str) -> WebhookSinkSettings:
    sink = read(WEBHOOK + "\n".join(lines), environ).sinks["hook"]
    assert isinstance(sink, WebhookSinkSettings)
    return sink


def secret_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "hook.secret"
    path.write_text(text)
    path.chmod(mode)
    return path


# -- what loads


def test_the_smallest_file_loads_with_the_defaults() -> None:
    config = read(SMALLEST)
    assert config.source == "nsqdigest.toml"
    assert config.nsq.nsqd_tcp_addresses == (Address("127.0.0.1", 4150),)
    assert (config.nsq.channel, config.nsq.max_in_flight, config.nsq.batch_size) == ("nsqdigest", 2500, 500)
    assert (config.scheduler.interval_ms, config.scheduler.lease_ms, config.scheduler.batch) == (1000, 60_000, 200)
    assert (config.limits.event_bytes, config.limits.key_bytes) == (65_536, 256)
    assert config.policies["default"].minimum_delay_ms == 300_000
    assert config.admin.listen == Address("127.0.0.1", 4180)
    assert config.admin.token is None
    assert config.routes == (
        Route(
            name="events",
            topic="events",
            match=(),
            timeline="{user}",
            key="",
            timestamp="",
            group="",
            urgent=(),
            cancel=(),
            on_cancel="tell",
            drop=(),
            max_event_age_ms=0,
            policy="default",
            sink="out",
        ),
    )
    assert isinstance(config.sinks["out"], LogSinkSettings)
    assert config.sinks["out"].max_age_ms == 72 * 3_600_000
    assert config.warnings == ()


def test_the_tree_is_frozen() -> None:
    config = read(SMALLEST)
    parts: list[Any] = [config, config.nsq, config.routes[0], config.sinks["out"], config.policies["default"]]
    for part in parts:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, dataclasses.fields(part)[0].name, "other")
    assert isinstance(config.sinks, MappingProxyType)
    assert isinstance(config.policies, MappingProxyType)


def test_one_partition_is_what_0_means_on_a_single_server() -> None:
    assert read(SMALLEST).redis.partition_count == 1
    assert read(SMALLEST + "[redis]\npartitions = 4").redis.partition_count == 4
    for scheme in ("redis+cluster", "rediss+cluster"):
        assert read(SMALLEST + f'[redis]\nurl = "{scheme}://h1,h2"').redis.partition_count == 32
    assert read(SMALLEST + '[redis]\nurl = "redis+cluster://h1"\npartitions = 1').redis.partition_count == 1


def test_the_example_file_is_what_the_declarations_say() -> None:
    assert EXAMPLE_FILE.read_text("utf-8") == example.text(KINDS), "run `make example-file`"


def test_the_example_file_holds_every_option_with_its_default() -> None:
    tree = tomllib.loads(EXAMPLE_FILE.read_text("utf-8"))
    tables = {key: tree[key] for key in SECTIONS} | {
        "policies.default": tree["policies"]["default"],
        **{f"sinks.{kind.name}": tree["sinks"]["hook"] | tree["sinks"][kind.example] for kind in KINDS.values()},
        "routes": tree["routes"][0],
    }
    for name, section in ALL_SECTIONS.items():
        for option in section.options:
            expected = option.default if option.sample is None else option.sample
            assert tables[name][option.key] == expected, f"{name}.{option.key}"


def test_the_example_file_loads_as_the_smallest_does() -> None:
    example_config, smallest = load(EXAMPLE_FILE, {}, KINDS), read(SMALLEST)
    for name in ("nsq", "backoff", "redis", "scheduler", "limits", "policies", "routes", "admin", "log"):
        assert getattr(example_config, name) == getattr(smallest, name), name
    assert example_config.sinks["out"] == smallest.sinks["out"]


@pytest.mark.parametrize("name", ALL_SECTIONS)
def test_options_and_attributes_correspond(name: str) -> None:
    section = ALL_SECTIONS[name]
    attributes = {field.name for field in dataclasses.fields(section.build)}  # type: ignore[arg-type]
    attributes -= {name for name, _ in section.tables}
    if name.startswith(("policies", "sinks")):
        attributes -= {"name", "type"}
    assert {option.field for option in section.options} == attributes


def test_decorrelated_has_its_own_jitter() -> None:
    text = SMALLEST + '[backoff]\nstrategy = "decorrelated"\njitter = "full"\n'
    assert problem(text) == '13: backoff.jitter: strategy "decorrelated" has its own jitter; leave this line out'
    assert read(text.replace('jitter = "full"\n', "")).backoff.strategy == "decorrelated"


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "nsqdigest.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALLEST.replace("\n", "\r\n").encode())
    assert load(path, {}, KINDS).nsq == read(SMALLEST).nsq
    path.write_bytes((SMALLEST + "max = 1\n").replace("\n", "\r\n").encode())
    with pytest.raises(ConfigError, match=r":11: routes\[0\]\.max: unknown key"):
        load(path, {}, KINDS)


def test_nothing_happens_at_import() -> None:
    # Foreign modules first: what those look at is theirs.
    code = "import logging, os, tomllib, ipaddress, urllib.parse, nsq.protocol, nsqdigest.intake.routing\n"
    code += "os.environ = None\n"
    code += "import nsqdigest.config, nsqdigest.base.log\n"
    code += "assert not logging.getLogger().handlers\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


# -- many mistakes


def test_six_mistakes_are_six_lines_in_the_order_of_the_file() -> None:
    text = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1"]
max_inflight = 100

[policies.default]
minimum_delay = "5min"

[sinks.out]
type = "logs"

[[routes]]
topic = "events"
timeline = "{user"
sink = "outt"
"""
    assert problems(text, source="conf/my.toml") == [
        'conf/my.toml:2: nsq.nsqd_tcp_addresses[0]: "127.0.0.1" is not an address; write "127.0.0.1:4150"',
        'conf/my.toml:3: nsq.max_inflight: unknown key; did you mean "max_in_flight"?',
        'conf/my.toml:6: policies.default.minimum_delay: "5min" is not a duration; write "5m"',
        'conf/my.toml:9: sinks.out.type: "logs" is not a type of sink; did you mean "log"?',
        'conf/my.toml:13: routes[0].timeline: "{user" has a lone "{"; '
        'braces enclose a field: write one like "user:{user.id}"',
        'conf/my.toml:14: routes[0].sink: there is no sink "outt"; did you mean "out"?',
    ]


def test_an_empty_file_says_what_is_missing() -> None:
    assert problems("") == [
        f"nsqdigest.toml:1: nsq.nsqd_tcp_addresses: missing; {NSQD_OR_LOOKUPD}",
        "nsqdigest.toml:1: routes: missing; "
        'write at least one [[routes]] with topic = "…", timeline = "…" and sink = "…"',
    ]


def test_what_is_missing_is_looked_for_below_the_header_of_its_table() -> None:
    assert problem('# nothing yet\n[nsq]\nchannel = "x"\n' + SMALLEST.partition("\n\n")[2]) == (
        f"2: nsq.nsqd_tcp_addresses: missing; {NSQD_OR_LOOKUPD}"
    )
    assert (
        problem(SMALLEST.replace('topic = "events"\n', ""))
        == '7: routes[0].topic: missing; write one like topic = "events"'
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[nsq]\nchannel = "a" "b"', "2: not TOML: .*; write one key = value on a line"),
        ("a = " + "9" * 5000, "1: somewhere a number has too many digits; write a shorter one"),
        ("a = " + "[" * 5000 + "]" * 5000, "1: nested too deep to be a configuration; write it flat"),
    ],
)
def test_what_is_not_toml_is_one_problem_with_its_line(text: str, expected: str) -> None:
    assert re.match(expected, problem(text), re.DOTALL)


def test_a_secret_without_quotes_is_not_repeated() -> None:
    assert "hunter2" not in problem("[admin]\ntoken = hunter2\n")


# -- tables and keys


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nsq = 5", "nsq: is not a table; write [nsq]"),
        ("[sink.out]", "sink: unknown table; did you mean [sinks.NAME]?"),
        ("[policy.default]", "policy: unknown table; did you mean [policies.NAME]?"),
        ("[zebra]", "zebra: unknown table; known are nsq, backoff, redis, "),
        ('namespace = "x"', "namespace: unknown key; write it under [redis]"),
        ("[[sinks]]", "sinks: is not a table of tables; write [sinks.NAME]"),
        ('[sinks]\ntype = "log"', "sinks.type: belongs to no sink; write [sinks.NAME] above it"),
        ('[policies]\nat = ""', "policies.at: belongs to no policy; write [policies.NAME] above it"),
        ('["si\\u006eks"."my hook"]\ntype = "log"', 'sinks."my hook": "my hook" is not a name; write up to 64 letters'),
        ("[sinks.x]", 'sinks.x.type: missing; write type = "webhook", "email", "nsq" or "log"'),
        ("[sinks.x]\ntype = 5", 'sinks.x.type: 5 is not a type of sink; write "webhook", "email", "nsq" or "log"'),
        ('[sinks.x]\ntype = "log"\nurl = "x"', "sinks.x.url: unknown key; there is one in [redis]"),
        ('[routes]\ntopic = "x"', "routes: is not a list of tables; write [[routes]], with two brackets"),
        ("routes = [5]", "routes: holds something else than tables; write [[routes]] above each route"),
        ("[log]\nzebra = 1", "log.zebra: unknown key; known are level, format"),
        ("[log]\njitter = 1", "log.jitter: unknown key; there is one in [backoff]"),
        ("[log]\nlevle = 1", 'log.levle: unknown key; did you mean "level"?'),
    ],
)
def test_wrong_tables_and_keys(text: str, expected: str) -> None:
    assert expected in "\n".join(problems(text))


# -- values


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('[limits]\nfuture = "5min"', '"5min" is not a duration; write "5m"'),
        ("[limits]\nfuture = 300", '300 is not a duration; write "300s"'),
        ('[limits]\nfuture = "300"', '"300" is not a duration; write "300s"'),
        ("[limits]\nfuture = 0", '0 is not a duration; write "0s"'),
        ("[limits]\nfuture = 1.5", '1.5 is not a duration; write "1s500ms"'),
        ('[limits]\nfuture = "1.5h"', '"1.5h" is not a duration; write "1h30m"'),
        ('[limits]\nfuture = "1 hour, 30 minutes"', '"1 hour, 30 minutes" is not a duration; write "1h30m"'),
        ('[limits]\nfuture = "30m1h"', '"30m1h" is not a duration; write "1h30m"'),
        ('[limits]\nfuture = "2 weeks"', '"2 weeks" is not a duration; write "14d"'),
        ('[limits]\nfuture = "soon"', '"soon" is not a duration; write one like "30s", "5m" or "1h30m"'),
        ('[limits]\nfuture = "-5s"', '"-5s" is not a duration; write one like "30s", "5m" or "1h30m"'),
        ('[limits]\nfuture = ""', '"" is not a duration; write one like "30s", "5m" or "1h30m"'),
        ("[limits]\nfuture = true", 'true is not a duration; write one like "30s", "5m" or "1h30m"'),
        ('[limits]\nfuture = "9999d"', '"9999d" is too long; write "3650d" or less'),
        ('[scheduler]\ninterval = "2m"', '"2m" is too long; write "1m" or less'),
        ('[scheduler]\ninterval = "1ms"', '"1ms" is too short; write "10ms" or more'),
        ('[backoff]\nmax_duration = "1ms"', '"1ms" is too short; write "10ms" or more, or "0s"'),
        ('[limits]\nevent = "64KB"', '"64KB" is not a size; write "64KiB"'),
        ('[limits]\nevent = "64k"', '"64k" is not a size; write "64KiB"'),
        ('[limits]\nevent = "0.5 MiB"', '"0.5 MiB" is not a size; write "512KiB"'),
        ("[limits]\nevent = 1000", '1000 is not a size; write "1000B"'),
        ('[limits]\nevent = "big"', '"big" is not a size; write one like "64KiB" or "1MiB"'),
        ('[limits]\nevent = "2MiB"', '"2MiB" is too large; write "1MiB" or less'),
        ('[limits]\nevent = "0B"', '"0B" is too small; write "1B" or more'),
        ("[limits]\ndepth = 0", "0 is too small; write 1 or more"),
        ("[limits]\ndepth = 9999", "9999 is too large; write 512 or less"),
        ('[limits]\ndepth = "64"', '"64" is not a whole number; write 64'),
        ("[limits]\ndepth = 64.0", "64.0 is not a whole number; write 64"),
        ("[limits]\ndepth = true", "true is not a whole number; write one from 1 to 512"),
        ("[limits]\ndepth = [1]", "a list is not a whole number; write one from 1 to 512"),
        ("[limits]\ndepth = 2020-01-01", "a date is not a whole number; write one from 1 to 512"),
        ('[policies.x]\nimmediate = "yes"', '"yes" is neither true nor false; write true'),
        ("[policies.x]\nimmediate = 0", "0 is neither true nor false; write false"),
        ('[policies.x]\nimmediate = "maybe"', '"maybe" is neither true nor false; write true or false'),
        ('[policies.x]\nintervals = "30s"', '"30s" is not a list; write ["30s"]'),
        ('[policies.x]\nintervals = ["30s", 5]', '5 is not a duration; write "5s"'),
        ("[policies.x]\ncapacity = 0", "0 is too small; write 1 or more"),
        ("[policies.x]\ngrowth_steps = 33", "33 is too large; write 32 or less"),
        ('[log]\nlevel = "warn"', '"warn" is not "debug", "info", "warning" or "error"; write "warning"'),
        ('[log]\nlevel = "x"', 'write "debug", "info", "warning" or "error"'),
        ("[redis]\nnamespace = 5", '5 is not text; write "5"'),
        ('[redis]\nnamespace = "a{b}"', '"a{b}" is not a name; write up to 64 letters, digits, _ . and -'),
        ('[admin]\nlisten = "4180"', '"4180" is not an address; write "127.0.0.1:4180"'),
        ('[admin]\nlisten = ":4180"', '":4180" is not an address; write "127.0.0.1:4180"'),
        ('[admin]\nlisten = "::1"', '"::1" is not an address; write "[::1]:4180"'),
        ('[admin]\nlisten = "::1:4180"', '"::1:4180" is not an address; write "[::1]:4180"'),
        ('[admin]\nlisten = "[::1]"', '"[::1]" is not an address; write "[::1]:4180"'),
        ('[admin]\nlisten = "http://localhost:80/"', 'is not an address; write "localhost:80"'),
        ('[admin]\nlisten = "a b"', '"a b" is not an address; write one like "127.0.0.1:4180" or "[::1]:4180"'),
        ('[admin]\nlisten = "localhost:0"', '"localhost:0" has port 0; write one from 1 to 65535, such as 4180'),
        ('[admin]\ntoken = "a b"', "the value cannot stand in an authorization header; write printable ASCII without"),
    ],
)
def test_wrong_values(line: str, expected: str) -> None:
    assert expected in problem(f"{SMALLEST}{line}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nsqd_tcp_addresses = []", f"2: nsq.nsqd_tcp_addresses: has nothing in it; {NSQD_OR_LOOKUPD}"),
        ("lookupd_http_addresses = []", f"2: nsq.lookupd_http_addresses: has nothing in it; {NSQD_OR_LOOKUPD}"),
        (
            'lookupd_http_addresses = ["http://a:4161"]',
            'lookupd_http_addresses[0]: "http://a:4161" is not an address; write "a:4161"',
        ),
        (
            'nsqd_tcp_addresses = ["a..b:4150"]',
            '"a..b:4150" has a host name with a part that is empty or longer than 63 characters; write one like',
        ),
        (
            f'lookupd_http_addresses = ["{"x" * 64}.internal:4161"]',
            "has a host name with a part that is empty or longer than 63 characters; write one like",
        ),
        ('nsqd_tcp_addresses = ["[fe80::1%\\u0000]:4150"]', "is not an address; write one like"),
        ('lookupd_http_addresses = ["a:1"]\nlookupd_poll_interval = "99ms"', '"99ms" is too short; write "100ms"'),
        (
            'lookupd_http_addresses = ["a:1"]\nlookupd_poll_jitter = 1.5',
            "1.5 is not from 0 to 1; write one",
        ),
        (
            'lookupd_http_addresses = ["a:1"]\nlookupd_poll_jitter = nan',
            "nan is not from 0 to 1; write one",
        ),
        ('lookupd_http_addresses = ["a:1"]\nlookupd_poll_jitter = true', "true is not a number; write one from 0 to 1"),
        ('nsqd_tcp_addresses = "a:1"', '"a:1" is not a list; write ["a:1"]'),
        (
            'nsqd_tcp_addresses = ["a:1", "a:1"]',
            'nsqd_tcp_addresses[1]: "a:1" is listed twice; leave one of them out',
        ),
        ('nsqd_tcp_addresses = ["a:1"]\nheartbeat_interval = "500ms"', '"500ms" is too short; write "1s" or more'),
        ('nsqd_tcp_addresses = ["a:1"]\nmsg_timeout = "20m"', '"20m" is too long; write "15m" or less'),
        ('nsqd_tcp_addresses = ["a:1"]\nmsg_timeout = "1ms"', '"1ms" is too short; write "1s" or more, or "0s"'),
        ('nsqd_tcp_addresses = ["a:1"]\nbatch_size = 501', "501 is too large; write 500 or less"),
        ('nsqd_tcp_addresses = ["a:1"]\nmax_in_flight = 0', "0 is too small; write 1 or more"),
        ('nsqd_tcp_addresses = ["a:1"]\nchannel = "a b"', '"a b" is not a channel\'s name; write up to 64 letters'),
        ('nsqd_tcp_addresses = ["a:1"]\nchannel = "a\\n"', '"a\\n" is not a channel\'s name; write up to 64 letters'),
        ('nsqd_tcp_addresses = ["a:1"]\ndead_letter_topic = "a/b"', '"a/b" is not a topic\'s name; write'),
        (
            'nsqd_tcp_addresses = ["a:1"]\ndead_letter_topic = "events"',
            '"events" is nsq.dead_letter_topic; dead letters',
        ),
    ],
)
def test_wrong_values_of_nsq(line: str, expected: str) -> None:
    assert expected in problem(SMALLEST.replace('nsqd_tcp_addresses = ["127.0.0.1:4150"]', line))


def test_addresses_of_both_kinds() -> None:
    text = SMALLEST.replace('"127.0.0.1:4150"', '"nsqd-1.internal:4150", "[2001:db8::1]:14150"')
    addresses = read(text).nsq.nsqd_tcp_addresses
    assert addresses == (Address("nsqd-1.internal", 4150), Address("2001:db8::1", 14150))
    assert [str(address) for address in addresses] == ["nsqd-1.internal:4150", "[2001:db8::1]:14150"]


def test_nsqlookupds_alone_will_do() -> None:
    text = SMALLEST.replace("nsqd_tcp_addresses", "lookupd_http_addresses").replace("4150", "4161")
    nsq = read(text).nsq
    assert (nsq.nsqd_tcp_addresses, nsq.lookupd_http_addresses) == ((), (Address("127.0.0.1", 4161),))
    assert (nsq.lookupd_poll_interval_ms, nsq.lookupd_poll_jitter) == (60_000, 0.3)


def test_a_misspelt_list_of_nsqlookupds_is_the_only_mistake() -> None:
    text = SMALLEST.replace("nsqd_tcp_addresses", "lookupd_http_adresses")
    assert problem(text) == '2: nsq.lookupd_http_adresses: unknown key; did you mean "lookupd_http_addresses"?'


def test_the_tcp_port_of_nsqlookupd_is_warned_about() -> None:
    text = SMALLEST.replace("nsqd_tcp_addresses", "lookupd_http_addresses").replace("4150", "4160")
    assert read(text).warnings == (
        "nsqdigest.toml:2: nsq.lookupd_http_addresses[0]: "
        "4160 is the TCP port of most nsqlookupds; the HTTP port of most is 4161",
    )


def test_the_http_port_of_nsqd_is_warned_about() -> None:
    (warning,) = read(SMALLEST.replace("4150", "4151")).warnings
    assert warning == (
        "nsqdigest.toml:2: nsq.nsqd_tcp_addresses[0]: 4151 is the HTTP port of most nsqds; the TCP port of most is 4150"
    )


# -- policies


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            'minimum_delay = "1h"\nmaximum_delay = "30m"',
            'the largest delay is 1h (minimum_delay), but maximum_delay is 30m; write maximum_delay = "1h"',
        ),
        (
            'growth = "exponential"\nminimum_delay = "10m"\nmaximum_delay = "30m"',
            "the largest delay is 40m (minimum_delay, doubled 2 times)",
        ),
        (
            'intervals = ["0s", "31m"]\nmaximum_delay = "30m"',
            "the largest delay is 31m (the longest of intervals)",
        ),
        (
            'immediate = false\nintervals = ["31m", "5m"]\nmaximum_delay = "30m"',
            "the largest delay is 31m (the longest of intervals)",
        ),
        (
            'growth = "exponential"\ngrowth_steps = 32',
            "the largest delay is 14913080d21h20m (minimum_delay, doubled 32 times); write a shorter delay or fewer",
        ),
        ('growth = "exponential"\nintervals = ["5m"]', "growth and intervals exclude each other; leave one out"),
    ],
)
def test_a_policy_that_contradicts_itself(lines: str, expected: str) -> None:
    assert expected in problem(f"{SMALLEST}[policies.x]\n{lines}")


def test_a_maximum_that_is_too_low_is_shown_where_somebody_wrote() -> None:
    text = f'{SMALLEST}[policies.x]\nminimum_delay = "1h"\nmaximum_delay = "1m"'
    assert problem(text).startswith("13: policies.x.maximum_delay: ")


@pytest.mark.parametrize(
    ("lines", "maximum_ms"),
    [
        ('minimum_delay = "1h"', 3_600_000),
        ('minimum_delay = "10m"', 1_800_000),
        ('growth = "exponential"\nminimum_delay = "10m"', 2_400_000),
        ('intervals = ["0s", "31m"]', 1_860_000),
        ('immediate = false\nintervals = ["31m", "5m"]', 1_860_000),
    ],
)
def test_the_default_maximum_follows_the_largest_delay(lines: str, maximum_ms: int) -> None:
    assert read(f"{SMALLEST}[policies.x]\n{lines}").policies["x"].maximum_delay_ms == maximum_ms


def test_the_interval_before_the_first_digest_is_free_when_that_comes_at_once() -> None:
    config = read(f'{SMALLEST}[policies.x]\nintervals = ["7d", "5m"]')
    assert config.policies["x"].intervals_ms == (7 * 86_400_000, 300_000)


def test_growth_up_to_the_maximum_is_allowed() -> None:
    lines = 'growth = "exponential"\nminimum_delay = "5m"\nmaximum_delay = "20m"'
    assert read(f"{SMALLEST}[policies.x]\n{lines}").policies["x"].growth == "exponential"


def test_policies_start_from_the_defaults_and_not_from_the_files_default_policy() -> None:
    config = read(f"{SMALLEST}[policies.default]\ncapacity = 7\n[policies.x]\ndedupe_window = '1m'")
    assert config.policies["default"].capacity == 7
    assert config.policies["x"].capacity == 500


def test_backoff_that_could_not_wait_its_base() -> None:
    text = SMALLEST + '[backoff]\nbase = "5s"\nmax_duration = "1s"'
    assert problem(text) == (
        "13: backoff.max_duration: max_duration is shorter than base; "
        'write max_duration = "5s" or more, or "0s" to never back off'
    )
    assert read(text.replace('"1s"', '"0s"')).backoff.max_duration_ms == 0


# -- sinks


def test_a_lease_covers_every_timeout_twice() -> None:
    assert problem(WEBHOOK + 'timeout = "45s"') == (
        '14: sinks.hook.timeout: scheduler.lease is 1m, less than twice the timeout of sink "hook", 45s; '
        'write lease = "1m30s" or more under [scheduler], or timeout = "30s" or less'
    )
    assert problem(SMALLEST + '[scheduler]\nlease = "29s"').startswith(
        "12: scheduler.lease: scheduler.lease is 29s, less"
    )
    assert read(WEBHOOK + 'timeout = "45s"\n[scheduler]\nlease = "90s"').scheduler.lease_ms == 90_000


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "http://example.com/x",
            "http:// would send digests to example.com in the clear; write https://, or allow_http = true",
        ),
        ("http://10.0.0.1/x", "http:// would send digests to 10.0.0.1 in the clear"),
        ("ftp://example.com", "the value is not the URL of a webhook; write one like https://example.com/hook"),
        ("example.com/hook", "the value is not a URL; write one like https://example.com/hook"),
        ("https:///hook", "the value names no host"),
        ("https://a..b/hook", "the value has a host that is neither a name nor an IP address; write one like https://"),
        (f"https://{'x' * 64}/hook", "the value has a host that is neither a name nor an IP address"),
        ("https://stra\u00dfe.example/", "a letter for which there are two standards; write its name as xn--…"),
        ("https://stra%C3%9Fe.example/", "a letter for which there are two standards"),
        ("https://a\u200db.example/", "a letter for which there are two standards"),
        ("https://u:pw@example.com/x", "the value holds a user's name or password; leave it out; write headers = "),
        ("https://example.com:99999/", "the value is not a URL"),
        ("https://example.com:0/", "the value has port 0"),
        ("https://[::1/", "the value is not a URL"),
        ("https://example.com/a b", "the value has a blank or a control character; leave it out"),
        (
            "https://{{ tenant }}.example.com/x",
            "the value is a template of another language; write one like https://{t",
        ),
        ("https://{t}/x", "the value has a field in the last part of its host, so that events decide the domain"),
        ("https://example.com:{port}/x", "the value has a field in its port; write the port"),
        ("https://{user}@example.com/x", "the value holds a user's name or password"),
        ("{url}", "the value is a template that does not begin with https://"),
        ("https://example.com/s3cret/{t", 'the value has a lone "{"; write one like https://{tenant}.example.com'),
        ("http://{tenant}.example.com/x", "http:// would send digests to {tenant}.example.com in the clear"),
        ("https://example.com/#x", "the value has a #, which is never sent"),
    ],
)
def test_wrong_webhook_urls(url: str, expected: str) -> None:
    assert expected in problem(WEBHOOK.replace("https://example.com/hook", url))


def test_an_nsq_sink_loads_with_the_options_of_every_sink() -> None:
    config = read(NSQ_SINK)
    sink = config.sinks["queue"]
    assert isinstance(sink, NsqSinkSettings)
    assert (sink.nsqd_tcp_addresses, sink.topic) == ((Address("127.0.0.1", 4250),), "digests")
    assert (sink.concurrency, sink.timeout_ms, sink.max_body_bytes) == (8, 15_000, 256 * 1024)
    assert advice(NSQ_SINK) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('topic = "digests"', "", '11: sinks.queue.topic: missing; write one like topic = "digests"'),
        (
            'nsqd_tcp_addresses = ["127.0.0.1:4250"]', "",
            '11: sinks.queue.nsqd_tcp_addresses: missing; write one like nsqd_tcp_addresses = ["127.0.0.1:4150"]',
        ),
        (
            '["127.0.0.1:4250"]', "[]",
            '13: sinks.queue.nsqd_tcp_addresses: has nothing in it; write one like ["127.0.0.1:4150"]',
        ),
        (
            '"digests"', '"digests.{{tenant}}"',
            '14: sinks.queue.topic: "digests.{{tenant}}" is a template of another language; write "digests.{tenant}"',
        ),
        (
            '"digests"', '"my digests {tenant}"',
            '14: sinks.queue.topic: "my digests {tenant}" makes no topic\'s name, whatever stands in its fields; ',
        ),
        (
            '"digests"', '"nsqdigest.{tenant}"',
            '14: sinks.queue.topic: "nsqdigest.{tenant}" can become nsq.dead_letter_topic, which holds dead letters ',
        ),
        ('"digests"', '"my digests"', '14: sinks.queue.topic: "my digests" is not a topic\'s name; write up to 64 '),
        (
            '"digests"', '"nsqdigest.dead"',
            '14: sinks.queue.topic: "nsqdigest.dead" is nsq.dead_letter_topic, which holds dead letters alone; '
            "write another topic",
        ),
    ],
)  # fmt: skip
def test_wrong_nsq_sinks(old: str, new: str, expected: str) -> None:
    assert problem(NSQ_SINK.replace(old, new)).startswith(expected)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (":4250", ":4151", "13: sinks.queue.nsqd_tcp_addresses[0]: 4151 is the HTTP port of most nsqds; "),
        ('"digests"', '"digests"\nmax_body = "2MiB"', "15: sinks.queue.max_body: is more than most nsqds take "),
        ('"digests"', '"events"', '14: sinks.queue.topic: "events" is the topic of a route, too: '),
        ('"digests"', '"e{x}"', '14: sinks.queue.topic: "e{x}" can become the topic of a route, too: '),
    ],
)  # fmt: skip
def test_what_is_seldom_meant_of_an_nsq_sink_is_warned_of(old: str, new: str, expected: str) -> None:
    (warning,) = advice(NSQ_SINK.replace(old, new))
    assert warning.removeprefix("nsqdigest.toml:").startswith(expected)


def test_a_secret_that_only_a_sinks_nsqd_hears_far_away_in_the_clear_is_warned_of() -> None:
    text = NSQ_SINK.replace("127.0.0.1:4250", "10.0.0.1:4150").replace("[nsq]\n", '[nsq]\nauth_secret = "x"\n')
    (warning,) = advice(text)
    assert warning == "nsqdigest.toml:2: nsq.auth_secret: goes to 10.0.0.1:4150 in the clear; write [nsq.tls] as well"


def test_a_route_never_takes_what_it_delivered_as_its_events() -> None:
    back = NSQ_SINK.replace('"digests"', '"events"').replace('sink = "out"', 'sink = "queue"')
    same_nsqd = back.replace(":4250", ":4150")
    assert problem(same_nsqd).startswith('14: sinks.queue.topic: "events" is the topic of a route with this sink; ')
    for meant in (back, same_nsqd.replace('sink = "queue"', 'sink = "queue"\nmatch = {kind = "error"}')):
        (warning,) = advice(meant)
        assert "digests come back as events" in warning


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "127.9.9.9", "[::1]:80"])
def test_http_to_this_machine_is_allowed(host: str) -> None:
    assert read(WEBHOOK.replace("https://example.com", f"http://{host}")).sinks


def test_http_elsewhere_is_allowed_on_request_and_warned_about() -> None:
    text = WEBHOOK.replace("https", "http") + f'allow_http = true\nsecret = "{SECRET}"'
    assert advice(text) == ["nsqdigest.toml:13: sinks.hook.url: digests go to example.com in the clear"]


def test_a_webhook_without_secret_is_warned_about() -> None:
    (warning,) = advice(WEBHOOK)
    assert warning.startswith("nsqdigest.toml:11: sinks.hook.secret: digests are not signed")


def test_secrets_of_a_webhook_are_one_or_a_list() -> None:
    assert hook(f'secret = "{SECRET}"').secrets == (Secret(SECRET),)
    assert [each.reveal() for each in hook(f'secret = ["{SECRET}", "env:OLD"]', OLD=SECRET).secrets] == [SECRET, SECRET]
    assert hook('secret = ""').secrets == ()


@pytest.mark.parametrize("secret", ["hunter2", "whsec_", "whsec_aHVudGVyMg==", "whsec_hunter2!", "whsec_" + "A" * 88])
def test_wrong_secrets_are_not_repeated(secret: str) -> None:
    for text in (f'"{secret}"', f'["{SECRET}", "{secret}"]'):
        said = problem(f"{WEBHOOK}secret = {text}")
        assert "write whsec_ and the base64 of 24 to 64 random bytes" in said
        assert secret.removeprefix("whsec_") == "" or secret not in said


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ('{"Webhook-Id" = "x"}', "headers.Webhook-Id: is a header that nsqdigest sets; leave it out"),
        ('{"content-type" = "x"}', "headers.content-type: is a header that nsqdigest sets; leave it out"),
        ('{"nsqdigest-attempt" = "x"}', "headers.nsqdigest-attempt: is a header that nsqdigest sets; leave it out"),
        ('{"Content-Length" = "5"}', "headers.Content-Length: is a header that HTTP itself needs; leave it out"),
        ('{"a b" = "x"}', 'headers."a b": is not the name of a header; write letters, digits and -'),
        ('{"a" = "x\\r\\ny: z"}', "headers.a: the value has a line break or another control character; leave it out"),
        ('{"a" = "x\\u0000"}', "headers.a: the value has a line break or another control character; leave it out"),
        ('{"a" = 5}', "headers.a: the value is not text; write it in quotes"),
        ('{"a" = "x", "A" = "y"}', "headers.A: is listed twice; leave one of them out"),
        ('"x: y"', '"x: y" is not a table; write one like {"x-team" = "shop"}'),
    ],
)
def test_wrong_headers(headers: str, expected: str) -> None:
    assert expected in problem(f"{WEBHOOK}headers = {headers}")


def test_headers_may_hold_secrets() -> None:
    sink = hook('headers = {authorization = "env:AUTHORIZATION", x-team = "shop"}', AUTHORIZATION="Bearer hunter2")
    assert dict(sink.headers) == {"authorization": "Bearer hunter2", "x-team": "shop"}
    assert len(sink.headers) == 2


def test_retries_that_contradict_themselves() -> None:
    assert problem(WEBHOOK + 'retry_cap = "500ms"') == (
        '14: sinks.hook.retry_cap: retry_cap is shorter than retry_base; write retry_cap = "1s" or more'
    )


def test_a_log_sink_writes_somewhere() -> None:
    assert 'sinks.out.path: "" is not a file\'s name' in problem(SMALLEST.replace('"log"', '"log"\npath = ""'))


# -- routes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('topic = "a b"', '"a b" is not a topic\'s name; write up to 64 letters, digits, _ . and -'),
        ('name = "a b"', '"a b" is not a name; write up to 64 letters'),
        ('timeline = ""', '"" is empty; write one like "user:{user.id}"'),
        ('timeline = "{a..b}"', '"{a..b}" has "{a..b}", which is not a path of a field; write it like "user.id"'),
        ('key = "}"', '"}" has a lone "}"; braces enclose a field'),
        ('timestamp = "a."', '"a." is not a path of a field; write "a"'),
        ('group = ".a"', '".a" is not a path of a field; write "a"'),
        ('match = {"a." = 1}', '"a." is not a path of a field; write "a"'),
        ("match = {event.kind = 1}", 'match.event: a table is not a value; write a path in quotes: "event.kind" = …'),
        ("match = {kind = []}", "match.kind: a list has nothing in it, so that nothing would match"),
        ("match = {kind = nan}", "nan is nothing a field can be compared with; write text, numbers, true or false"),
        ("match = {kind = [1, 2020-01-01]}", "a list holds a date, which is nothing a field can be compared with"),
        ('match = {n = ">= x"}', '">= x" compares with what is no number; write one like ">= 3" or ">= 400 and < 500"'),
        ('match = {n = ["== a"]}', 'a list holds "== a", which begins with "=="; write "a"'),
        ('match = {n = ["!= a", "b"]}', 'has values with "!=" and others, and no list can mean both'),
        ("match = 5", '5 is not a table; write one like {severity = "error"}'),
        ('policy = "slow"', 'routes[0].policy: there is no policy "slow"; write [policies.slow]'),
        ('policy = "defualt"', 'routes[0].policy: there is no policy "defualt"; did you mean "default"?'),
    ],
)
def test_wrong_routes(line: str, expected: str) -> None:
    key = line.partition(" ")[0]
    rest = "".join(each for each in SMALLEST.splitlines(keepends=True) if not each.startswith(f"{key} "))
    assert expected in problem(rest + line)


def test_values_that_fields_must_have() -> None:
    (route,) = read(SMALLEST + 'match = {severity = "error", "event.kind" = [1, 2.5, true, "x"]}').routes
    assert route.match == (("severity", ("error",)), ("event.kind", (1, 2.5, True, "x")))


OTHERS = '[sinks.mail]\ntype = "log"\n[sinks.chat]\ntype = "log"\n'
SINK = 'sink = "out"'


def test_a_route_of_several_sinks_is_a_route_for_each_and_the_first_has_its_name() -> None:
    text = SMALLEST.replace("[[routes]]", f"{OTHERS}[[routes]]")
    routes = read(text.replace(SINK, 'name = "alerts"\nsink = ["chat", "out", "mail"]')).routes
    assert [(route.name, route.sink) for route in routes] == [
        ("alerts", "chat"), ("alerts@out", "out"), ("alerts@mail", "mail"),
    ]  # fmt: skip
    assert len({dataclasses.replace(route, name="", sink="") for route in routes}) == 1
    (only,) = read(text.replace(SINK, 'sink = ["out"]')).routes
    assert (only.name, only.sink) == ("events", "out")


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ("[]", "routes[0].sink: a list has nothing in it; write the name of a sink"),
        ('["out", "out"]', 'routes[0].sink[1]: "out" is listed twice; leave one of them out'),
        ('["out", "mial"]', 'routes[0].sink[1]: there is no sink "mial"; did you mean "mail"?'),
        ('["out", 5]', 'routes[0].sink[1]: 5 is not text; write "5"'),
        ('["out", "a b"]', 'routes[0].sink[1]: "a b" is not a name'),
        ('["out", ["mail"]]', "routes[0].sink[1]: a list is not text"),
        ('{name = "out"}', "routes[0].sink: a table is not text"),
    ],
)
def test_wrong_lists_of_sinks(sink: str, expected: str) -> None:
    text = SMALLEST.replace("[[routes]]", '[sinks.mail]\ntype = "log"\n[[routes]]')
    assert expected in problem(text.replace(SINK, f"sink = {sink}"))


def test_a_name_with_the_mark_of_a_further_sink_is_no_name() -> None:
    assert '"events@mail" is not a name' in problem(SMALLEST + 'name = "events@mail"')


def test_what_a_route_does_with_events_beside_filing_them() -> None:
    (route,) = read(
        SMALLEST + 'urgent = {level = ["fatal", ">= 5"]}\ndrop = ["user.mail", "{token}"]\nmax_event_age = "1h"'
    ).routes
    assert route.urgent == (("level", ("fatal", ">= 5")),)
    assert (route.drop, route.max_event_age_ms) == (("user.mail", "token"), 3_600_000)


def test_an_event_may_end_the_record_of_its_key() -> None:
    (route,) = read(SMALLEST + 'key = "{id}"\ncancel = {status = "resolved"}\non_cancel = "silent"').routes
    assert (route.cancel, route.on_cancel) == ((("status", ("resolved",)),), "silent")
    config = read(SMALLEST + 'on_cancel = "silent"')
    assert [(each.path, each.problem) for each in config.warnings] == [
        ("routes[0].on_cancel", "has no effect without cancel")
    ]


def test_what_has_ended_is_known_for_the_dedupe_window() -> None:
    file = SMALLEST + 'key = "{id}"\ncancel = {status = "resolved"}\n[policies.default]\ndedupe_window = "0s"'
    assert 'routes[0].cancel: needs dedupe_window, which is 0s in the policy "default"' in problem(file)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('cancel = {status = "resolved"}', "routes[0].cancel: needs key: an event ends the record of its own key"),
        ('cancel = "resolved"', 'routes[0].cancel: "resolved" is not a table; write one like {severity = "error"}'),
        ('on_cancel = "quiet"', 'routes[0].on_cancel: "quiet" is not'),
        ('urgent = "fatal"', 'routes[0].urgent: "fatal" is not a table; write one like {severity = "error"}'),
        ('urgent = {level = ">= high"}', 'routes[0].urgent.level: ">= high" compares with what is no number'),
        ('drop = "token"', 'routes[0].drop: "token" is not a list; write ["token"]'),
        ('drop = ["a", "a"]', 'routes[0].drop[1]: "a" is listed twice'),
        ('drop = ["users[0].mail"]', 'routes[0].drop[0]: "users[0].mail" is not a path of a field'),
        (
            'group = "user.kind"\ndrop = ["user"]',
            'routes[0].drop[0]: "user" is not stored, and the records are',
        ),
        ('max_event_age = "1 hour"', 'routes[0].max_event_age: "1 hour" is not a duration'),
    ],
)
def test_what_a_route_cannot_do_with_events(line: str, expected: str) -> None:
    assert expected in problem(SMALLEST + line)


def test_a_dropped_field_that_a_name_shows_is_advised_against() -> None:
    config = read(SMALLEST + 'key = "{order.id}"\ndrop = ["user", "order", "users"]')
    assert [(each.path, each.problem) for each in config.warnings] == [
        ("routes[0].drop[0]", '"user" is left out of the record, but its timeline holds it, which is stored and shown'),
        ("routes[0].drop[1]", '"order" is left out of the record, but its key holds it, which is stored and shown'),
    ]


def test_a_route_is_called_after_its_topic() -> None:
    (route,) = read(SMALLEST.replace('"events"', '"events#ephemeral"')).routes
    assert (route.name, route.topic) == ("events", "events#ephemeral")


def test_two_routes_of_one_name() -> None:
    second = '[[routes]]\ntopic = "events"\ntimeline = "all"\nsink = "out"\n'
    assert problem(SMALLEST + second) == (
        '11: routes[1].name: "events" is the name of routes[0] too; write name = "events-2" or so'
    )
    assert [route.name for route in read(f'{SMALLEST}{second}name = "all"').routes] == ["events", "all"]


def test_what_looks_like_a_secret_in_a_template_is_text() -> None:
    text = SMALLEST.replace('"{user}"', '"env:{environment}"') + 'match = {kind = "env:prod"}'
    (route,) = read(text).routes
    assert (route.timeline, route.match) == ("env:{environment}", (("kind", ("env:prod",)),))


# -- redis and admin


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "http://h",
            "is not the URL of a Redis server; write redis://, rediss:// (TLS), unix:// (a socket), redis+sen",
        ),
        ("redis+tls://h", "is not the URL of a Redis server"),
        ("redis://h1,h2/0", "names several hosts; write redis+sentinel:// or redis+cluster:// before them"),
        (
            "redis+sentinel://h1,h2",
            "does not say what the Sentinels call the primary; write one like redis+sentinel://",
        ),
        ("redis+sentinel://h1,h2/main/x", "does not end in the number of a database"),
        ("redis+sentinel:///main/0", "names no host; write one like redis+sentinel://"),
        ("redis+sentinel://h1,/main/0", "names a host that is not one"),
        ("redis+sentinel://h1:0/main/0", "names a host that is not one"),
        ("redis+sentinel://h1/main?timeout=5", "leave it out; these are: sentinel_password, sentinel_username"),
        ("redis+cluster://h1,h 2", "has a blank or a control character; leave it out"),
        ("redis+cluster://h1/1", "names a database, and a Cluster has but number 0"),
        ("redis+cluster://h1?db=0", "has a setting after its ? that nsqdigest does not hand on; leave it out"),
        ("localhost:6379", "is not a URL; write one like redis://127.0.0.1:6379/0"),
        ("redis:///0", "names no host"),
        ("redis://a..b/0", "names a host that is not one; write one like redis://127.0.0.1:6379/0"),
        (f"redis+cluster://h1,{'x' * 64}", "names a host that is not one"),
        ("redis://h/x", "does not end in the number of a database"),
        ("unix://", "names no socket; write one like unix:///run/redis/redis.sock"),
        (
            "redis://h/0?timeout=5",
            "has a setting after its ? that nsqdigest does not hand on; leave it out; these are: db",
        ),
        ("redis://:a#b@h/0", "has a #; write %23 where a password has one"),
        ("redis://h/0#b", "has a #; write %23 where a password has one"),
    ],
)
def test_wrong_redis_urls(url: str, expected: str) -> None:
    said = problem(f'{SMALLEST}[redis]\nurl = "{url}"')
    assert said.startswith("12: redis.url: the value ")
    assert expected in said


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("rediss://u:hunter2@h?db=1", "rediss://***@h?db=1"),
        ("redis://hunter2@h", "redis://***@h"),
        ("redis://:hunter2@[::1]:6379", "redis://***@[::1]:6379"),
        ("unix://u:hunter2@/run/redis.sock?db=1", "unix://***@/run/redis.sock?db=1"),
        ("redis+sentinel://:hunter2@h1,h2:26379/main/1", "redis+sentinel://***@h1,h2:26379/main/1"),
        (
            "redis+sentinel://h1/main?sentinel_username=u&sentinel_password=hunter2",
            "redis+sentinel://h1/main?sentinel_username=***&sentinel_password=***",
        ),
        ("rediss+cluster://u:hunter2@h1,[::1]:7000", "rediss+cluster://***@h1,[::1]:7000"),
    ],
)
def test_redis_urls_never_show_who_logs_in(url: str, shown: str) -> None:
    config = read(f'{SMALLEST}[redis]\nurl = "{url}"')
    assert config.redis.url == url
    assert config.redis.shown_url == shown
    assert "hunter2" not in repr(config)


def test_an_admin_address_for_other_machines_needs_a_token() -> None:
    text = f'{SMALLEST}[admin]\nlisten = "0.0.0.0:4180"\n'
    assert problem(text) == (
        '12: admin.listen: "0.0.0.0:4180" can be reached from other machines; '
        'write token = "env:NAME" as well, or listen = "127.0.0.1:4180"'
    )
    for key in ("token", "read_token"):
        admin = read(f'{text}{key} = "{LONG}"').admin
        assert getattr(admin, key) == Secret(LONG)


def test_admin_can_be_off() -> None:
    assert read(f'{SMALLEST}[admin]\nlisten = ""').admin.listen is None


LONG = "a-token-of-16-ch"


@pytest.mark.parametrize("key", ["token", "read_token"])
def test_a_token_that_can_be_guessed_is_refused_beyond_this_machine(key: str) -> None:
    text = f'{SMALLEST}[admin]\nlisten = "0.0.0.0:4180"\n{key} = "env:T"\n'
    said = "has 15 characters, and can be guessed; make one of 16 or more: openssl rand -hex 24"
    assert problem(text, {"T": LONG[1:]}) == f"13: admin.{key}: {said}"
    assert read(text, {"T": LONG}).warnings == ()


@pytest.mark.parametrize("listen", ["127.0.0.1:4180", "[::1]:4180", "localhost:1", "unix:/run/nsqdigest/admin.sock"])
def test_on_this_machine_a_short_token_is_a_warning(listen: str) -> None:
    text = f'{SMALLEST}[admin]\nlisten = "{listen}"\ntoken = "env:T"\nread_token = "{LONG}"\n'
    (warning,) = read(text, {"T": "changeme"}).warnings
    assert (warning.path, warning.problem) == ("admin.token", "has 8 characters, and can be guessed")
    assert read(text, {"T": f"{LONG}2"}).warnings == ()
    assert read(f'{SMALLEST}[admin]\nlisten = ""\ntoken = "x"\n').warnings == ()


def test_the_reading_token_is_another_one() -> None:
    said = problem(f'{SMALLEST}[admin]\ntoken = "{LONG}"\nread_token = "{LONG}"\n')
    assert said == (
        "13: admin.read_token: is the same as token, which may write; make another one: openssl rand -hex 24"
    )


def test_admin_may_listen_on_a_unix_socket() -> None:
    config = read(f'{SMALLEST}[admin]\nlisten = "unix:/run/nsqdigest/admin.sock"\n')
    assert config.admin.listen == UnixSocket("/run/nsqdigest/admin.sock")
    assert str(config.admin.listen) == "unix:/run/nsqdigest/admin.sock"


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("unix:", 'is not the whole path of a socket; write one like "unix:/run/nsqdigest/admin.sock"'),
        ("unix:admin.sock", 'is not the whole path of a socket; write one like "unix:/run/nsqdigest/admin.sock"'),
        ("unix:~/admin.sock", 'is not the whole path of a socket; write one like "unix:/run/nsqdigest/admin.sock"'),
        ("unix:/run/", 'is not the whole path of a socket; write one like "unix:/run/nsqdigest/admin.sock"'),
        ("unix:///run/a.sock", 'is not the path of a socket; write "unix:/run/a.sock"'),
        (f"unix:/{'x' * 107}", "is longer than the 107 bytes that a socket's path may have"),
    ],
)
def test_the_socket_has_a_path_that_works_from_every_folder(listen: str, said: str) -> None:
    assert said in problem(f'{SMALLEST}[admin]\nlisten = "{listen}"\n')


# -- secrets


def test_nothing_secret_shows_in_repr() -> None:
    text = WEBHOOK.replace("/hook", "/hunter2") + 'secret = "env:S"\nheaders = {authorization = "hunter2"}\n'
    text += '[admin]\ntoken = "hunter2"\n[redis]\nurl = "redis://:hunter2@h"'
    config = read(text, {"S": SECRET})
    for shown in (repr(config), str(config), f"{config.admin.token}", f"{config.admin}"):
        assert "hunter2" not in shown
        assert SECRET not in shown
    sink = config.sinks["hook"]
    assert isinstance(sink, WebhookSinkSettings)
    assert sink.shown_url == "https://example.com"


def test_a_secret_equals_its_like() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a") != "a"


def test_a_secret_of_the_environment() -> None:
    assert hook('secret = "env:HOOK_SECRET"', HOOK_SECRET=SECRET).secrets == (Secret(SECRET),)


@pytest.mark.parametrize(
    ("value", "environ", "expected"),
    [
        ("env:S", {}, '"env:S" stands for S, which the environment does not have; set S'),
        ("env:S", {"S": ""}, '"env:S" stands for S, which is empty in the environment; set S'),
        ("env:a b", {}, '"env:a b" names no variable of the environment; write one like "env:HOOK_SECRET"'),
        ("env:S", {"S": "hunter2"}, 'the value of "env:S" is not a webhook secret; write whsec_'),
        ("file:", {}, '"file:" names no file; write one like "file:hook.secret"'),
    ],
)
def test_secrets_that_are_not_there(value: str, environ: dict[str, str], expected: str) -> None:
    said = problem(f'{WEBHOOK}secret = "{value}"', environ)
    assert expected in said
    assert "hunter2" not in said


def test_what_came_from_the_environment_is_not_repeated_for_any_option() -> None:
    said = problem(f'{SMALLEST}[limits]\nfuture = "env:F"', {"F": "5hunter2"})
    assert said == '12: limits.future: the value of "env:F" is not a duration; write one like "30s", "5m" or "1h30m"'


def test_a_secret_file_lies_beside_the_configuration_and_loses_its_line_end(tmp_path: Path) -> None:
    secret_file(tmp_path, SECRET + "\n")
    path = tmp_path / "nsqdigest.toml"
    path.write_text(WEBHOOK + 'secret = "file:hook.secret"')
    sink = load(path, {}, KINDS).sinks["hook"]
    assert isinstance(sink, WebhookSinkSettings)
    assert sink.secrets == (Secret(SECRET),)


@pytest.mark.parametrize("mode", [0o622, 0o620, 0o602, 0o666, 0o777])
def test_a_secret_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path, SECRET, mode)
    said = problem(f'{WEBHOOK}secret = "file:{path}"')
    assert said.endswith(f"stands for {path}, which others than its owner may write; run: chmod 640 {path}")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_secret_file_that_the_services_group_may_read_is_right(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path, SECRET, mode)
    assert advice(f'{WEBHOOK}secret = "file:{path}"') == []


@pytest.mark.parametrize("mode", [0o444, 0o644, 0o604])
def test_a_secret_file_that_all_may_read_is_advised_against(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path, SECRET, mode)
    assert advice(f'{WEBHOOK}secret = "file:{path}"') == [
        f"nsqdigest.toml:14: sinks.hook.secret: {path} may be read by every user of this machine; run: chmod o-r {path}"
    ]


def test_secret_files_that_are_none(tmp_path: Path) -> None:
    def said(name: str) -> str:
        return problem(f'{WEBHOOK}secret = "file:{tmp_path / name}"')

    assert "which is not there; make it" in said("nothing")
    assert "which is a folder; name a file in it" in said(".")
    secret_file(tmp_path, "\n")
    assert "which is empty; write the value into it" in said("hook.secret")
    (tmp_path / "hook.secret").write_bytes(b"\xff\xfe")
    assert "which is not UTF-8 text" in said("hook.secret")
    secret_file(tmp_path, "x" * 100_000)
    assert "which is larger than 64 KiB; name a smaller file" in said("hook.secret")
    assert "cannot be read" in said("hook.secret/x") or "is not there" in said("hook.secret/x")


# -- overrides


@pytest.mark.parametrize(
    ("variable", "value", "path", "expected"),
    [
        ("NSQDIGEST__NSQ__MAX_IN_FLIGHT", "500", "nsq.max_in_flight", 500),
        ("NSQDIGEST__nsq__Channel", "5", "nsq.channel", "5"),
        ("NSQDIGEST__NSQ__NSQD_TCP_ADDRESSES", "a:1, b:2", "nsq.nsqd_tcp_addresses", (("a", 1), ("b", 2))),
        ("NSQDIGEST__NSQ__NSQD_TCP_ADDRESSES", '["a:1"]', "nsq.nsqd_tcp_addresses", (("a", 1),)),
        ("NSQDIGEST__REDIS__TIMEOUT", "7s", "redis.timeout_ms", 7000),
        ("NSQDIGEST__REDIS__URL", "env:REDIS", "redis.url", "redis://other"),
        ("NSQDIGEST__ADMIN__LISTEN", "", "admin.listen", None),
        ("NSQDIGEST__POLICIES__DEFAULT__MINIMUM_DELAY", "1m", "policies.default.minimum_delay_ms", 60_000),
        ("NSQDIGEST__POLICIES__DEFAULT__IMMEDIATE", "false", "policies.default.immediate", False),
        ("NSQDIGEST__POLICIES__DEFAULT__INTERVALS", "1s,2s", "policies.default.intervals_ms", (1000, 2000)),
        ("NSQDIGEST__POLICIES__DEFAULT__INTERVALS", "", "policies.default.intervals_ms", ()),
        ("NSQDIGEST__SINKS__MY_HOOK__URL", "https://other", "sinks.my-hook.url", "https://other"),
        ("NSQDIGEST__SINKS__MY_HOOK__HEADERS", '{a = "b"}', "sinks.my-hook.headers", {"a": "b"}),
        ("NSQDIGEST__SINKS__MY_HOOK__SECRET", f'["{SECRET}"]', "sinks.my-hook.secrets", (Secret(SECRET),)),
        ("NSQDIGEST__SINKS__MY_HOOK__SECRET", SECRET, "sinks.my-hook.secrets", (Secret(SECRET),)),
        ("NSQDIGEST__SINKS__OUT__TYPE", "log", "sinks.out.type", "log"),
        ("NSQDIGEST__NSQ__COMPRESSION", "deflate", "nsq.compression", "deflate"),
        ("NSQDIGEST__NSQ__AUTH_SECRET", "env:REDIS", "nsq.auth_secret", Secret("redis://other")),
        ("NSQDIGEST__NSQ__TLS__INSECURE", "true", "nsq.tls.insecure", True),
        ("NSQDIGEST__BACKOFF__SLOW_START", "false", "backoff.slow_start", False),
    ],
)
def test_a_variable_overrides_one_value(variable: str, value: str, path: str, expected: Any) -> None:
    config: Any = read(WEBHOOK.replace("sinks.hook", "sinks.my-hook"), {variable: value, "REDIS": "redis://other"})
    for step in path.split("."):
        config = config[step] if isinstance(config, Mapping) else getattr(config, step, None)
    assert config == expected


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("NSQDIGEST__NSQ__MAX_IN_FLIGHT", "many", '"many" is not a whole number; write one from 1 to 1000000'),
        ("NSQDIGEST__NSQ__MAX_IN_FLIGHT", "0500", '"0500" is not a whole number; write 500'),
        ("NSQDIGEST__NSQ__MAX_IN_FLIGHT", "1\nvalue2 = 2", "is not a whole number; write one from 1 to 1000000"),
        ("NSQDIGEST__NSQ__CHANELL", "x", "unknown key; did you mean NSQDIGEST__NSQ__CHANNEL?"),
        ("NSQDIGEST__NSQ", "x", "unknown key"),
        ("NSQDIGEST__NSQS__CHANNEL", "x", "unknown section; did you mean NSQDIGEST__NSQ__…?"),
        ("NSQDIGEST__X__Y", "x", "unknown section; known are NSQ, BACKOFF, "),
        ("NSQDIGEST__NSQ__TLS", "true", "names no option; write NSQDIGEST__NSQ__TLS__OPTION"),
        ("NSQDIGEST__NSQ__TLS__CA_FIEL", "x", "unknown key; did you mean NSQDIGEST__NSQ__TLS__CA_FILE?"),
        ("NSQDIGEST__NSQ__TLS__CA_FILE", "x", "starts at the folder of the configuration"),
        ("NSQDIGEST__NSQ__COMPRESSION", "zstd", '"zstd" is not one of its values; write "none", '),
        ("NSQDIGEST__ROUTES__0__SINK", "x", "a route cannot be overridden; write it in the file"),
        ("NSQDIGEST__SINKS__URL", "x", "names no option; write NSQDIGEST__SINKS__NAME__OPTION"),
        ("NSQDIGEST__SINKS__OUTT__PATH", "x", 'there is no sink "outt" in the file; did you mean "out"?'),
        ("NSQDIGEST__POLICIES__SLOW__CAPACITY", "5", 'there is no policy "slow" in the file'),
        ("NSQDIGEST__NSQ__NSQD_TCP_ADDRESSES", "a:1,b", '"b" is not an address; write "b:4150"'),
    ],
)
def test_overrides_that_fit_nothing(variable: str, value: str, expected: str) -> None:
    (said,) = problems(SMALLEST, {variable: value})
    assert said.startswith(f"environment {variable}: {expected}") or (
        said.startswith(f"environment {variable}: ") and said.endswith(expected)
    )


def test_problems_of_the_environment_follow_those_of_the_file() -> None:
    said = problems(SMALLEST + "[log]\nx = 1", {"NSQDIGEST__LOG__LEVEL": "loud"})
    assert [each.partition(":")[0] for each in said] == ["nsqdigest.toml", "environment NSQDIGEST__LOG__LEVEL"]


def test_two_variables_for_one_value() -> None:
    said = problem(SMALLEST, {"NSQDIGEST__LOG__LEVEL": "info", "NSQDIGEST__Log__Level": "debug"})
    assert said == "environment NSQDIGEST__Log__Level: sets the same as NSQDIGEST__LOG__LEVEL; leave one of them out"


def test_a_variable_that_fits_two_sinks() -> None:
    text = SMALLEST + '[sinks.a-b]\ntype = "log"\n[sinks.a_b]\ntype = "log"\n'
    assert "fits a-b and a_b; rename one of them" in problem(text, {"NSQDIGEST__SINKS__A_B__PATH": "x"})


def test_an_override_makes_up_for_what_the_file_lacks_and_hides_what_it_says() -> None:
    environ = {"NSQDIGEST__NSQ__NSQD_TCP_ADDRESSES": "a:1"}
    assert read(SMALLEST.partition("\n\n")[2], environ).nsq.nsqd_tcp_addresses == (Address("a", 1),)
    assert read(SMALLEST.replace("127.0.0.1:4150", "wrong"), environ).nsq.nsqd_tcp_addresses == (Address("a", 1),)


def test_other_variables_are_none_of_ours() -> None:
    assert read(SMALLEST, {"NSQDIGEST_CONFIG": "x", "NSQDIGEST": "y", "PATH": "z"}) == read(SMALLEST)


def test_a_broken_section_survives_an_override() -> None:
    assert problems("nsq = 5\nsinks = 6", {"NSQDIGEST__NSQ__CHANNEL": "x", "NSQDIGEST__SINKS__A__URL": "y"})


# -- which file


def test_the_file_that_is_named_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    etc = tmp_path / "etc.toml"
    monkeypatch.setattr(reading, "PLACES", (Path("nsqdigest.toml"), etc))
    with pytest.raises(ConfigError) as raised:
        find(None, {})
    (said,) = raised.value.problems
    assert said.startswith(f"no configuration: looked for nsqdigest.toml and {etc}; write one with `nsqdigest init`, ")
    assert "`nsqdigest demo`" in said
    etc.touch()
    assert find(None, {}) == etc
    (tmp_path / "nsqdigest.toml").touch()
    assert find(None, {"NSQDIGEST_CONFIG": ""}) == Path("nsqdigest.toml")
    assert find(None, {"NSQDIGEST_CONFIG": "env.toml"}) == Path("env.toml")
    assert find(Path("mine.toml"), {"NSQDIGEST_CONFIG": "env.toml"}) == Path("mine.toml")


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    def said(path: Path) -> str:
        with pytest.raises(ConfigError) as raised:
            load(path, {}, KINDS)
        (only,) = raised.value.problems
        return only.removeprefix(str(path))

    assert said(tmp_path / "x.toml").startswith(": there is no such file; name another, or write one with")
    assert said(tmp_path) == ": is a directory; name the file in it with -c FILE"
    path = tmp_path / "latin1.toml"
    path.write_bytes(b"[nsq]\n# caf\xe9\n")
    assert said(path) == ":2: byte 0xe9 is not UTF-8; save the file as UTF-8"
    path.chmod(0)
    if os.geteuid() != 0:
        assert said(path).startswith(": may not be read by this user")


# -- properties: units


@given(st.integers(0, units.LONGEST_MS))
def test_durations_come_back_as_they_were_written(duration_ms: int) -> None:
    assert units.duration_ms(format_duration(duration_ms)) == duration_ms


@given(st.integers(0, 10**12 - 1))
def test_sizes_come_back_as_they_were_written(size_bytes: int) -> None:
    assert units.size_bytes(units.format_size(size_bytes)) == size_bytes


ALMOST = st.text("0123456789.:[]hms dwMKGiBytesunda,-", max_size=14) | st.text(max_size=8)
TOML_SCALARS = ALMOST | st.integers() | st.floats() | st.booleans() | st.dates()


@given(TOML_SCALARS)
def test_whatever_is_suggested_would_be_accepted(value: str | int | float | bool | date) -> None:
    readers = (units.duration_ms, units.size_bytes, lambda text: units.address(text, 4150))
    for reader in readers if isinstance(value, str) else readers[:2]:
        try:
            reader(value)
        except Wrong as wrong:
            for suggestion in re.findall('^write "([^"]*)"', wrong.remedy):
                reader(suggestion)


# -- properties: lines


class _Document:
    """TOML as it is drawn, with the line on which each key was written."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.text = ""
        self.expected: dict[KeyPath, int] = {}

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1

    def one_of(self, *texts: str) -> str:
        return self.draw(st.sampled_from(texts))

    def filling(self) -> None:
        self.text += self.one_of("", "", "\n", "# a = 1\n", "  # [x] \"\"\" '''\n", "\r\n", "\n\n\t\n")

    def key(self, name: str) -> str:
        plain = re.fullmatch(r"[A-Za-z0-9_-]+", name) is not None
        quoted = '"' + "".join(f"\\u{ord(each):04X}" if each in '"\\' else each for each in name) + '"'
        return self.one_of(*([name] if plain else []), quoted, *([f"'{name}'"] if "'" not in name else []))

    def names(self, most: int, least: int = 0) -> list[str]:
        names = st.sampled_from(["a", "b", "c-1", "d.e", "f g", "[h]", "i#", 'j"', "k\\", "'", "=", "é", ""])
        return self.draw(st.lists(names, min_size=least, max_size=most, unique=True))

    def value(self, path: KeyPath, depth: int) -> None:
        kind = self.draw(st.integers(0, 5 if depth < 3 else 3))
        if kind <= 1:
            self.text += self.one_of("1", "-2.5e3", "true", "1979-05-27 07:32:00Z", "07:32:00", "0xff", "inf")
        elif kind == 2:
            self.text += self.one_of('""', '"a = 1 # \\" [x]"', "'a\\'", "''", '"\\\\"', "'}'", '"]"', "','")
        elif kind == 3:
            self.text += self.one_of(
                '""""""', '"""a\nb = 1\n[c]\n"""', '"""a""b""""', '"""\n\\"""\n\\\\"""""', "''''''",
                "'''a\n'b''\n]'''", "'''\n# '''''", '"""x\\\n   y"""',
            )  # fmt: skip
        elif kind == 4:
            self.text += "["
            count = self.draw(st.integers(0, 3))
            for index in range(count):
                self.filling()
                self.expected[(*path, index)] = self.line
                self.value((*path, index), depth + 1)
                self.filling()
                self.text += "," if index < count - 1 else self.one_of("", ",")
            self.filling()
            self.text += "]"
        else:
            self.text += "{ "
            for number, name in enumerate(self.names(3)):
                self.text += ", " if number else ""
                self.pair(path, name, depth + 1)
            self.text += " }"

    def pair(self, path: KeyPath, name: str, depth: int) -> None:
        names = [name, *(self.names(1) if self.draw(st.booleans()) else [])]
        for length in range(len(names)):
            self.expected.setdefault((*path, *names[: length + 1]), self.line)
        self.text += self.one_of(".", " . ").join(self.key(each) for each in names) + self.one_of("=", " = ", "\t=")
        self.value((*path, *names), depth)

    def pairs(self, path: KeyPath, names: list[str]) -> None:
        for name in names:
            self.filling()
            self.text += self.one_of("", "  ")
            self.pair(path, name, 0)
            self.text += self.one_of("\n", "  # x\n", "\r\n")

    def header(self, path: KeyPath, names: list[str], brackets: str) -> None:
        self.filling()
        for length in range(len(path)):
            self.expected.setdefault(path[: length + 1], self.line)
        self.expected[path] = self.line
        dotted = self.one_of(".", " . ").join(self.key(each) for each in names)
        self.text += f"{brackets}{dotted}{brackets.replace('[', ']')}{self.one_of(chr(10), ' # x' + chr(10))}"

    def tables(self) -> None:
        for name in self.names(3):
            top = f"t{name}"
            if self.draw(st.booleans()):
                inner_first = self.draw(st.booleans())
                if inner_first:
                    self.header((top, "inner"), [top, "inner"], "[")
                    self.pairs((top, "inner"), self.names(2))
                self.header((top,), [top], "[")
                self.pairs((top,), self.names(3))
            else:
                self.array_of_tables(top)

    def array_of_tables(self, top: str) -> None:
        for index in range(self.draw(st.integers(1, 3))):
            self.header((top, index), [top], "[[")
            self.pairs((top, index), self.names(2))
            for inner in range(self.draw(st.integers(0, 2))):
                self.header((top, index, "sub", inner), [top, "sub"], "[[")
                self.pairs((top, index, "sub", inner), self.names(2))
            if self.draw(st.booleans()):
                self.header((top, index, "table"), [top, "table"], "[")
                self.pairs((top, index, "table"), self.names(2))


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[KeyPath, int]]:
    document = _Document(draw)
    document.pairs((), document.names(4))
    document.tables()
    document.filling()
    return document.text, document.expected


def _paths(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    steps: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        steps = list(value.items())
    elif isinstance(value, list):
        steps = list(enumerate(value))
    return {(*path, step) for step, _ in steps}.union(*(_paths(each, (*path, step)) for step, each in steps))


@given(documents())
def test_every_key_is_found_on_its_line(document: tuple[str, dict[KeyPath, int]]) -> None:
    text, expected = document
    lines = locate(text)
    assert set(lines) == _paths(tomllib.loads(text))
    assert lines == expected


def test_a_place_without_a_line_has_that_of_what_holds_it() -> None:
    lines = locate("a = 1\n[b]\nc = 2\n[[d]]\n[[d]]\n")
    assert line_of(lines, ("b", "x", "y")) == 2
    assert line_of(lines, ("d", 1, "x")) == 5
    assert line_of(lines, ("x",)) == 1


# -- properties: whatever stands in the file


def _toml(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else toml(value)


ANYTHING = st.recursive(
    TOML_SCALARS.filter(lambda value: not isinstance(value, str) or value.isprintable()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)
OPTIONS = [(name, option.key) for name, section in ALL_SECTIONS.items() for option in section.options]
PROBLEM = re.compile(r"(nsqdigest\.toml:[0-9]+|environment NSQDIGEST__[A-Z_]+): [^\n]*[;?] ?[^\n]*")


@given(st.sampled_from(OPTIONS), ANYTHING)
@settings(max_examples=400)
def test_any_value_of_any_option_is_read_or_refused_in_one_line_each(place: tuple[str, str], value: Any) -> None:
    section, key = place
    tree = tomllib.loads(example.text(KINDS))
    tables = {
        **{name: tree[name] for name in SECTIONS},
        "policies.default": tree["policies"]["default"],
        "sinks.webhook": tree["sinks"]["hook"],
        "sinks.email": tree["sinks"]["mail"],
        "sinks.nsq": tree["sinks"]["queue"],
        "sinks.log": tree["sinks"]["out"],
        "routes": tree["routes"][0],
    }
    tables[section][key] = value
    for said in outcome("\n".join(_written(tree))):
        assert PROBLEM.fullmatch(said), said


def _written(tree: dict[str, Any]) -> list[str]:
    rows: list[str] = []
    for name, table in tree.items():
        tables = [(f"[{name}]", table)]
        if name in ("policies", "sinks"):
            tables = [(f"[{name}.{inner}]", each) for inner, each in table.items()]
        elif name == "routes":
            tables = [("[[routes]]", each) for each in table]
        for header, each in tables:
            rows += [header, *(f"{key} = {_toml(value)}" for key, value in each.items())]
    return rows


BROKEN = ["[", "]]", "x = [", '"""', "= 1", "[nsq.tls]", "a.b.c = 1"]
LINES = [*SMALLEST.splitlines(), *example.text(KINDS).splitlines(), *BROKEN]


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=20), max_size=12))
def test_any_text_is_read_or_refused(rows: list[str]) -> None:
    assert all(said.startswith("nsqdigest.toml:") for said in outcome("\n".join(rows)))


@given(
    st.sampled_from(["secret", "url", "headers", "token", "redis"]),
    st.text("0123456789abcXYZ:/@#?!{}[]. ", min_size=6, max_size=30).map(lambda text: f"hunter2{text}"),
    st.booleans(),
    st.sampled_from(["", "whsec_", "https://", "redis://", "redis://:", "http://u:"]),
)
def test_no_message_and_no_repr_gives_a_secret_away(place: str, text: str, by_environment: bool, start: str) -> None:
    secret = start + text
    written = '"env:S"' if by_environment else toml(secret)
    lines = {"secret": f"secret = {written}", "headers": f"headers = {{authorization = {written}}}"}
    config = WEBHOOK + lines.get(place, "")
    if place == "url":
        config = config.replace('"https://example.com/hook"', written)
    config += {"token": f"\n[admin]\ntoken = {written}", "redis": f"\n[redis]\nurl = {written}"}.get(place, "")
    try:
        shown = repr(read(config, {"S": secret}))
    except ConfigError as error:
        shown = str(error)
    host = re.match(r"[a-z]+://(?:[^/?#@]*@)?([^/?#@:]*)", secret)
    if not (place in ("redis", "url") and host and "hunter2" in host.group(1)):
        assert "hunter2" not in shown


def test_a_misspelt_required_key_is_one_problem() -> None:
    text = """
[nsq]
nsqd_tcp_adresses = ["127.0.0.1:4150"]
[sinks.out]
typ = "log"
[[routes]]
topik = "events"
timeline = "{user}"
sink = "out"
"""
    with pytest.raises(ConfigError) as raised:
        parse_text(text, "n.toml", {}, KINDS)
    assert raised.value.problems == [
        'n.toml:3: nsq.nsqd_tcp_adresses: unknown key; did you mean "nsqd_tcp_addresses"?',
        'n.toml:5: sinks.out.typ: unknown key; did you mean "type"?',
        'n.toml:7: routes[0].topik: unknown key; did you mean "topic"?',
    ]
