"""Times of a policy: cron expressions, zones and windows of quiet hours.

Each function takes the text and returns its value in the tree, or raises `Wrong`.
"""

from __future__ import annotations

import re

from nsqdigest.base import calendar
from nsqdigest.base.local_time import nearest_zone, zone_named
from nsqdigest.base.quiet_hours import Window
from nsqdigest.base.templates import Template
from nsqdigest.config import texts
from nsqdigest.config.problems import Wrong

_CRON_LIKE = 'write five fields, such as "0 9 * * 1-5": minute, hour, day of month, month, day of week'
_WINDOW_LIKE = 'write one like "22:00-07:00"'
_WINDOW = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_LOOSE_WINDOW = re.compile(
    r"([0-9]{1,2})(?:[:.h]([0-9]{2}))?\s*(am|pm)?\s*(?:-|\u2013|\u2014|to|until|\.\.|/)\s*([0-9]{1,2})(?:[:.h]([0-9]{2}))?\s*(am|pm)?"
)
_TIME_OF_DAY = re.compile(r"([0-9]{1,2})[:.]([0-9]{2})(?:[:.][0-9]{2})?")
_SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def cron(text: str) -> str:
    try:
        calendar.check(text)
    except calendar.NeverFires:
        raise Wrong("never comes: no date of the next ten years matches", "write a date that there is") from None
    except calendar.BadCron as error:
        guess = _guess_cron(text)
        raise Wrong(f"is no cron expression: it {error}", f'write "{guess}"' if guess else _CRON_LIKE) from None
    return " ".join(text.split())


def _guess_cron(text: str) -> str:
    parts = text.split()
    if guess := _SHORTHANDS.get(text.strip().lower()):
        return guess
    if (time := _TIME_OF_DAY.fullmatch(text.strip())) and int(time[1]) < 24 and int(time[2]) < 60:
        return f"{int(time[2])} {int(time[1])} * * *"
    if len(parts) == 6 and parts[0] == "0":  # with seconds
        return " ".join(parts[1:])
    return ""


def zone(text: str) -> str:
    if zone_named(text) is None:
        guess = nearest_zone(text)
        like = 'write a name of the IANA list, such as "Europe/Berlin" or "UTC"'
        raise Wrong("is not a zone", f'write "{guess}"' if guess else like, like)
    return text


def zone_or_template(text: str) -> str:
    if "{" not in text and "}" not in text:
        return zone(text)
    if not Template.parse(texts.template(text)).fields:
        raise Wrong("has no field", texts.suggested_field(text, "{user.zone}"))
    return text


def window(text: str) -> Window:
    match = _WINDOW.fullmatch(text)
    if match is None:
        guess = _guess_window(text)
        raise Wrong("is not a window of quiet hours", f'write "{guess}"' if guess else _WINDOW_LIKE)
    hours_and_minutes = [int(each) for each in match.groups()]
    for hour, minute in (hours_and_minutes[:2], hours_and_minutes[2:]):
        if hour > 23 or minute > 59:
            remedy = 'write "00:00" for midnight' if (hour, minute) == (24, 0) else "write times from 00:00 to 23:59"
            raise Wrong(f"has a time that no day has, {hour:02}:{minute:02}", remedy)
    found = _window_of(*hours_and_minutes)
    if not found.minutes:
        raise Wrong("begins and ends at the same time", _WINDOW_LIKE)
    return found


def _window_of(start_hour: int, start_minute: int, end_hour: int, end_minute: int) -> Window:
    return Window(60 * start_hour + start_minute, 60 * end_hour + end_minute)


def _guess_window(text: str) -> str:
    match = _LOOSE_WINDOW.fullmatch(text.strip().lower())
    if match is None:
        return ""
    times = [_minute_of_day(*match.groups()[at : at + 3]) for at in (0, 3)]
    return str(Window(*times)) if all(0 <= each < 24 * 60 for each in times) and times[0] != times[1] else ""


def _minute_of_day(hour: str, minute: str | None, half: str | None) -> int:
    hours = int(hour)
    if half:
        hours = hours % 12 + (12 if half == "pm" else 0)
    return 60 * (0 if hours == 24 else hours) + int(minute or 0)
