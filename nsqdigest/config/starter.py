"""The file that `nsqdigest init` writes: the smallest that works, and as comments the options that most files get.

Lines of options are written from the declarations, as those of `example` are; what stands between them explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from nsqdigest.config.example import option_line
from nsqdigest.config.options import EVERY_SINK, POLICY, ROUTE, SECTIONS, Kinds, Option

_HEAD = """\
# A configuration of nsqdigest to begin with. It works as it is where nsqd and Redis run on this machine; a line with
# one # in front shows an option with its default, or an example. `nsqdigest init --all -` prints every option.
#
#   nsqdigest check        # every mistake, with its line and the remedy
#   nsqdigest try          # what becomes of an event: echo '{"user": "ada"}' | nsqdigest try
#   nsqdigest doctor       # tests every server that is named here
#   nsqdigest run          # the daemon
#
# Durations are "30s", "5m", "1h30m"; secrets are "env:NAME" or "file:PATH".
"""
_POLICY = (
    "\n# How often a timeline is delivered: the first event at once, then never more often than every 5 minutes.\n"
)
_SINKS = "\n# Where digests go. This one writes them to stdout, for people or as JSON.\n"
_WEBHOOK = '\n# A webhook: name it in a route (sink = "hook") and set HOOK_SECRET before you take the # away.\n'
_ROUTES = (
    "\n# What becomes of the events of a topic. An event, a JSON object, goes into the timeline that its fields name.\n"
)


def text(kinds: Kinds) -> str:
    return "".join(_parts(kinds))


def _parts(kinds: Kinds) -> Iterator[str]:
    nsq, redis, admin = (SECTIONS[name].options for name in ("nsq", "redis", "admin"))
    log, webhook = kinds["log"], kinds["webhook"]
    yield f"{_HEAD}\n[nsq]\n"
    yield from _written(nsq, nsqd_tcp_addresses=["127.0.0.1:4150"])
    yield from _shown(nsq, lookupd_http_addresses=["127.0.0.1:4161"])
    yield from _shown(nsq, "channel", "max_in_flight", "dead_letter_topic")
    yield "\n[redis]\n"
    yield from _written(redis, "url")
    yield f"{_POLICY}[policies.default]\n"
    yield from _shown(POLICY.options, "immediate", "minimum_delay", "increment_delay", "maximum_delay", "capacity")
    yield f"{_SINKS}[sinks.out]\n"
    yield option_line("type", log.name, log.doc)
    yield from _shown(log.options, "path")
    yield f"{_WEBHOOK}# [sinks.hook]\n"
    yield f"# {option_line('type', webhook.name, webhook.doc)}"
    yield from _shown(webhook.options, "url", secret="env:HOOK_SECRET")
    yield from _shown(EVERY_SINK, "timeout", "max_age")
    yield f"{_ROUTES}[[routes]]\n"
    yield from _written(ROUTE.options, "topic", "timeline", "sink")
    yield from _shown(ROUTE.options, match={"severity": "error"}, key="{id}", timestamp="at", group="kind")
    yield "\n[admin]\n"
    yield from _shown(admin, "listen", token="env:NSQDIGEST_TOKEN")


def _written(options: Iterable[Option], *keys: str, **values: Any) -> Iterator[str]:
    """These options: by key alone with sample or default, by keyword with that value."""
    by_key = {option.key: option for option in options}
    for key in (*keys, *values):
        option = by_key[key]
        usual = option.default if option.sample is None else option.sample
        yield option_line(key, values.get(key, usual), option.doc)


def _shown(options: Iterable[Option], *keys: str, **values: Any) -> Iterator[str]:
    return (f"# {line}" for line in _written(options, *keys, **values))
