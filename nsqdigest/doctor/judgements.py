"""Judges facts: each becomes a finding that is ok, a note, a warning or a failure, with the remedy (pure).

- A failure: it does not work, or the daemon would refuse it. A place that cannot be reached is one, whoever named it.
- A warning: it works, and may cost events or time some day, or records are stored that nobody delivers.
- A note: nobody has to do anything. A thing that was not looked at is a note, never ok.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nsqdigest.base.errors import LookupFailed, Mistake, StoreError, Unreachable, remedy_of_redis
from nsqdigest.base.findings import Doubt, Finding, Reached, State, from_message
from nsqdigest.base.reasons import LookupProblem
from nsqdigest.base.shown import printable
from nsqdigest.base.words import listed
from nsqdigest.nsq.directory import ALLOW_HINT, BROADCAST_HINT, FILE
from nsqdigest.store.keys import mismatch
from nsqdigest.store.route import ORPHAN, orphan_remedy

if TYPE_CHECKING:
    from nsqdigest.config import Redis as RedisSettings
    from nsqdigest.nsq.negotiation import Compression, Negotiated
    from nsqdigest.store.daemons import Known
    from nsqdigest.store.operations import RouteCounts
    from nsqdigest.store.servers.facts import ServerFacts
    from nsqdigest.store.servers.rights import Rights

RENEW_WITHIN_S = 14 * 24 * 3600
CLOCK_APART_S = 5.0
_EQUAL_S = 0.1
WRITES_UNDER_WAY = 2
"""A batch waits for the write before it and then for its own, each for as long as redis.timeout."""
_LOWEST_NSQD = 1
_SHOWN_DAEMONS = 10
_SHOWN_CHARACTERS = 100
_LOOK = "look at what listens there"


# -- the file


def of_file(source: str, problems: Sequence[Mistake], warnings: Sequence[Mistake], summary: str) -> list[Finding]:
    if problems:
        return [_of_mistake_in_file(source, State.FAIL, problem) for problem in problems]
    return [
        Finding(source, State.OK, summary),
        *(_of_mistake_in_file(source, State.WARN, warning) for warning in warnings),
    ]


def _of_mistake_in_file(source: str, state: State, mistake: Mistake) -> Finding:
    return Finding(source, state, mistake.removesuffix(f"; {mistake.remedy}"), mistake.remedy)


# -- certificates


@dataclass(frozen=True, slots=True)
class Peer:
    """The subject of a certificate that passed, and when it expires."""

    subject: str
    expires_at_s: float


def _date(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


def doubts_about_certificate(peer: Peer | None, now_s: float) -> list[Doubt]:
    if peer is None or peer.expires_at_s - now_s > RENEW_WITHIN_S:
        return []
    days = max(0, int((peer.expires_at_s - now_s) // 86400))
    detail = f"its certificate expires on {_date(peer.expires_at_s)}, in {days} day{'' if days == 1 else 's'}"
    return [Doubt(detail, "renew it; from that day on it is refused")]


def shown_peer(peer: Peer | None) -> str:
    return f"certificate of {peer.subject} until {_date(peer.expires_at_s)}" if peer else "certificate not checked"


# -- nsqd


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdFacts:
    negotiated: Negotiated
    compression_asked: Compression
    has_secret: bool
    tls: str
    """Version and cipher; "" in the clear."""
    peer: Peer | None


def known_from(sources: Collection[str]) -> str:
    of_file = ["the file"] if FILE in sources else []
    return ", ".join([*of_file, *(f"nsqlookupd {source}" for source in sorted(sources) if source != FILE)])


def of_nsqd(
    address: str, sources: Collection[str], facts: NsqdFacts, redis_timeout_ms: int, now_s: float
) -> list[Finding]:
    what, negotiated = address, facts.negotiated
    details = [
        f"max_rdy_count {negotiated.max_rdy_count}",
        f"msg_timeout {_duration(negotiated.msg_timeout_ms)}",
        *_way_to(facts),
        f"from {known_from(sources)}",
    ]
    found = [Finding(what, State.OK, "; ".join([_version_of(facts), *details]))]
    found += [doubt.of(what) for doubt in _doubts_about(facts, now_s)]
    if negotiated.msg_timeout_ms <= WRITES_UNDER_WAY * redis_timeout_ms:
        detail = (
            f"msg_timeout is {_duration(negotiated.msg_timeout_ms)}, and a slow Redis may take twice redis.timeout, "
            f"{_duration(WRITES_UNDER_WAY * redis_timeout_ms)}, to store a message: nsqd would hand it over again"
        )
        remedy = "write a longer nsq.msg_timeout (or raise nsqd's --msg-timeout), or a shorter redis.timeout"
        found.append(Finding(what, State.WARN, detail, remedy))
    return found


def of_failed_nsqd(address: str, sources: Collection[str], message: str, *, is_reached: bool) -> Finding:
    """`is_reached`: something answered. An nsqd that only a nsqlookupd names may have announced a wrong name."""
    message = message.removeprefix(f"nsqd at {address}: ").removeprefix(f"nsqd at {address} ")
    if FILE in sources:
        return from_message(
            address, State.FAIL, message, "see that nsqd runs, and nsq.nsqd_tcp_addresses (its TCP port)"
        )
    finding = from_message(address, State.FAIL, message, BROADCAST_HINT)
    detail = f"{finding.detail} (named by {known_from(sources)})"
    return finding._replace(detail=detail, remedy=finding.remedy if is_reached else BROADCAST_HINT)


def _version_of(facts: NsqdFacts) -> str:
    return f"nsqd {facts.negotiated.version or 'of no version'}"


def _way_to(facts: NsqdFacts) -> list[str]:
    negotiated = facts.negotiated
    way = [
        f"{facts.tls}, {shown_peer(facts.peer)}" if facts.tls else "in the clear",
        f"compression {negotiated.compression}",
    ]
    auth = "AUTH accepted" if negotiated.auth_required else "no AUTH asked for" if facts.has_secret else ""
    return [*way, auth] if auth else way


def _doubts_about(facts: NsqdFacts, now_s: float) -> list[Doubt]:
    negotiated = facts.negotiated
    found = doubts_about_certificate(facts.peer, now_s)
    number = re.match(r"(\d+)\.", negotiated.version)
    if number is not None and int(number[1]) < _LOWEST_NSQD:
        found.append(Doubt(f"nsqd {negotiated.version} is older than what is tested", "use nsqd 1.x"))
    if negotiated.compression != facts.compression_asked:
        asked = facts.compression_asked
        detail = f"it does not offer {asked}, which nsq.compression asks for: it goes on without"
        found.append(Doubt(detail, f"start nsqd with --{asked}, or write another nsq.compression"))
    return found


def of_untried_nsqds(count: int) -> Finding:
    return Finding("more", State.NOTE, f"nsqlookupds name {count} more nsqds, which were not tried")


# -- nsqlookupd


_REMEDY_OF_LOOKUP = {
    LookupProblem.UNREACHABLE: "see that nsqlookupd runs, and nsq.lookupd_http_addresses (its HTTP port, mostly 4161)",
    LookupProblem.SLOW: "see how loaded that nsqlookupd is, and how far away",
}


def of_lookupd(
    address: str, nsqds: int, topics: int, unusable: Collection[str], refused: Collection[str]
) -> list[Finding]:
    detail = f"answers; names {_count(nsqds, 'nsqd')} for {_count(topics, 'topic')}"
    found = [Finding(address, State.OK, detail)]
    found += [
        Finding(address, State.FAIL, f'names "{text}", which is no address', BROADCAST_HINT)
        for text in sorted(unusable)
    ]
    if refused:
        first, *others = sorted(refused)
        more = f" and {_count(len(others), 'other nsqd')}" if others else ""
        detail = f"names {first}{more}, which nsq.allow_nsqds does not list"
        found.append(Finding(address, State.WARN, detail, ALLOW_HINT))
    return found


def of_failed_lookupd(address: str, failure: LookupFailed) -> Finding:
    return from_message(address, State.FAIL, str(failure), _REMEDY_OF_LOOKUP.get(failure.reason, _LOOK))


def of_nsqd_as_lookupd(address: str, tcp_address: str) -> Finding:
    remedy = (
        f'write "{tcp_address}" in nsq.nsqd_tcp_addresses, and here the HTTP address of a nsqlookupd (mostly port 4161)'
    )
    return Finding(address, State.FAIL, "an nsqd answers there, not a nsqlookupd", remedy)


def of_topic(topic: str, nsqds: int) -> Finding:
    """`nsqds`: how many the nsqlookupds name."""
    if nsqds:
        return Finding(topic, State.OK, f"{_count(nsqds, 'nsqd')} {'has' if nsqds == 1 else 'have'} it")
    return Finding(topic, State.NOTE, "no nsqlookupd knows an nsqd that has it yet: the daemon goes on asking")


# -- Redis


def of_server(facts: ServerFacts, kind: str, settings: RedisSettings) -> list[Finding]:
    persistent = {True: "persistent", False: "not persistent", None: "persistence not known (needs +config|get)"}
    role = {"master": "primary", "slave": "replica"}.get(facts.role, facts.role)
    syncs = f", appendfsync {facts.appendfsync}" if facts.appendfsync not in (None, "no") else ""
    memory = f"maxmemory {facts.maxmemory_bytes / (1 << 20):.0f} MiB" if facts.maxmemory_bytes else "no maxmemory"
    detail = (
        f"Redis {facts.version}; {role}, {_count(facts.replicas, 'replica')}; {memory}, {facts.maxmemory_policy}; "
        f"{persistent[facts.persistent]}{syncs}"
    )
    refusal = facts.refusal(kind, settings.durability)  # type: ignore[arg-type]
    if refusal is not None:
        return [from_message(facts.name, State.FAIL, refusal)]
    if readonly := facts.why_readonly():
        return [Finding(facts.name, State.FAIL, readonly.what, readonly.remedy)]
    wanted = settings.replicas if settings.durability == "replica" else 0
    otherwise = "start as many, or write fewer in redis.replicas"
    return [
        Finding(facts.name, State.OK, detail),
        *(from_message(facts.name, State.WARN, warning, otherwise) for warning in facts.warnings(wanted)),
    ]


def of_failed_store(what: str, error: StoreError | Unreachable, source: str) -> Finding:
    """The text of a StoreError comes from Redis: a semicolon in it begins no remedy."""
    if isinstance(error, StoreError):
        return Finding(what, State.FAIL, error.what, error.remedy or remedy_of_redis(source))
    return from_message(what, State.FAIL, str(error), remedy_of_redis(source))


def of_named_server(address: str, kind: str, message: str) -> Finding:
    """One of several that redis.url names; the others are enough for now."""
    role = "Sentinel" if kind == "sentinel" else "server of the Cluster"
    detail = f"a {role} that redis.url names cannot be reached: {message}"
    return from_message(address, State.WARN, detail, "start it, or leave it out of redis.url")


def of_layout(namespace: str, stored: tuple[int, int] | None, partitions: int) -> Finding:
    """`stored`: schema and partitions."""
    what = f"namespace {namespace}"
    if stored is None:
        return Finding(what, State.NOTE, "empty: the first daemon that starts sets it up")
    if refusal := mismatch(namespace, *stored, partitions):
        detail, _, remedy = refusal.rpartition(": ")
        return Finding(what, State.FAIL, detail, remedy)
    return Finding(what, State.OK, f"layout {stored[0]}, {_count(partitions, 'partition')}")


def of_rights(needed: Rights, refused: Collection[str] | None) -> Finding:
    """`refused`: of those that are needed; None: Redis cannot tell."""
    what = f"user {needed.user}"
    if refused is None:
        return Finding(what, State.NOTE, "its rights are not checked: that needs Redis 7.0")
    if missing := needed.missing(refused):
        return Finding(what, State.FAIL, *missing)
    return Finding(what, State.OK, f"may send all {len(needed.commands)} commands that it needs (none was sent)")


def of_clock(redis_ahead_s: float) -> Finding:
    apart = f"{abs(redis_ahead_s):.1f} s {'ahead of' if redis_ahead_s > 0 else 'behind'} this machine's"
    if abs(redis_ahead_s) < _EQUAL_S:
        return Finding("clock", State.OK, "in step with this machine's")
    if abs(redis_ahead_s) <= CLOCK_APART_S:
        return Finding("clock", State.OK, f"Redis' is {apart}")
    detail = f"Redis' is {apart}: digests and their retries go by Redis' clock, events by nsqd's"
    return Finding("clock", State.WARN, detail, "keep the clocks of all machines in step (NTP)")


def of_orphans(orphans: Mapping[str, RouteCounts]) -> list[Finding]:
    return [_of_orphan(name, counts) for name, counts in orphans.items()]


def _of_orphan(name: str, counts: RouteCounts) -> Finding:
    what, timelines = f"route {name}", _count(counts.timelines, "timeline")
    records = counts.open_records + counts.snapshot_records
    if not records:
        return Finding(what, State.NOTE, f"orphan: the file has no route of this name; its {timelines} hold no record")
    detail = f"orphan: {timelines} with {_count(records, 'record')}; {ORPHAN}"
    return Finding(what, State.WARN, detail, orphan_remedy(name))


def _first(texts: list[str]) -> list[str]:
    return texts if len(texts) <= _SHOWN_DAEMONS else [*texts[:_SHOWN_DAEMONS], f"{len(texts) - _SHOWN_DAEMONS} more"]


def of_daemons(known: Sequence[Known], version: str, config_hash: str) -> list[Finding]:
    """Those that run in the namespace. `version`, `config_hash`: of this program and of its file."""
    if not known:
        return []
    texts = [f"{each.told.host} (pid {each.told.pid}, {each.told.version})" for each in known]
    shown = listed(_first([printable(text, _SHOWN_CHARACTERS) for text in texts]))
    found = [Finding("daemons", State.OK, f"{_count(len(known), 'daemon')} in this namespace: {shown}")]
    for each in known:
        # Of another version the hash cannot be compared.
        if each.told.version == version and each.told.config_hash != config_hash:
            what = printable(f"daemon {each.told.host} (pid {each.told.pid})", _SHOWN_CHARACTERS)
            detail = "works by other settings than this file's"
            found.append(Finding(what, State.WARN, detail, "give all daemons of a namespace the same file"))
    return found


# -- what a sink reaches: the findings are made by its kind, in delivery/sinks


def reached_server(tls: str, peer: Peer | None, now_s: float) -> Reached:
    """`tls`: its version, "" in the clear."""
    how = f"{tls}, {shown_peer(peer)}" if tls else "in the clear"
    return Reached(how, tuple(doubts_about_certificate(peer, now_s)))


def reached_nsqd(facts: NsqdFacts, now_s: float) -> Reached:
    return Reached("; ".join([_version_of(facts), *_way_to(facts)]), tuple(_doubts_about(facts, now_s)))


# -- the admin address


def of_no_admin() -> Finding:
    return Finding("listen", State.NOTE, '"": no health, metrics, pause and resume')


def of_free_admin(address: str) -> Finding:
    return Finding(address, State.OK, "free: no daemon runs here yet")


def of_unusable_admin(address: str, message: str) -> Finding:
    return from_message(
        address, State.FAIL, f"the daemon cannot listen there: {message}", "write another address in admin.listen"
    )


# -- whatever it is


def of_silence(what: str, within_s: float) -> Finding:
    return Finding(
        what,
        State.FAIL,
        f"no answer within {within_s:g} s",
        "see that it runs, and that nothing on the way (a firewall, a proxy) holds the connection",
    )


def of_mistake(what: str, error: str) -> Finding:
    return Finding(what, State.FAIL, f"could not be looked at: {error}", "this is a mistake of nsqdigest: report it")


# -- words


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _duration(value_ms: int) -> str:
    return f"{value_ms} ms" if value_ms % 1000 else f"{value_ms // 1000} s"
