"""What differs between two configurations, what each difference needs, and how it is said (pure)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nsqdigest.config import Config, parse_text
from nsqdigest.config.options import SECTIONS, TABLES, TLS
from nsqdigest.daemon.changes import NEEDS, Changes, Names, Need, compare, refusal
from nsqdigest.delivery.sinks.table import KINDS

pytestmark = pytest.mark.unit

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
SMALL = """
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:4150"]
[policies.default]
minimum_delay = "5m"
[sinks.out]
type = "log"
[[routes]]
topic = "events"
timeline = "{user}"
sink = "out"
"""


def read(text: str, environ: dict[str, str] | None = None) -> Config:
    return parse_text(text, "test.toml", environ or {}, KINDS)


def between(before: str, after: str, environ: dict[str, str] | None = None) -> Changes:
    return compare(read(before), read(after, environ), KINDS)


def with_option(table: str, option: str) -> str:
    """The small file with one more line in a table."""
    if f"[{table}]" in SMALL:
        return SMALL.replace(f"[{table}]", f"[{table}]\n{option}")
    return SMALL + f"[{table}]\n{option}\n"


# -- nothing is forgotten


def test_every_option_has_its_need() -> None:
    paths = {f"{name}.{option.key}" for name, section in SECTIONS.items() for option in section.options}
    paths |= {f"nsq.tls.{option.key}" for option in TLS.options}
    assert paths == set(NEEDS)
    assert set(TABLES) - {path.partition(".")[0] for path in NEEDS} == {"policies", "sinks", "routes"}


def test_the_page_says_the_same() -> None:
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", PAGE.read_text("utf-8").partition("## Reload")[2], re.MULTILINE))
    headings = {
        Need.IN_PLACE: "in place", Need.LOOKUPDS: "nsqlookupds are asked anew",
        Need.CONSUMERS: "all topics connect anew", Need.RESTART: "needs a restart",
    }  # fmt: skip
    for need, heading in headings.items():
        assert set(re.findall(r"`([a-z_.]+)`", rows[heading])) == {path for path in NEEDS if NEEDS[path] is need}


# -- what differs


def test_equal_files_differ_in_nothing() -> None:
    changes = between(SMALL, "# a comment\n" + SMALL)
    assert (changes.is_any, changes.text, changes.need_restart) == (False, "nothing", ())


@pytest.mark.parametrize(
    ("table", "option", "need", "said"),
    [
        ("nsq", "max_in_flight = 50", Need.IN_PLACE, "nsq.max_in_flight 2500 → 50"),
        ("nsq", 'requeue_delay = "90s"', Need.IN_PLACE, "nsq.requeue_delay 1s → 1m30s"),
        ("nsq", 'channel = "mine"', Need.CONSUMERS, 'nsq.channel "nsqdigest" → "mine"; all topics connect anew'),
        ("nsq.tls", "insecure = true", Need.CONSUMERS, "nsq.tls off → on; all topics connect anew"),
        (
            "nsq", 'lookupd_http_addresses = ["a:4161", "[::1]:4161"]', Need.LOOKUPDS,
            "nsq.lookupd_http_addresses [] → [a:4161, [::1]:4161]",
        ),
        ("nsq", 'allow_nsqds = ["10.0.0.0/8"]', Need.LOOKUPDS, 'nsq.allow_nsqds [] → ["10.0.0.0/8"]'),
        ("limits", 'event = "1MiB"', Need.IN_PLACE, "limits.event 64KiB → 1MiB"),
        ("backoff", "slow_start = false", Need.IN_PLACE, "backoff.slow_start true → false"),
        ("redis", 'namespace = "other"', Need.RESTART, 'redis.namespace "nsqdigest" → "other"'),
        ("admin", 'listen = ""', Need.RESTART, 'admin.listen 127.0.0.1:4180 → ""'),
        ("admin", 'listen = "unix:/run/a"', Need.RESTART, "admin.listen 127.0.0.1:4180 → unix:/run/a"),
    ],
)  # fmt: skip
def test_an_option(table: str, option: str, need: Need, said: str) -> None:
    changes = between(SMALL, with_option(table, option))
    assert {each for each in Need if changes.options[each]} == {need}
    assert changes.text == said


def test_named_things_come_go_and_change() -> None:
    after = SMALL.replace('minimum_delay = "5m"', 'minimum_delay = "10m"\nquiet = "22:00-07:00"')
    after = after.replace("[sinks.out]", "[sinks.other]").replace('sink = "out"', 'sink = "other"\npolicy = "calm"')
    after += '[policies.calm]\n[[routes]]\ntopic = "alerts"\ntimeline = "x"\nsink = "other"\n'
    changes = between(SMALL, after)
    assert changes.topics == Names(added=("alerts",))
    assert changes.text == (
        "policies: + calm, ~ default (minimum_delay 5m → 10m, quiet); sinks: + other, - out; "
        'routes: + alerts, ~ events (policy "default" → "calm", sink "out" → "other"); topics: + alerts'
    )


def test_a_long_list_is_cut() -> None:
    more = "".join(f'[[routes]]\nname = "r{n}"\ntopic = "t"\ntimeline = "x"\nsink = "out"\n' for n in range(30))
    assert "+ r9, 20 more" in between(SMALL, SMALL + more).text


def test_a_sink_of_another_type_and_a_changed_one() -> None:
    hook = 'type = "webhook"\nurl = "https://hooks.example.com/secret-path"'
    assert "sinks: ~ out rebuilt (type log → webhook)" in between(SMALL, SMALL.replace('type = "log"', hook)).text
    more = '\nsecret = "env:KEY"\nheaders = {x-key = "s3cret"}\nconcurrency = 2'
    changed = SMALL.replace('type = "log"', hook + more)
    changes = compare(read(SMALL.replace('type = "log"', hook)), read(changed, {"KEY": SECRET}), KINDS)
    assert changes.text == "sinks: ~ out rebuilt (secret, headers, concurrency)"


SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


@pytest.mark.parametrize(
    ("table", "option", "said"),
    [
        ("admin", 'token = "env:KEY"', "admin.token"),
        ("admin", 'read_token = "env:KEY"', "admin.read_token"),
        ("nsq", 'auth_secret = "env:KEY"', "nsq.auth_secret; all topics connect anew"),
        ("redis", 'url = "redis://me:s3cret@h:1/0"', "redis.url redis://127.0.0.1:6379/0 → redis://***@h:1/0"),
    ],
)
def test_no_secret_is_said(table: str, option: str, said: str) -> None:
    assert between(SMALL, with_option(table, option), {"KEY": "s3cret-s3cret-s3cret"}).text == said


def test_another_password_of_redis_is_a_change_without_a_value() -> None:
    before, after = (with_option("redis", f'url = "redis://me:{word}@h:1/0"') for word in ("s3cret", "other"))
    assert between(before, after).text == "redis.url"


def test_other_contents_of_the_same_files_of_tls() -> None:
    config = read(with_option("nsq.tls", "insecure = true"))
    changes = compare(config, config, KINDS, new_tls_files=True)
    assert changes.text == "nsq.tls (new contents of its files); all topics connect anew"
    assert not compare(read(SMALL), read(SMALL), KINDS, new_tls_files=True).is_any


def test_all_that_needs_a_restart_is_named_at_once() -> None:
    after = with_option("redis", 'timeout = "9s"\nnamespace = "b"') + '[admin]\nlisten = ""\n'
    assert refusal(between(SMALL, after).need_restart) == (
        '3 options cannot change without a restart: redis.namespace "nsqdigest" → "b", redis.timeout 5s → 9s, '
        'admin.listen 127.0.0.1:4180 → ""; restart the daemon, or write them as before'
    )
