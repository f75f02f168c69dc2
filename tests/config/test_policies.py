"""Policies in the file: a calendar, its zone and quiet hours; what excludes what."""

from __future__ import annotations

import pytest

from nsqdigest.base.errors import Mistake
from nsqdigest.base.quiet_hours import Window
from nsqdigest.config import Config, ConfigError, Policy
from nsqdigest.config.reading import parse_text
from nsqdigest.delivery.sinks.table import KINDS
from support.files import SMALLEST

pytestmark = pytest.mark.unit

ROUTED = SMALLEST + 'policy = "x"\n[policies.x]\n'


def read(lines: str, environ: dict[str, str] | None = None) -> Config:
    return parse_text(ROUTED + lines, "nsqdigest.toml", environ or {}, KINDS)


def policy(lines: str) -> Policy:
    return read(lines).policies["x"]


def problems(lines: str) -> list[Mistake]:
    with pytest.raises(ConfigError) as raised:
        read(lines)
    return raised.value.problems


def test_a_calendar_stands_instead_of_all_delays() -> None:
    daily = policy('at = "0  9 * * 1-5"\nzone = "Europe/Berlin"')
    assert (daily.at, daily.zone) == (("0 9 * * 1-5",), "Europe/Berlin")
    assert not daily.immediate, "nothing comes before nine"
    delays = daily.minimum_delay_ms, daily.increment_delay_ms, daily.maximum_delay_ms, daily.growth, daily.intervals_ms
    assert delays == (0, 0, 0, "none", ())


def test_the_zone_may_be_a_field_of_the_event() -> None:
    zoned = policy('at = "0 9 * * *"\nquiet = "22:00-07:00"\nzone = "{user.zone}"\nzone_default = "Asia/Tokyo"')
    assert (zoned.zone, zoned.is_zoned, zoned.common_zone) == ("{user.zone}", True, "Asia/Tokyo")
    assert (policy("").is_zoned, policy("").common_zone) == (False, "UTC")


def test_with_a_calendar_the_first_comes_at_once_where_that_is_written() -> None:
    assert policy('at = "0 9 * * *"\nimmediate = true').immediate


def test_several_times_are_a_list() -> None:
    assert policy('at = ["0 9 * * *", "30 17 * * *"]').at == ("0 9 * * *", "30 17 * * *")
    assert policy('quiet = ["22:00-07:00", "12:00-13:00"]').quiet == (Window(1320, 420), Window(720, 780))
    assert policy("at = []\nquiet = []").at == ()


def test_a_calendar_from_the_environment() -> None:
    config = read("", {"NSQDIGEST__POLICIES__X__AT": "0 9 * * *", "NSQDIGEST__POLICIES__X__QUIET": '["22:00-07:00"]'})
    assert config.policies["x"].at == ("0 9 * * *",)
    assert config.policies["x"].quiet == (Window(1320, 420),)


def test_delays_beside_a_calendar_are_one_mistake() -> None:
    (only,) = problems('at = "0 9 * * *"\nminimum_delay = "1h"\nmaximum_delay = "1m"\nintervals = ["5m"]')
    assert only == (
        "nsqdigest.toml:14: policies.x.minimum_delay: at excludes minimum_delay, maximum_delay and intervals; "
        "leave them out: the calendar alone decides when"
    )


def test_delays_are_refused_beside_a_calendar_that_is_wrong_itself() -> None:
    assert len(problems('at = "9:30"\nminimum_delay = "1h"')) == 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('at = "0 0 31 2 *"', '"0 0 31 2 *" never comes: no date of the next ten years matches; write a date'),
        ('at = "9:30"', 'it has 1 field, not 5: minute, hour, day of month, month, day of week; write "30 9 * * *"'),
        ('at = "@daily"', 'write "0 0 * * *"'),
        ('at = "0 0 9 * * *"', 'write "0 9 * * *"'),
        ('at = "daily"', 'write five fields, such as "0 9 * * 1-5"'),
        ('at = "61 * * * *"', '"61 * * * *" is no cron expression: it has a bad minute; write five fields'),
        ('at = ["0 9 * * *", ""]', 'x.at[1]: "" is no cron expression'),
        ("at = 9", '9 is not text; write "9"'),
        ('at = "0 9 * * *"\nzone = "{user.zone"', '"{user.zone" has a lone "{"'),
        ('at = "0 9 * * *"\nzone = "{z}"\nzone_default = "Berlin"', '"Berlin" is not a zone; write "Europe/Berlin"'),
        ('zone = "Berlin"', '"Berlin" is not a zone; write "Europe/Berlin"'),
        ('zone = "local"', 'write a name of the IANA list, such as "Europe/Berlin"'),
        ('quiet = "25:00-07:00"', '"25:00-07:00" has a time that no day has, 25:00; write times from 00:00 to 23:59'),
        ('quiet = "22:00-24:00"', '24:00; write "00:00" for midnight'),
        ('quiet = "22-7"', '"22-7" is not a window of quiet hours; write "22:00-07:00"'),
        ('quiet = "10pm to 7am"', 'write "22:00-07:00"'),
        ('quiet = "12am-12pm"', 'write "00:00-12:00"'),
        ('quiet = "night"', 'write one like "22:00-07:00"'),
        ('quiet = "07:00-07:00"', "begins and ends at the same time"),
        ('quiet = ["00:00-12:00", "12:00-00:00"]', "covers the whole day: nothing would ever be delivered"),
    ],
)
def test_wrong_times_are_named_with_a_remedy(line: str, expected: str) -> None:
    (only,) = problems(line)
    assert expected in only


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            'quiet = "22:00-07:00"\nzone_default = "Asia/Tokyo"',
            "policies.x.zone_default: has no effect where zone names",
        ),
        ('zone = "{user.zone}"', "13: policies.x.zone: has no effect without at or quiet"),
        ('zone = "Europe/Berlin"', "13: policies.x.zone: has no effect without at or quiet; leave it out, or write"),
        (
            'zone = "UTC"\nat = "0 3 * * *"\nquiet = "22:00-07:00"',
            "15: policies.x.quiet: holds back every instant of at: the digests go out when it ends; write times",
        ),
    ],
)
def test_what_is_seldom_meant_is_advised_against(lines: str, expected: str) -> None:
    (only,) = read(lines).warnings
    assert expected in only


def test_the_default_policy_may_be_all_that_another_may() -> None:
    text = ROUTED.replace('policy = "x"', "").replace("policies.x", "policies.default")
    assert "policies.default" in text
    zoned = 'quiet = "22:00-07:00"\nzone = "{user.zone}"\nzone_default = "UTC"'
    assert parse_text(text + zoned, "nsqdigest.toml", {}, KINDS).warnings == ()


def test_quiet_hours_that_outlast_the_age_of_a_digest_are_advised_against() -> None:
    text = ROUTED.replace('type = "log"', 'type = "log"\nmax_age = "8h"') + 'zone = "UTC"\nquiet = "22:00-07:00"'
    (only,) = parse_text(text, "nsqdigest.toml", {}, KINDS).warnings
    assert only == (
        'nsqdigest.toml:15: policies.x.quiet: lasts 9h, and max_age of sink "out" is 8h: a digest that fails before '
        'moves to the dead list untried; write max_age = "18h" or more in it'
    )


def test_a_calendar_that_is_partly_quiet_is_fine() -> None:
    assert read('zone = "UTC"\nat = ["0 3 * * *", "0 9 * * *"]\nquiet = "22:00-07:00"').warnings == ()
