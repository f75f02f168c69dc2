"""The example file, written from the declarations, so that it cannot disagree with them.

`python -m nsqdigest.config.example > config/nsqdigest.toml` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from nsqdigest.config.options import POLICY, ROUTE, SECTIONS, SINKS, TLS, Option
from nsqdigest.config.problems import toml

_COMMENT_COLUMN = 44

_HEAD = """\
# nsqdigest: every option of this version with its default, and what it does. Nearly all of it can be left out.
#
# Durations are "250ms", "30s", "5m", "1h30m", "7d"; sizes "256B", "64KiB", "1MiB"; addresses host:port or [v6]:port.
# Text may be "env:NAME" or "file:PATH" as a whole (from this file's folder, chmod 640), which keeps secrets out of it;
# only what a route says about fields is taken as it stands. A variable NSQDIGEST__SECTION__KEY overrides one value:
# NSQDIGEST__NSQ__MAX_IN_FLIGHT=500, NSQDIGEST__POLICIES__DEFAULT__MINIMUM_DELAY=1m.
# `nsqdigest check -c FILE` says whether a file is right.
"""
_TLS = """\
# TLS to every nsqd: the table itself asks for it, also when it is empty. There is no fall-back to plain text.
"""
_POLICY = """\
# A route without `policy` has this one. Other policies, [policies.NAME], start from the defaults written here, not from
# what [policies.default] says in your file.
"""
_SINKS = """\
# Where digests go. A sink of type "log" writes one line of JSON each, one of type "nsq" publishes one message each.
# What the webhook below has from `timeout` on, they have as well.
"""
_ROUTES = "# A route files the events of a topic into timelines. As many as you like; an event may take several.\n"


def _line(key: str, value: Any, doc: str) -> str:
    return f"{key} = {toml(value)}".ljust(_COMMENT_COLUMN - 1) + f" # {doc}\n"


def _options(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        yield _line(option.key, option.default if option.sample is None else option.sample, option.doc)


def _parts() -> Iterator[str]:
    yield _HEAD
    for name in ("nsq", "backoff", "redis", "scheduler", "limits"):
        yield f"\n[{name}]\n"
        yield from _options(SECTIONS[name].options)
        if name == "nsq":
            yield f"\n{_TLS}# [nsq.tls]\n"
            yield from (f"# {line}" for line in _options(TLS.options))
    yield f"\n{_POLICY}[policies.default]\n"
    yield from _options(POLICY.options)
    yield f"\n{_SINKS}[sinks.out]\n"
    yield _line("type", "log", '"log", "nsq" or "webhook"')
    yield from _options(SINKS["log"].options[:1])
    yield "\n[sinks.queue]\n"
    yield _line("type", "nsq", "the same bytes as the webhook's; TLS, compression and AUTH are those of [nsq]")
    yield from _options(SINKS["nsq"].options[:2])
    yield "\n[sinks.hook]\n"
    yield _line("type", "webhook", "signed as Standard Webhooks says")
    yield from _options(SINKS["webhook"].options)
    yield f"\n{_ROUTES}[[routes]]\n"
    yield from _options(ROUTE.options)
    for name in ("admin", "log"):
        yield f"\n[{name}]\n"
        yield from _options(SECTIONS[name].options)


def text() -> str:
    return "".join(_parts())


if __name__ == "__main__":
    sys.stdout.write(text())
