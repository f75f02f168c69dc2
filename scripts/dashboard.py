"""Writes config/grafana-dashboard.json from the rows and panels below: `make dashboard`.

Invariants:
- An id is 100 times the number of its row + its number in the row, keys are sorted, one value stands on a line: a
  change of a panel is a change of its lines.
- What each daemon counts of its own work is summed; what all of them read from the same Redis or nsqd is not (max).
- `$job` is a fleet, `$instance` some of its daemons.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nsqdigest.base.metric_table import PREFIX
from scripts import pages

FILE = pages.DOCS.parent / "config" / "grafana-dashboard.json"
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "$datasource"}
_FLEET = 'job="$job",instance=~"$instance"'
WELL, WARN, BAD = "green", "orange", "red"
Json = dict[str, Any]


def _of(name: str, *labels: str) -> str:
    """A selector of one of our metrics."""
    return f"{PREFIX}{name}{{{','.join((_FLEET, *labels))}}}"


def _process(name: str) -> str:
    return _of(name).removeprefix(PREFIX)


def _rate(by: str, name: str, *labels: str) -> str:
    return f"sum by ({by}) (rate({_of(name, *labels)}[$__rate_interval]))"


def _rose(by: str, name: str, *labels: str) -> str:
    return f"sum by ({by}) (increase({_of(name, *labels)}[$__rate_interval]))"


def _read(by: str, name: str, *labels: str) -> str:
    """A fact of Redis or nsqd, which each daemon reads."""
    return f"max by ({by}) ({_of(name, *labels)})"


def _quantile(share: float, by: str, name: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'le, {by}', f'{name}_bucket')})"


@dataclass(frozen=True)
class Panel:
    title: str
    says: str
    """What it shows, and what is well."""
    queries: Mapping[str, str]
    """Expressions by legend. A legend without {{label}} is one line."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    steps: Sequence[tuple[float, str]] = ()
    """Colours from these values on, of a single number."""
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Text and colour for a value."""


def _number(
    title: str, says: str, query: str, unit: str = "short", *, words: Mapping[str, tuple[str, str]] | None = None,
    warn: float = 0.0, bad: float = 0.0,
) -> Panel:  # fmt: skip
    steps = [(value, colour) for value, colour in ((warn, WARN), (bad, BAD)) if value]
    return Panel(title, says, {title: query}, unit, "stat", 4, steps, words or {})


_TROUBLE = 'state!="delivering"'
ROWS: Mapping[str, Sequence[Panel]] = {
    "Verdict": [
        _number("Daemons", "Daemons that answer Prometheus.", 'sum(up{job="$job"})',
                words={"0": ("none", BAD)}),
        _number("Redis", "Whether every daemon can work with Redis.", f"min({_of('store_up')})",
                words={"0": ("failing", BAD), "1": ("answers", WELL)}),
        _number("Sinks in trouble", "Sinks that are behind, refusing, paused or stopped.",
                f"count({_read('sink', 'sink_state', _TROUBLE)} == 1) or vector(0)", bad=1),
        _number("Longest overdue", "How late the oldest digest is. Well: below a second or two.",
                f"max({_of('oldest_due_seconds')})", "s", warn=60, bad=300),
        _number("Behind in nsqd", "Messages that wait in nsqd. Needs nsqlookupd.",
                f"sum({_read('topic', 'channel_depth')})"),
        _number("Dead digests", "Digests that were given up and can be replayed.",
                f"sum({_read('sink', 'dead_digests')})", warn=1),
        Panel("Alerts that fire", "Of config/alerts.yml; docs/runbook.md says what to do.",
              {"": 'ALERTS{job="$job",alertname=~"Nsqdigest.*",alertstate="firing"}'}, kind="table", width=24),
    ],
    "In: from NSQ": [
        Panel("Events", "Messages of each topic, received and finished. Well: the two lines are one.",
              {"{{topic}} received": _rate("topic", "messages_received_total"),
               "{{topic}} finished": _rate("topic", "messages_finished_total")}, "cps"),
        Panel("From nsqd's time until stored", "Age of a message when Redis has it, by topic.",
              {"{{topic}} p50": _quantile(0.5, "topic", "message_age_seconds"),
               "{{topic}} p99": _quantile(0.99, "topic", "message_age_seconds")}, "s"),
        Panel("Waiting in nsqd", "Depth of our channel. Well: it comes down again. Needs nsqlookupd.",
              {"{{topic}}": _read("topic", "channel_depth")}),
        Panel("In flight", "Messages being worked on. Starved 1: max_in_flight limits the rate.",
              {"{{topic}}": f"sum by (topic) ({_of('messages_in_flight')})",
               "{{topic}} starved": f"max by (topic) ({_of('starved')})"}),
        Panel("Backoff level", "0: flowing. It rises with each failed probe.",
              {"{{topic}} {{instance}}": f"max by (topic, instance) ({_of('backoff_level')})"}),
        Panel("Connections to nsqd", "Open connections and known addresses. Well: the same.",
              {"{{topic}} open": f"sum by (topic) ({_of('nsqd_connections')})",
               "{{topic}} known": f"sum by (topic) ({_of('nsqd_addresses')})"}),
        Panel("Events that are not as expected",
              "Dead letters, events that no route takes, that are too old, or that name a zone that there is not.",
              {"{{topic}} dead letter: {{reason}}": _rose("topic, reason", "dead_letters_total"),
               "{{topic}} unmatched": _rose("topic", "events_unmatched_total"),
               "{{route}} {{reason}}": _rose("route, reason", "events_skipped_total"),
               "{{route}} unknown zone": _rose("route", "zones_unknown_total")}),
        Panel("Handed over again", "Messages given back, that waited too long, or that nsqd refused to finish.",
              {"{{topic}} requeued": _rose("topic", "messages_requeued_total"),
               "{{topic}} expired": _rose("topic", "messages_expired_total"),
               "{{topic}} {{reason}}": _rose("topic, reason", "messages_refused_total")}),
        Panel("Trouble with nsqd and nsqlookupd", "Connections that ended, lookups that failed, publishes that did.",
              {"{{topic}} lost: {{reason}}": _rose("topic, reason", "nsqd_connections_lost_total"),
               "{{topic}} lookup: {{reason}}": _rose("topic, reason", "lookupd_failures_total"),
               "{{topic}} refused nsqds": _rose("topic", "nsqds_refused_total"),
               "publish {{outcome}}": _rose("outcome", "publishes_total", 'outcome!="acknowledged"')}),
    ],
    "Store: Redis": [
        Panel("Time of a script, p99", "Until Redis answered. Well: a few milliseconds.",
              {"{{script}}": _quantile(0.99, "script", "store_request_seconds")}, "s"),
        Panel("Scripts", "Calls a second.", {"{{script}}": _rate("script", "store_request_seconds_count")}, "cps"),
        Panel("Failed calls", "Of the scheduler, by reason. Well: none.",
              {"{{reason}}": _rose("reason", "store_errors_total")}),
        Panel("Records filed", "Sent to timelines, and not kept by reason.",
              {"{{route}}": _rate("route", "records_added_total"),
               "{{route}} not kept: {{reason}}": _rate("route, reason", "records_not_kept_total")}, "cps"),
        Panel("Timelines", "That wait, or are being delivered; muted and snoozed ones.",
              {"{{route}} {{state}}": _read("route, state", "timelines"),
               "{{route}} {{kind}}": _read("route, kind", "timelines_held")}),
        Panel("Records that wait", "For the next digest of their timeline, and records of routes that are gone.",
              {"{{route}}": _read("route", "records_open"), "orphans": f"max({_of('orphan_records')})"}),
        Panel("Messages in a batch, p50", "More under load.",
              {"{{topic}}": _quantile(0.5, "topic", "batch_messages")}),
        Panel("Lost", "What Redis had acknowledged, and keys forgotten before dedupe_window was over. Well: never any.",
              {"records of {{route}}": _rose("route", "store_records_lost_total"),
               "partitions": _rose("", "store_partitions_lost_total"),
               "keys of {{route}} forgotten": _rose("route", "store_keys_forgotten_total")}),
        Panel("Restarts, failovers, repairs", "That daemons noticed, and mended.",
              {"servers changed": _rose("", "store_server_changes_total"),
               "repaired: {{kind}}": _rose("kind", "store_repairs_total"),
               "{{route}} rescored {{direction}}": _rose("route, direction", "timelines_rescored_total")}),
    ],
    "Out: digests": [
        Panel("Digests", "That receivers accepted.",
              {"{{sink}} {{route}}": _rate("sink, route", "digests_delivered_total")}, "cps"),
        Panel("From due until accepted", "Retries included, by route.",
              {"{{route}} p50": _quantile(0.5, "route", "digest_delay_seconds"),
               "{{route}} p99": _quantile(0.99, "route", "digest_delay_seconds")}, "s"),
        Panel("Longest overdue", "Of each route, also while its sink is down. Well: about 0.",
              {"{{route}}": _read("route", "oldest_due_seconds")}, "s"),
        Panel("Records in digests", "Delivered, a second.",
              {"{{sink}} {{route}}": _rate("sink, route", "digest_records_delivered_total")}, "cps"),
        Panel("Records in a digest", "Events that one message stands for.",
              {"p50": f"histogram_quantile(0.5, {_rate('le', 'digest_records_bucket')})",
               "p99": f"histogram_quantile(0.99, {_rate('le', 'digest_records_bucket')})"}),
        Panel("Leases that ran out", "Digests that may be delivered again, under the same id.",
              {"{{route}}": _rose("route", "digests_stale_total")}),
    ],
    "Sinks": [
        Panel("State", "1: the sink is in this state, at one daemon or more.",
              {"{{sink}} {{state}}": f"{_read('sink, state', 'sink_state')} == 1"},
              kind="state-timeline", width=16),
        Panel("Since the last delivery", "By sink; nothing where none was accepted since the start.",
              {"{{sink}}": f"time() - (max by (sink) ({_of('last_delivery_timestamp_seconds')}) > 0)"}, "s"),
        Panel("Attempts by outcome", "Well: delivered.",
              {"{{sink}} {{outcome}}": _rate("sink, outcome", "digest_attempts_total")}, "cps"),
        Panel("Time of an attempt, p99", "By sink.",
              {"{{sink}}": _quantile(0.99, "sink", "delivery_seconds")}, "s"),
        Panel("Backoff level", "0: delivering.",
              {"{{sink}} {{instance}}": f"max by (sink, instance) ({_of('sink_backoff_level')})"}),
        Panel("Given up", "Digests moved to the dead list, dropped from it, and recipients that a mail server refused.",
              {"{{sink}} {{reason}}": _rose("sink, reason", "digests_buried_total"),
               "{{sink}} dropped": _rose("sink", "dead_digests_dropped_total"),
               "{{sink}} recipients": _rose("sink", "mail_recipients_refused_total")}),
        Panel("Dead digests", "In the dead list, by sink.", {"{{sink}}": _read("sink", "dead_digests")}),
        Panel("Paused by an operator", "Topics, routes and sinks.",
              {"{{kind}} {{name}} {{instance}}": f"{_of('paused')} == 1"}),
    ],
    "Process": [
        Panel("CPU", "Cores in use.",
              {"{{instance}}": f"rate({_process('process_cpu_seconds_total')}[$__rate_interval])"}),
        Panel("Memory", "Resident.", {"{{instance}}": _process("process_resident_memory_bytes")}, "bytes"),
        Panel("Event loop lag", "How late the daemon reacts. Well: milliseconds.",
              {"{{instance}}": _of("event_loop_lag_seconds")}, "s"),
        Panel("Running for", "Since its counters began.",
              {"{{instance}}": f"time() - {_of('start_time_seconds')}"}, "s"),
        Panel("Since the configuration was loaded", "By the start or a reload.",
              {"{{instance}}": f"time() - {_of('config_last_reload_success_timestamp_seconds')}"}, "s"),
        Panel("Reloads", "By outcome, and 1 where the last one was refused or failed.",
              {"{{instance}} {{outcome}}": _rose("instance, outcome", "config_reloads_total"),
               "{{instance}} refused": f"1 - {_of('config_last_reload_successful')}"}),
        Panel("Log lines dropped", "Nobody reads the log fast enough. Well: none.",
              {"{{instance}}": f"increase({_of('log_lines_dropped_total')}[$__rate_interval])"}),
        Panel("Refused over HTTP", "Requests to admin.listen. Wrong tokens: somebody tries, or has an old one.",
              {"{{instance}} {{reason}}": _rose("instance, reason", "http_refusals_total")}),
        Panel("Open files", "And how many there may be.",
              {"{{instance}}": _process("process_open_fds"), "{{instance}} at most": _process("process_max_fds")}),
        Panel("Open files, share", "Of the limit. Well: below 0.9.",
              {"{{instance}}": _of("descriptors_used_ratio")}),
        Panel("Versions", "Of nsqdigest and Python.", {"": _of("build_info")}, kind="table", width=12),
        Panel("Configurations", "Equal hash: equal settings.", {"": _of("config_info")}, kind="table", width=12),
    ],
}  # fmt: skip

_HEIGHTS = {"stat": 4, "table": 5, "timeseries": 8, "state-timeline": 8}
_OPTIONS: Mapping[str, Json] = {
    "stat": {
        "colorMode": "background",
        "graphMode": "none",
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "state-timeline": {"legend": {"displayMode": "list", "placement": "bottom"}, "showValue": "never"},
    "table": {"showHeader": True},
}


def _target(number: int, legend: str, query: str, kind: str) -> Json:
    as_table = {"format": "table", "instant": True} if kind == "table" else {"legendFormat": legend}
    return {"datasource": SOURCE, "expr": query, "refId": chr(ord("A") + number), **as_table}


def _panel(panel: Panel, number: int, x: int, y: int) -> Json:
    steps = [{"color": WELL, "value": None}, *({"color": colour, "value": value} for value, colour in panel.steps)]
    mappings = [
        {"options": {value: {"color": colour, "text": text}}, "type": "value"}
        for value, (text, colour) in panel.words.items()
    ]
    defaults: Json = {"mappings": mappings, "noValue": "-", "unit": panel.unit}
    if panel.kind == "stat":
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}}
    return {
        "datasource": SOURCE,
        "description": panel.says,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "gridPos": {"h": _HEIGHTS[panel.kind], "w": panel.width, "x": x, "y": y},
        "id": number,
        "options": _OPTIONS[panel.kind],
        "targets": [_target(at, legend, query, panel.kind) for at, (legend, query) in enumerate(panel.queries.items())],
        "title": panel.title,
        "type": panel.kind,
    }


def _panels() -> list[Json]:
    """All rows below each other; in a row panels stand side by side as long as they fit."""
    found: list[Json] = []
    y = 0
    for row, (title, panels) in enumerate(ROWS.items(), start=1):
        found.append({
            "collapsed": False, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}, "id": 100 * row, "panels": [],
            "title": title, "type": "row",
        })  # fmt: skip
        x, y, height = 0, y + 1, 0
        for number, panel in enumerate(panels, start=1):
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            found.append(_panel(panel, 100 * row + number, x, y))
            x, height = x + panel.width, max(height, _HEIGHTS[panel.kind])
        y += height
    return found


def _variable(name: str, query: str, **more: Any) -> Json:
    return {
        "datasource": SOURCE, "definition": query, "label": name.capitalize(), "name": name, "options": [],
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "type": "query", **more,
    }  # fmt: skip


def dashboard() -> Json:
    build_info = f"{PREFIX}build_info"
    return {
        "annotations": {"list": [{
            "datasource": SOURCE, "enable": True, "expr": f"changes({_of('start_time_seconds')}[1m]) > 0",
            "iconColor": "blue", "name": "Starts", "titleFormat": "{{instance}} started",
        }]},
        "description": "Is nsqdigest well; what comes in, waits in Redis and goes out. Made by `make dashboard`.",
        "editable": True,
        "graphTooltip": 1,
        "id": None,
        "links": [],
        "panels": _panels(),
        "refresh": "30s",
        "schemaVersion": 39,
        "tags": ["nsqdigest"],
        "templating": {"list": [
            {"label": "Data source", "name": "datasource", "options": [], "query": "prometheus", "refresh": 1,
             "type": "datasource"},
            _variable("job", f"label_values({build_info}, job)"),
            _variable("instance", f'label_values({build_info}{{job="$job"}}, instance)', allValue=".*", includeAll=True,
                      multi=True, current={"selected": True, "text": ["All"], "value": ["$__all"]}),
        ]},
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "utc",
        "title": "nsqdigest",
        "uid": "nsqdigest",
        "version": 1,
    }  # fmt: skip


def files() -> dict[Any, str]:
    return {FILE: json.dumps(dashboard(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"}


if __name__ == "__main__":
    sys.exit(pages.main(sys.argv[1:], files, "dashboard"))
