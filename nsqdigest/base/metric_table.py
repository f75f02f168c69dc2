"""Every metric: name, kind, labels, help, and the values of its labels. `docs/metrics.md` is generated from it.

Invariants:
- A name or label that is not declared here is an error at its first use.
- No label is ever a timeline or a key, so that the configuration bounds the number of series.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from nsqdigest.backoff import TRANSITIONS, Reason, State
from nsqdigest.base.reasons import (
    BuryReason,
    ConnectionLoss,
    DeadLetterReason,
    HttpRefusal,
    LookupProblem,
    ReloadOutcome,
    SinkState,
    SkipReason,
    Verdict,
)

PREFIX = "nsqdigest_"

Labels = tuple[str, ...]
Values = Mapping[Labels, Sequence[Labels]]
"""By labels that belong together, all combinations of their values: ("sink", "route"): [("mail", "events")]."""


def each(values: Iterable[str]) -> list[Labels]:
    return [(value,) for value in values]


def _of(values: Mapping[str, Iterable[str]]) -> dict[Labels, list[Labels]]:
    return {(label,): each(known) for label, known in values.items()}


_AGES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_REQUESTS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_DELIVERIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_DELAYS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
_COUNTS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)

_REASONS_OF_STORE = (
    "bug", "redis-auth", "redis-busy", "redis-cluster", "redis-clusterdown", "redis-connection", "redis-connections",
    "redis-database", "redis-full", "redis-killed", "redis-loading", "redis-masterdown", "redis-misconf", "redis-mode",
    "redis-moved", "redis-noreplicas", "redis-noscript", "redis-protocol", "redis-readonly", "redis-replicas",
    "redis-script", "redis-sentinel", "redis-slots", "redis-timeout", "redis-tls", "redis-tryagain", "redis-unfit",
    "redis-unknown",
)  # fmt: skip
_STATE_AND_REASON: Labels = ("state", "reason")
_DECISIONS: list[Labels] = [
    *dict.fromkeys(
        (str(transition.to), str(transition.reason))
        for known in TRANSITIONS.values()
        for transition in known.values()
        if transition is not None and transition.to is not None
    ),
    *((str(state), str(Reason.RESUMED)) for state in State if state is not State.PAUSED),
]


class Declared(NamedTuple):
    kind: str
    labels: Labels
    help: str
    values: Values = MappingProxyType({})
    """Of labels that the configuration does not decide."""
    buckets: tuple[float, ...] = ()


def _counter(labels: Labels, help_text: str, **values: Iterable[str]) -> Declared:
    return Declared("counter", labels, help_text, _of(values))


def _gauge(labels: Labels, help_text: str, **values: Iterable[str]) -> Declared:
    return Declared("gauge", labels, help_text, _of(values))


def _histogram(labels: Labels, help_text: str, buckets: tuple[float, ...], **values: Iterable[str]) -> Declared:
    return Declared("histogram", labels, help_text, _of(values), buckets)


def _of_controller(prefix: str, of: str, well: str) -> dict[str, Declared]:
    return {
        f"{prefix}_level": _gauge((of,), f"0: {well}. The higher the level, the longer the wait between two probes."),
        f"{prefix}_state": _gauge((of, "state"), "1 for the present state, 0 for the others.", state=State),
        f"{prefix}_decisions_total": Declared(
            "counter",
            (of, "state", "reason"),
            "Changes of state, by new state and reason.",
            {_STATE_AND_REASON: _DECISIONS},
        ),
        f"{prefix}_results_ignored_total": _counter((of,), "Results ignored because they belong to an earlier epoch."),
    }


METRICS: dict[str, Declared] = {
    # -- intake
    "messages_received_total": _counter(("topic",), "Messages that nsqd sent."),
    "messages_finished_total": _counter(
        ("topic",), "Messages finished: stored, sent to the dead-letter topic, or matched by no route."
    ),
    "messages_requeued_total": _counter(("topic",), "Messages given back to nsqd (REQ), which sends them again."),
    "messages_expired_total": _counter(
        ("topic",), "Messages dropped because they waited in the daemon for all of msg_timeout; nsqd sends them again."
    ),
    "messages_refused_total": _counter(
        ("topic", "reason"), "FIN, REQ or TOUCH that nsqd refused, mostly because msg_timeout had passed.",
        reason=("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"),
    ),
    "messages_in_flight": _gauge(("topic",), "Messages received and neither finished nor requeued yet."),
    "message_age_seconds": _histogram(("topic",), "Time from a message's timestamp until Redis stored it.", _AGES_S),
    "batch_messages": _histogram(("topic",), "Messages in one batch written to Redis.", _COUNTS),
    "events_unmatched_total": _counter(("topic",), "Events finished because no route matches them."),
    "events_skipped_total": _counter(
        ("route", "reason"), "Events that a route takes and does not file, by reason.", reason=SkipReason
    ),
    "zones_unknown_total": _counter(
        ("route",), "Events that named a zone that there is not; their timelines keep theirs, or zone_default."
    ),
    "dead_letters_total": _counter(
        ("topic", "reason"), "Messages sent to the dead-letter topic.", reason=DeadLetterReason
    ),
    "publishes_total": _counter(
        ("outcome",),
        "PUBs and MPUBs of dead letters and of nsq sinks; unsent and unknown, where nsqd may have the messages or not, "
        "count once a write.",
        outcome=("acknowledged", "refused", "unsent", "unknown"),
    ),
    "publish_waits_total": _counter(
        ("reason",), "Publishes that waited because too many commands or bytes were in progress.",
        reason=("commands", "bytes"),
    ),
    "records_added_total": _counter(
        ("route",), "Records sent to timelines, kept or not; see records_not_kept_total for the latter."
    ),
    "records_not_kept_total": _counter(
        ("route", "reason"),
        "Records not kept: superseded by a newer one, over a limit, stored before, muted, or cancelled.",
        reason=("superseded", "capacity", "timelines", "duplicate", "muted", "cancelled", "repeated"),
    ),
    "nsqd_connections": _gauge(("topic",), "Open connections to nsqd."),
    "nsqd_addresses": _gauge(("topic",), "Known addresses of nsqds, connected or not."),
    "nsqd_connections_lost_total": _counter(
        ("topic", "reason"), "Connections to nsqd that broke or that nsqd ended.",
        reason=ConnectionLoss,
    ),
    "lookupd_failures_total": _counter(
        ("topic", "reason"), "Lookups that failed, over all nsqlookupds.", reason=LookupProblem
    ),
    "nsqds_refused_total": _counter(
        ("topic",), "Addresses of nsqds that a nsqlookupd named and nsq.allow_nsqds does not list."
    ),
    "channel_depth": _gauge(
        ("topic",), "Messages that wait in nsqd for this channel; counts only nsqds that a nsqlookupd names."
    ),
    "starved": _gauge(("topic",), "1: max_in_flight limits the rate: nearly all of it is in use."),
    **_of_controller("backoff", "topic", "flowing"),
    # -- delivery
    "digests_delivered_total": _counter(("sink", "route"), "Digests that their receiver accepted."),
    "digest_records_delivered_total": _counter(("sink", "route"), "Records of the digests that were accepted."),
    "digest_attempts_total": _counter(("sink", "outcome"), "Attempts to deliver a digest.", outcome=Verdict),
    "digests_buried_total": _counter(
        ("sink", "reason"), "Digests given up and moved to the dead list.", reason=BuryReason
    ),
    "mail_recipients_refused_total": _counter(
        ("sink",), "Recipients that a mail server refused, for good or for an hour, while others got the mail."
    ),
    "digests_stale_total": _counter(
        ("route",), "Digests whose lease ran out during delivery; they may be delivered again, under the same id."
    ),
    "delivery_seconds": _histogram(
        ("sink", "outcome"), "Duration of a delivery attempt.", _DELIVERIES_S, outcome=Verdict
    ),
    "digest_delay_seconds": _histogram(
        ("route",), "Time from a digest being due until its receiver accepted it, retries included.", _DELAYS_S
    ),
    "digest_records": _histogram((), "Records in an accepted digest.", _COUNTS),
    "last_delivery_timestamp_seconds": _gauge(
        ("sink",), "Unix time of the last accepted digest; 0: none since the daemon started."
    ),
    "oldest_due_seconds": _gauge(
        ("route",), "Age of the longest overdue digest, also while its sink is down; 0: none is overdue."
    ),
    "timelines": _gauge(
        ("route", "state"), "Timelines that wait (waiting) or are being delivered (leased).",
        state=("waiting", "leased"),
    ),
    "timelines_rescored_total": _counter(
        ("route", "direction"), "Timelines that wait and are due sooner, or later, since their policy was changed.",
        direction=("sooner", "later"),
    ),
    "records_open": _gauge(("route",), "Records that wait for the next digest of their timeline."),
    "dead_digests": _gauge(("sink",), "Digests in the dead list."),
    "dead_digests_dropped_total": _counter(
        ("sink",), "Digests dropped from the dead list because it held more than limits.dead_digests."
    ),
    "sink_state": _gauge(
        ("sink", "state"), "1 for the present state, 0 for the others.",
        state=SinkState,
    ),
    "paused": _gauge(("kind", "name"), "1: an operator paused this topic, route or sink."),
    **_of_controller("sink_backoff", "sink", "delivering"),
    # -- the store
    "store_up": _gauge((), "1: Redis answers the scheduler; 0: it fails, or was not reached since the start."),
    "store_request_seconds": _histogram(("script",), "Time until Redis answered a script.", _REQUESTS_S),
    "store_errors_total": _counter(("reason",), "Failed Redis calls of the scheduler.", reason=_REASONS_OF_STORE),
    "store_repairs_total": _counter(
        ("kind",),
        "Repairs of data in Redis: due times of a wrong clock, timelines missing from the schedule, counts, ledgers.",
        kind=("instant", "timeline", "count", "ledger"),
    ),
    "store_records_lost_total": _counter(
        ("route",), "Records that Redis acknowledged and then lost, those delivered before among them."
    ),
    "store_keys_forgotten_total": _counter(
        ("route",),
        "Keys of delivered records forgotten before dedupe_window was over: their timelines remember so many at most.",
    ),
    "store_partitions_lost_total": _counter((), "Partitions that Redis lost with all their data."),
    "store_server_changes_total": _counter((), "Restarts and failovers of Redis that the daemon noticed."),
    "timelines_held": _gauge(
        ("route", "kind"), "Timelines that an operator muted or snoozed.", kind=("mute", "snooze")
    ),
    "orphan_records": _gauge((), "Records of routes that the file no longer has; nobody delivers them."),
    # -- the daemon
    "descriptors_used_ratio": _gauge(
        (), "Share of the process' file descriptors that are open, from 0 to 1; 0 if the system sets no limit."
    ),
    "event_loop_lag_seconds": _gauge((), "The longest delay of the event loop in the last 15 s."),
    "http_refusals_total": _counter(
        ("reason",), "Requests to admin.listen refused, and connections to it closed, by reason.", reason=HttpRefusal
    ),
    "log_lines_dropped_total": _counter((), "Log lines dropped because the reader of the log fell behind."),
    "start_time_seconds": _gauge((), "Unix time when the daemon began to count: all counters were 0 then."),
    "build_info": _gauge(("version", "python"), "1, with the versions of nsqdigest and Python as labels."),
    "config_info": _gauge(("hash",), "1, with a hash of the configuration as label: equal settings, equal hash."),
    "config_reloads_total": _counter(
        ("outcome",),
        "Reloads of the configuration, by outcome; refused: it has mistakes, or something needs a restart.",
        outcome=ReloadOutcome,
    ),
    "config_last_reload_successful": _gauge(
        (), "1: the last reload was good, or there was none; 0: it was not, and what was loaded before is in force."
    ),
    "config_last_reload_success_timestamp_seconds": _gauge(
        (), "Unix time at which the configuration in force was loaded, by the start or a reload."
    ),
}  # fmt: skip
STARTS_UNKNOWN = ("channel_depth",)
"""No series until the first measurement: a 0 would be a false statement."""
