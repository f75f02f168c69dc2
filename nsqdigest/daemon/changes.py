"""What differs between the configuration in force and another one, and what each difference needs. It looks at nothing
but the two.

    in place    the part that uses it gets the new value between two batches, or two claims
    lookupds    the nsqlookupds are asked anew; no connection to an nsqd ends
    consumers   the consumer of each topic, and all that publishes, ends as in a drain and connects anew
    restart     cannot change while the daemon runs: with one such difference the file is not taken at all

A changed policy or route is a new one that takes the old one's place, and a changed sink is rebuilt, whichever of their
options it is. Invariants: every option of the other tables has its line in `NEEDS`; no text made here holds a secret.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from nsqdigest.base.moments import format_duration
from nsqdigest.base.words import counted
from nsqdigest.config import Address, Config, Secret, UnixSocket
from nsqdigest.config.options import POLICY, ROUTE, SECTIONS, TLS, Kinds, Option, Section
from nsqdigest.config.problems import show
from nsqdigest.config.units import format_size

_SHOWN = 5
"""Names or options of one kind in a sentence."""


class Need(StrEnum):
    IN_PLACE = "in place"
    LOOKUPDS = "lookupds"
    CONSUMERS = "consumers"
    RESTART = "restart"


NEEDS: Mapping[str, Need] = {
    "nsq.nsqd_tcp_addresses": Need.IN_PLACE,
    "nsq.lookupd_http_addresses": Need.LOOKUPDS,
    "nsq.lookupd_poll_interval": Need.LOOKUPDS,
    "nsq.lookupd_poll_jitter": Need.LOOKUPDS,
    "nsq.allow_nsqds": Need.LOOKUPDS,
    "nsq.channel": Need.CONSUMERS,
    "nsq.max_in_flight": Need.IN_PLACE,
    "nsq.batch_size": Need.IN_PLACE,
    "nsq.heartbeat_interval": Need.CONSUMERS,
    "nsq.msg_timeout": Need.CONSUMERS,
    "nsq.compression": Need.CONSUMERS,
    "nsq.requeue_delay": Need.IN_PLACE,
    "nsq.dead_letter_topic": Need.IN_PLACE,
    "nsq.auth_secret": Need.CONSUMERS,
    "nsq.drain_timeout": Need.IN_PLACE,
    "nsq.tls.ca_file": Need.CONSUMERS,
    "nsq.tls.cert_file": Need.CONSUMERS,
    "nsq.tls.key_file": Need.CONSUMERS,
    "nsq.tls.insecure": Need.CONSUMERS,
    "backoff.strategy": Need.IN_PLACE,
    "backoff.base": Need.IN_PLACE,
    "backoff.max_duration": Need.IN_PLACE,
    "backoff.jitter": Need.IN_PLACE,
    "backoff.recovery": Need.IN_PLACE,
    "backoff.slow_start": Need.IN_PLACE,
    "redis.url": Need.RESTART,
    "redis.namespace": Need.RESTART,
    "redis.timeout": Need.RESTART,
    "redis.durability": Need.RESTART,
    "redis.replicas": Need.RESTART,
    "redis.partitions": Need.RESTART,
    "redis.ca_file": Need.RESTART,
    "redis.cert_file": Need.RESTART,
    "redis.key_file": Need.RESTART,
    "redis.insecure": Need.RESTART,
    "scheduler.interval": Need.IN_PLACE,
    "scheduler.lease": Need.IN_PLACE,
    "scheduler.batch": Need.IN_PLACE,
    "limits.event": Need.IN_PLACE,
    "limits.key": Need.IN_PLACE,
    "limits.depth": Need.IN_PLACE,
    "limits.timelines": Need.IN_PLACE,
    "limits.dead_digests": Need.IN_PLACE,
    "limits.future": Need.IN_PLACE,
    "limits.past": Need.IN_PLACE,
    "admin.listen": Need.RESTART,
    "admin.token": Need.IN_PLACE,
    "admin.read_token": Need.IN_PLACE,
    "log.level": Need.IN_PLACE,
    "log.format": Need.IN_PLACE,
}
"""By the path of an option outside [policies.NAME], [sinks.NAME] and [[routes]]."""


class Change(NamedTuple):
    """Of one option. `before` and `after` are as the file writes them; "" where they are not to be shown."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path} {self.before} → {self.after}" if self.before or self.after else self.path


class Names(NamedTuple):
    """How a table of named things differs."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[Change, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    options: Mapping[Need, tuple[Change, ...]]
    policies: Names
    sinks: Names
    routes: Names
    topics: Names

    @property
    def is_any(self) -> bool:
        return bool(any(self.options.values()) or self.policies or self.sinks or self.routes)

    @property
    def need_restart(self) -> tuple[Change, ...]:
        return self.options[Need.RESTART]

    def of(self, section: str) -> bool:
        """Whether an option of this table differs."""
        return any(each.path.startswith(f"{section}.") for found in self.options.values() for each in found)

    @property
    def text(self) -> str:
        """For people: `sinks: ~ slack rebuilt (url); routes: + alerts, ~ events (policy "default" → "calm")`."""
        options = [each for need in Need for each in self.options[need]]
        parts = [", ".join(_first(map(str, options)))]
        for table, names, verb in (
            ("policies", self.policies, ""), ("sinks", self.sinks, "rebuilt "), ("routes", self.routes, ""),
            ("topics", self.topics, ""),
        ):  # fmt: skip
            parts.append(f"{table}: {_names_text(names, verb)}" if names else "")
        if self.options[Need.CONSUMERS]:
            parts.append("all topics connect anew")
        return "; ".join(filter(None, parts)) or "nothing"


def compare(
    before: Config,
    after: Config,
    kinds: Kinds,
    *,
    new_tls_files: bool = False,
    sinks_with_new_files: Collection[str] = (),
) -> Changes:
    """`kinds`: those that they were read with. `new_tls_files`: the files of [nsq.tls] have other contents than those
    that connections were made with; `sinks_with_new_files`: likewise, those of these sinks."""
    options: dict[Need, list[Change]] = {need: [] for need in Need}
    for section, declared in SECTIONS.items():
        was, now = getattr(before, section), getattr(after, section)
        for option in declared.options:
            if (change := _difference(section, option, was, now)) is not None:
                options[NEEDS[change.path]].append(change)
    options[Need.CONSUMERS] += _tls_changes(before, after, new_files=new_tls_files)
    policies, routes = {"": _by_field(POLICY)}, {"": _by_field(ROUTE)}
    sinks = {name: _by_field(kind.section) for name, kind in kinds.items()}
    return Changes(
        options={need: tuple(found) for need, found in options.items()},
        policies=_compared(before.policies, after.policies, policies),
        sinks=_with_new_files(
            _compared(before.sinks, after.sinks, sinks, shows_values=False), before, after, sinks_with_new_files
        ),
        routes=_compared(
            {route.name: route for route in before.routes}, {route.name: route for route in after.routes}, routes
        ),
        topics=_compared(dict.fromkeys(topics_of(before)), dict.fromkeys(topics_of(after)), {}),
    )


def topics_of(config: Config) -> tuple[str, ...]:
    return tuple(dict.fromkeys(route.topic for route in config.routes))


def _difference(section: str, option: Option, was: Any, now: Any) -> Change | None:
    old, new = getattr(was, option.field), getattr(now, option.field)
    if old == new:
        return None
    path = f"{section}.{option.key}"
    if path == "redis.url":  # without its login
        old_url, new_url = was.shown_url, now.shown_url
        return Change(path, old_url, new_url) if old_url != new_url else Change(f"{path}", "", "")
    return _change(path, option, old, new)


def _tls_changes(before: Config, after: Config, *, new_files: bool) -> list[Change]:
    was, now = before.nsq.tls, after.nsq.tls
    if was is None and now is None:
        return []
    if was is None or now is None:
        return [Change("nsq.tls", *(("off", "on") if was is None else ("on", "off")))]
    found = [_difference("nsq.tls", option, was, now) for option in TLS.options]
    changes = [each for each in found if each is not None]
    return changes or ([Change("nsq.tls (new contents of its files)", "", "")] if new_files else [])


def _with_new_files(names: Names, before: Config, after: Config, sinks: Collection[str]) -> Names:
    same = [name for name in after.sinks if name in sinks and before.sinks.get(name) == after.sinks[name]]
    new = {name: (Change("new contents of its files", "", ""),) for name in same}
    return names._replace(changed={**names.changed, **new})


def _by_field(section: Section) -> dict[str, Option]:
    return {option.field: option for option in section.options}


def _compared(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Option]],
    *,
    shows_values: bool = True,
) -> Names:
    """`options`: by type, and by attribute. Values of sinks are not shown: a header or a URL may hold a secret."""
    changed = {name: (before[name], after[name]) for name in after if name in before and before[name] != after[name]}
    return Names(
        tuple(name for name in after if name not in before),
        tuple(name for name in before if name not in after),
        {name: _of_fields(*both, options, shows_values=shows_values) for name, both in changed.items()},
    )


def _of_fields(
    was: Any, now: Any, options: Mapping[str, Mapping[str, Option]], *, shows_values: bool
) -> tuple[Change, ...]:
    kind = getattr(now, "type", "")
    if type(was) is not type(now):
        return (Change("type", was.type, kind),)
    return tuple(
        _change(option.key, option, getattr(was, field), getattr(now, field))
        if shows_values
        else Change(option.key, "", "")
        for field, option in options[kind].items()
        if getattr(was, field) != getattr(now, field)
    )


def _change(path: str, option: Option, old: Any, new: Any) -> Change:
    if option.read.hidden or isinstance(old, Secret) or isinstance(new, Secret):
        return Change(path, "", "")
    before, after = (_shown(value, option.read.suffix) for value in (old, new))
    return Change(path, before, after) if before != after and before and after else Change(path, "", "")


def _shown(value: Any, unit: str) -> str:
    if value is None:
        return '""'
    if isinstance(value, Address | UnixSocket):
        return str(value)
    if isinstance(value, tuple) and any(isinstance(each, tuple) and not isinstance(each, Address) for each in value):
        return ""  # a table of conditions, or times of day
    if isinstance(value, tuple):
        return f"[{', '.join(_first((_shown(each, unit) for each in value), most=_SHOWN))}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return {"_ms": format_duration, "_bytes": format_size}.get(unit, str)(value)
    return show(value)


# -- as a sentence


def _names_text(names: Names, verb: str) -> str:
    changed = [
        f"~ {name} {verb}({', '.join(_first(map(str, changes)))})" if changes else f"~ {name} {verb}".rstrip()
        for name, changes in names.changed.items()
    ]
    return ", ".join(
        _first([*(f"+ {name}" for name in names.added), *(f"- {name}" for name in names.removed), *changed])
    )


def _first(texts: Iterable[str], most: int = 2 * _SHOWN) -> list[str]:
    found = list(texts)
    return found if len(found) <= most else [*found[:most], f"{len(found) - most} more"]


def refusal(changes: Collection[Change]) -> str:
    """Why a file is not taken that needs a restart: every place of it at once."""
    what, them = counted(len(changes), "option"), "it" if len(changes) == 1 else "them"
    places = ", ".join(map(str, changes))
    return f"{what} cannot change without a restart: {places}; restart the daemon, or write {them} as before"
