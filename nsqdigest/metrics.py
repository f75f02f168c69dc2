"""Counters and gauges, and their text for Prometheus. They observe and never steer.

Every metric is declared here, with its labels: an undeclared name or label is an error at its first use, and no label
is ever a timeline or a key, so that the number of series is bounded by the configuration.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "nsqdigest_"


class _Metric(NamedTuple):
    kind: str
    labels: tuple[str, ...]
    help: str


def _of_controller(prefix: str, of: str, well: str) -> dict[str, _Metric]:
    return {
        f"{prefix}_level": _Metric("gauge", (of,), f"0: {well}. Above: how far it has stepped back."),
        f"{prefix}_state": _Metric("gauge", (of, "state"), "1 for the state it is in."),
        f"{prefix}_decisions_total": _Metric("counter", (of, "state", "reason"), "Changes of state, and why."),
        f"{prefix}_results_ignored_total": _Metric(
            "counter", (of,), "Results of what had begun before the last change: no news any more."
        ),
    }


METRICS = {
    "messages_received_total": _Metric("counter", ("topic",), "Messages that nsqd handed over."),
    "messages_finished_total": _Metric(
        "counter", ("topic",), "Messages finished: stored, dead-lettered or of no route."
    ),
    "messages_requeued_total": _Metric("counter", ("topic",), "Messages given back to nsqd."),
    "messages_expired_total": _Metric("counter", ("topic",), "Messages held for their whole msg_timeout and let go."),
    "messages_refused_total": _Metric("counter", ("topic", "reason"), "FIN, REQ or TOUCH that nsqd refused: too late."),
    "events_unmatched_total": _Metric("counter", ("topic",), "Events that no route takes; finished."),
    "dead_letters_total": _Metric("counter", ("topic", "reason"), "Messages that went to the dead-letter topic."),
    "messages_handed_over_again_total": _Metric(
        "counter", ("topic",), "Messages handed over again while they were still being worked on; not worked on twice."
    ),
    "publishes_total": _Metric(
        "counter", ("outcome",), "Publishes to nsqd: acknowledged, refused, unsent, or unknown (nsqd may have it)."
    ),
    "publish_waits_total": _Metric("counter", ("reason",), "Publishes that waited for room: so much was under way."),
    "records_added_total": _Metric("counter", ("route",), "Records presented to timelines."),
    "records_not_kept_total": _Metric("counter", ("route", "reason"), "Records superseded, dropped or seen before."),
    "nsqd_connections": _Metric("gauge", ("topic",), "Open connections to nsqd."),
    "nsqd_addresses": _Metric("gauge", ("topic",), "Addresses of nsqds that are known, connected or not."),
    "nsqd_connections_lost_total": _Metric(
        "counter", ("topic", "reason"), "Connections that ended by themselves: silent for two heartbeats, closed ..."
    ),
    "lookupd_failures_total": _Metric(
        "counter", ("topic", "reason"), "Questions that a nsqlookupd did not answer as it should."
    ),
    "starved": _Metric("gauge", ("topic",), "1: max_in_flight is what limits the rate."),
    **_of_controller("backoff", "topic", "flowing"),
    "digests_delivered_total": _Metric("counter", ("sink", "route"), "Digests that their receiver accepted."),
    "digest_records_delivered_total": _Metric("counter", ("sink", "route"), "Records of those digests."),
    "digest_attempts_total": _Metric("counter", ("sink", "outcome"), "Attempts to deliver, by what came of them."),
    "digests_buried_total": _Metric("counter", ("sink", "reason"), "Digests that went to the dead store."),
    "dead_digests_dropped_total": _Metric(
        "counter", ("sink",), "Digests dropped because more than limits.dead_digests were dead."
    ),
    "digests_stale_total": _Metric("counter", ("route",), "Digests that another daemon had taken over meanwhile."),
    "schedule_lag_seconds": _Metric("gauge", ("route",), "How late the timelines claimed last were."),
    **_of_controller("sink_backoff", "sink", "delivering"),
    "store_errors_total": _Metric(
        "counter", ("reason",), "Calls of the scheduler that Redis did not answer as it should."
    ),
    "store_records_lost_total": _Metric("counter", ("route",), "Records that Redis acknowledged and has no more."),
    "store_partitions_lost_total": _Metric("counter", (), "Partitions that were found emptied."),
    "log_lines_dropped_total": _Metric("counter", (), "Log lines dropped because nobody read the log."),
    "store_server_changes_total": _Metric("counter", (), "Restarts and failovers of Redis that were noticed."),
}


class Metrics:
    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in METRICS}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        series = self._values[name]
        key = self._key(name, labels)
        series[key] = series.get(key, 0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        self._values[name][self._key(name, labels)] = value

    def total(self, name: str) -> float:
        """Over all labels."""
        return sum(self._values[name].values())

    @staticmethod
    def _key(name: str, labels: dict[str, str]) -> tuple[str, ...]:
        declared = METRICS[name].labels
        if len(labels) != len(declared):
            raise KeyError(f"{name} has the labels {declared}, not {tuple(labels)}")
        return tuple(str(labels[label]) for label in declared)

    def text(self) -> str:
        lines = []
        for name, metric in METRICS.items():
            lines.append(f"# HELP {PREFIX}{name} {metric.help}")
            lines.append(f"# TYPE {PREFIX}{name} {metric.kind}")
            for key, value in sorted(self._values[name].items()):
                labels = ",".join(f'{label}="{_escape(text)}"' for label, text in zip(metric.labels, key, strict=True))
                lines.append(f"{PREFIX}{name}{f'{{{labels}}}' if labels else ''} {value:.17g}")
        return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
