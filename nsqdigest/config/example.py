"""The example file, written from the declarations, so that it cannot disagree with them: `make example-file`.

The kinds of sink are an argument: they stand to the right of this room, in `delivery/sinks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from nsqdigest.config.options import EVERY_SINK, POLICY, ROUTE, SECTIONS, TLS, Kinds, Option, SinkTable
from nsqdigest.config.problems import toml

_COMMENT_COLUMN = 44

_HEAD = """\
# nsqdigest: every option of this version with its default, and what it does. Nearly all of it can be left out.
#
# Durations are "250ms", "30s", "5m", "1h30m", "7d"; sizes "256B", "64KiB", "1MiB"; addresses host:port or [v6]:port.
# Text may be "env:NAME" or "file:PATH" as a whole (from this file's folder, chmod 640), which keeps secrets out of it;
# only fields and templates of a route are taken as they are. A variable NSQDIGEST__SECTION__KEY overrides one value:
# NSQDIGEST__NSQ__MAX_IN_FLIGHT=500, NSQDIGEST__POLICIES__DEFAULT__MINIMUM_DELAY=1m.
# `nsqdigest check -c FILE` lists the mistakes of a file.
"""
_TLS = """\
# TLS to every nsqd: the table itself asks for it, also when it is empty. There is no fall-back to plain text.
"""
_POLICY = """\
# A route without `policy` has this one. Other policies, [policies.NAME], start from the defaults written here, not from
# [policies.default] of your file.
"""
_SINKS = """\
# Where digests go. Each type of sink has options of its own; what the last one here has from `timeout` on, all have.
"""
_ROUTES = "# A route files the events of a topic into timelines. As many as you like; an event may take several.\n"


def option_line(key: str, value: Any, doc: str) -> str:
    return f"{key} = {toml(value)}".ljust(_COMMENT_COLUMN - 1) + f" # {doc}\n"


def _options(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        yield option_line(option.key, option.default if option.sample is None else option.sample, option.doc)


def _sink(kind: SinkTable) -> Iterator[str]:
    yield f"[sinks.{kind.example}]\n"
    yield option_line("type", kind.name, kind.doc)
    yield from _options(kind.options)


def _parts(kinds: Kinds) -> Iterator[str]:
    yield _HEAD
    for name in ("nsq", "backoff", "redis", "scheduler", "limits"):
        yield f"\n[{name}]\n"
        yield from _options(SECTIONS[name].options)
        if name == "nsq":
            yield f"\n{_TLS}# [nsq.tls]\n"
            yield from (f"# {line}" for line in _options(TLS.options))
    yield f"\n{_POLICY}[policies.default]\n"
    yield from _options(POLICY.options)
    yield f"\n{_SINKS}"
    yield "\n".join("".join(_sink(kind)) for kind in reversed([*kinds.values()]))
    yield from _options(EVERY_SINK)
    yield f"\n{_ROUTES}[[routes]]\n"
    yield from _options(ROUTE.options)
    for name in ("admin", "log"):
        yield f"\n[{name}]\n"
        yield from _options(SECTIONS[name].options)


def text(kinds: Kinds) -> str:
    return "".join(_parts(kinds))
