"""What a log event says to a person: a sentence with an actor and a verb (pure).

    "consumer.nsqd.found": "nsqlookupd {lookupd} names an nsqd for topic {topic}: {nsqd}"

A sentence names fields of its event. `{wait_s:s}` shows seconds with their unit, `{messages:event}` a number with its
noun, `{timeline:name}` a name in quotes if it would not stand out otherwise. A field that it does not name is shown
behind it, like those of an event that has no sentence.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nsqdigest.base.words import counted

Fields = Mapping[str, Any]
Sentence = str | Callable[[Fields], str]
"""A function returns the sentence to fill in: there it depends on the fields."""


_PLAIN_NAME = re.compile(r"[^\s\"\\;,]+")


class Phrase(NamedTuple):
    text: str
    fields: frozenset[str]
    """Those that the text shows."""


def phrase_of(event: str, fields: Fields) -> Phrase | None:
    """None where there is no sentence, or not with these fields."""
    sentence = SENTENCES.get(event)
    if sentence is None:
        return None
    filled = _Filled(fields)
    try:
        text = filled.vformat(sentence if isinstance(sentence, str) else sentence(fields), (), fields)
    except (KeyError, ValueError, TypeError):
        return None  # another library's event of the same name; what it says is shown all the same
    hint = fields.get("hint")
    return Phrase(f"{text}; {hint}" if hint else text, frozenset(filled.used | {"hint"}))


def _name(value: Any) -> str:
    """In quotes if it would not stand out otherwise."""
    text = str(value)
    return text if _PLAIN_NAME.fullmatch(text) and text.isascii() else json.dumps(text, ensure_ascii=False)


class _Filled(string.Formatter):
    def __init__(self, fields: Fields) -> None:
        self.used: set[str] = set()
        self._fields = fields

    def get_value(self, key: int | str, args: object, kwargs: Fields) -> Any:
        self.used.add(str(key))
        return kwargs[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:
        if not format_spec:
            return ", ".join(map(_name, value)) if isinstance(value, list) else str(value)
        if format_spec == "name":
            return _name(value)
        if format_spec == "s":
            return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"
        return counted(value, format_spec)


# -- sentences that depend on a field


def _backed_off(subject: str, does: str) -> Callable[[Fields], str]:
    """`does`: what the subject does not do meanwhile."""

    def sentence(fields: Fields) -> str:
        if fields["reason"] == "answered-elsewhere":
            return f"others are answered again, so {subject} probes in {{wait_s:s}}"
        what = {
            "probe-failed": f"{subject}'s probe failed",
            "probe-succeeded": f"{subject}'s probe went well",
        }.get(fields["reason"], f"{subject} steps back")
        again = ", then the next probe" if fields["reason"] == "probe-succeeded" else ""
        return f"{what} (level {{backoff_level}}): {does} for {{wait_s:s}}{again}"

    return sentence


def _flows(subject: str, noun: str) -> Callable[[Fields], str]:
    return lambda fields: (
        f"{subject} is resumed" if fields["reason"] == "resumed" else f"{subject} is back to {{limit:{noun}}} at a time"
    )


def _ramps(subject: str) -> Callable[[Fields], str]:
    return lambda fields: (
        f"{subject} has recovered: 1 at a time, then 2, 4, 8 …"
        if fields["limit"] == 1
        else f"{subject} takes {{limit}} at a time"
    )


def _refused_by_store(fields: Fields) -> str:
    if fields["applied"] == "ambiguous":
        return "Redis may or may not have stored {messages:event} of topic {topic}, which nsqd sends again: {error}"
    return "Redis stored nothing of {messages:event} of topic {topic}, which nsqd sends again: {error}"


def _lost(fields: Fields) -> str:
    if fields["what"] == "records":
        return "Redis has lost {records:record} of route {route}"
    return "Redis has lost partition {partition}"


def _changed(fields: Fields) -> str:
    return {
        "new": "Redis server {server} is new",
        "restarted": "Redis server {server} was restarted",
        "promoted": "Redis server {server} has become the primary",
    }[fields["what"]]


def _drained(fields: Fields) -> str:
    return "the daemon has stopped at once" if fields.get("at_once") else "the daemon has stopped; nothing is in flight"


def _state_of(fields: Fields) -> str:
    return f"state of {{check}}: {{detail}}{'' if fields['well'] else ' (!)'}"


def _open_again(fields: Fields) -> str:
    return "connected to nsqd {nsqd} for topic {topic}" + (" after {after_s:s}" if "after_s" in fields else "")


def _connected_nsqd(fields: Fields) -> str:
    return f"nsqd {{nsqd}} of topic {{topic}} is {'connected' if fields['connected'] else 'not connected'}"


def _topic_state(fields: Fields) -> str:
    behind = "" if fields["depth"] is None else ", {depth:message} in nsqd"
    return f"topic {{topic}}: {{state}} (level {{backoff_level}}), {{in_flight:event}} in flight{behind}"


def _other_daemon(fields: Fields) -> str:
    file = ", with another file" if fields["differs"] else ""
    return f"another daemon, {{version}}, runs on {{host}} with pid {{pid}}{file}"


SENTENCES: Mapping[str, Sentence] = {
    # -- the daemon
    "config.advice": "{advice}",
    "daemon.started": (
        "nsqdigest {version} runs with {config}: topics {topics}, {routes:route}, sinks {sinks}; it is ready: {ready}"
    ),
    "daemon.failed": "the daemon ends: {error}",
    "daemon.draining": "the daemon drains, for {timeout_s:s} at most: {waits_for}",
    "daemon.draining.waits": "the drain still waits, {left_s:s} at most: {waits_for}",
    "daemon.stopped": _drained,
    "daemon.summary": (
        "in the last {seconds:s}: {events_in:event} in, {events_stored} stored; {digests_out:digest} out with "
        "{records_out:record}; {dead_letters:dead letter}, {digests_buried:digest} buried, {digests_dead} dead in all; "
        "{timelines_waiting:timeline} waiting, {timelines_overdue} overdue, the oldest by {oldest_due_s:s}"
    ),
    "daemon.store.ready": "Redis {version} is ready at {redis} ({partitions:partition})",
    "daemon.store.advice": "{advice}",
    "daemon.store.waiting": "waiting for Redis at {redis}, next try in {again_s:s}: {error}",
    "admin.write": "{client} asked for {path} with the token, and got {status}",
    "admin.accept.failed": "a connection to admin.listen cannot be accepted: {error}",
    "admin.refused": "requests to admin.listen are refused, or their connections closed: {reason}",
    "daemon.operator.paused": "an operator paused {kind} {name}",
    "daemon.operator.resumed": "an operator resumed {kind} {name}",
    "daemon.policy.changed": (
        "policy {policy} of route {route} has changed: {sooner:timeline} sooner, {later:timeline} later"
    ),
    "daemon.policy.differs": (
        "other daemons have another policy for {routes}: timelines that wait keep their times until all have the same"
    ),
    "daemon.policy.waiting": "what a changed policy moves in partition {partition} of Redis waits: {error}",
    "daemon.reloaded": "{config} is reloaded: {changes}",
    "daemon.reload.unchanged": "{config} is read again: nothing of it has changed",
    "daemon.reload.problem": "{problem}",
    "daemon.reload.refused": "{config} is not taken: {why}; what was loaded at {in_force_since} stays in force",
    "daemon.reload.failed": ("{config} cannot be taken: {error}; what was loaded at {in_force_since} stays in force"),
    "daemon.reload.ignored": "HUP changes nothing: the daemon ends",
    "daemon.registry.failed": "this daemon could not make itself known to others: {error}",
    "daemon.part.ended": "{part} ended by itself, so the daemon ends: {error}",
    "daemon.loop.error": "the event loop reports {what}: {error}",
    "daemon.state": _state_of,
    "daemon.state.nsqd": _connected_nsqd,
    "daemon.state.verdict": "{verdict}",
    "daemon.state.topic": _topic_state,
    "daemon.state.route": (
        "route {route}: {waiting:timeline} waiting, {leased} leased, {overdue} overdue, the oldest by "
        "{oldest_due_s:s}; {open_records:record}"
    ),
    "daemon.state.sink": "sink {sink}: {state}; {waits:digest} due, {dead} dead, {sending} being sent",
    "daemon.state.other": _other_daemon,
    "daemon.state.connection": "nsqd {nsqd} has RDY {rdy_used} of {rdy} for topic {topic}, {in_flight} in flight",
    "log.lines_dropped": "{lines:line} of this log were dropped",
    # -- discovery and connections
    "discovery.topic.unknown": "topic {topic} is not there yet, next look in {again_s:s}: {detail}",
    "discovery.lookupd.failed": "nsqlookupd {lookupd} gives no answer, and nsqds that are connected stay so: {error}",
    "discovery.lookupd.back": "nsqlookupd {lookupd} answers again after {after_s:s}",
    "discovery.address.unusable": (
        "nsqlookupd {lookupd} names an address for topic {topic} that cannot be one: {addresses}"
    ),
    "discovery.address.refused": (
        "nsqlookupd {lookupd} names an nsqd for topic {topic} that nsq.allow_nsqds does not list: {addresses}"
    ),
    "discovery.depth.unknown": "nsqd does not tell how deep topic {topic} is: {error}",
    "consumer.nsqd.found": "nsqlookupd {lookupd} names an nsqd for topic {topic}: {nsqd}",
    "consumer.nsqd.forgotten": (
        "nsqd {nsqd} of topic {topic} is forgotten: nobody names it any more, and it is not connected"
    ),
    "consumer.connection.open": _open_again,
    "consumer.connection.lost": "lost nsqd {nsqd} of topic {topic}, next try in {again_s:s}: {error}",
    "connection.open": "shook hands with nsqd {nsqd} {version}",
    "connection.compression.not_offered": "nsqd {nsqd} does not offer {compression}",
    "publisher.nsqd.unreachable": "nsqd {nsqd} cannot be published to, next try in {again_s:s}: {error}",
    # -- intake
    "consumer.topic.backoff": _backed_off("topic {topic}", "takes nothing"),
    "consumer.topic.probing": "topic {topic} probes with a single event",
    "consumer.topic.ramping": _ramps("topic {topic}"),
    "consumer.topic.flowing": _flows("topic {topic}", "event"),
    "consumer.topic.paused": "topic {topic} is paused: it takes nothing",
    "consumer.topic.overdue": "topic {topic} takes nothing more: {in_flight:event} in flight are not stored in time",
    "consumer.topic.oversize": "topic {topic} takes nothing more",
    "consumer.store.failed": _refused_by_store,
    "consumer.store.damaged": "route {route} cannot be stored: {error}; its keys in Redis: {keys}",
    "consumer.timeline.refused_by_store": (
        "timeline {timeline:name} of route {route} cannot be stored: {error}; its keys in Redis: {keys}"
    ),
    "consumer.timelines.limit_reached": (
        "route {route} has as many timelines as it may: {records_dropped:record} dropped"
    ),
    "consumer.event.unmatched": "no route of topic {topic} takes {events:event}, one with the fields {fields_of_one}",
    "consumer.event.too_old": "route {route} takes nothing so old as {events:event}",
    "consumer.zone.unknown": ("{events:event} of route {route} named a zone that there is not, such as {zone:name}"),
    "consumer.message.dead_lettered": "an event of topic {topic} becomes a dead letter: {reason}: {detail}",
    "consumer.message.kept": "{messages:dead letter} of topic {topic} cannot be sent, next try in {again_s:s}: {error}",
    "consumer.message.too_late": (
        "nsqd {nsqd} took an event of topic {topic} back before it was finished (msg_timeout {msg_timeout_s:s}): "
        "{error}"
    ),
    "consumer.message.held_too_long": (
        "{messages:event} of topic {topic} waited here for all of {msg_timeout_s:s}: nsqd {nsqd} sends them again"
    ),
    # -- delivery
    "scheduler.digest.delivered": "sink {sink} took {digests:digest} of route {route} with {records:record}",
    "scheduler.digest.sent": "sink {sink} took digest {digest} of timeline {timeline:name} with {records:record}",
    "scheduler.digest.failed": (
        "sink {sink} did not take a digest of timeline {timeline:name} ({verdict}), next try in {again_s:s}: {detail}"
    ),
    "scheduler.digest.buried": (
        "a digest of timeline {timeline:name} for sink {sink} with {records:record} is dead ({reason}): {detail}"
    ),
    "scheduler.digest.stale": "another daemon has timeline {timeline:name} of route {route} by now",
    "scheduler.digest.left": (
        "a digest of timeline {timeline:name} of route {route} is left to the end of its lease: {error}"
    ),
    "scheduler.digest.values_missing": "Redis has lost {missing:record} of a digest of timeline {timeline:name}",
    "scheduler.sink.answered": "sink {sink} answered: {answer}",
    "scheduler.sink.stopped": "sink {sink} is stopped: {detail}",
    "scheduler.sink.left": "sink {sink} as it was before the reload is closed after {after_s:s}",
    "scheduler.sink.backoff": _backed_off("sink {sink}", "gets nothing"),
    "scheduler.sink.probing": "sink {sink} is probed with a single digest",
    "scheduler.sink.ramping": _ramps("sink {sink}"),
    "scheduler.sink.flowing": _flows("sink {sink}", "digest"),
    "scheduler.sink.paused": "sink {sink} is paused: its digests wait",
    "scheduler.host.failing": "host {host} of sink {sink} gets nothing for a while: {detail}",
    "scheduler.host.back": "host {host} of sink {sink} takes digests again",
    "scheduler.recipient.refused": "{recipient:name} did not get a mail of sink {sink}: {detail}",
    "scheduler.log.reopened": "sink {sink} writes to a new file {path}",
    "scheduler.dead.dropped": "a dead digest of route {route} with {records:record} is dropped",
    "scheduler.store.failed": "deliveries wait until Redis answers: {error}",
    "scheduler.store.back": "Redis answers again after {after_s:s}: deliveries go on",
    "scheduler.store.damaged": "route {route} is damaged in Redis: {error}",
    "scheduler.store.clock_went_back": "Redis' clock went back by {by_s:s}: digests that it had put off come back",
    "scheduler.store.repaired": "repaired in partition {partition} of Redis: {number} of the kind {kind}",
    "scheduler.claim.found": (
        "{timelines:timeline} of partition {partition} taken up: Redis' answer to their claim was lost"
    ),
    "scheduler.lease.ran_out": (
        "the lease of {timelines:timeline} in partition {partition} ran out: a daemon has gone, or hung"
    ),
    # -- the store
    "store.damaged": "keys of the namespace are damaged: {error}",
    "store.data_lost": _lost,
    "store.fit_again": "Redis is fit to be written to again",
    "store.unfit": "nothing is written to Redis: {error}",
    "store.route.orphan": "route {route} has {records:record} in Redis",
    "store.server_changed": _changed,
}
"""Events without one are bugs of this program: their traceback says the rest."""
