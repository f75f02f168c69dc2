"""config/alerts.yml: each alert fires when it should and not when it should not, by Prometheus' own rule tests."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.waiting import PATIENCE_S

pytestmark = pytest.mark.unit

RULES = Path(__file__).parents[2] / "config" / "alerts.yml"
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in ALERTS]
OLD, NEW = "nsqdigest_start_time_seconds{%s} -86400x200", "nsqdigest_start_time_seconds{%s} _ _ _ 180x200"
FUNCTIONS = {"humanize", "humanizeDuration", "humanizePercentage"}


@dataclass(frozen=True)
class Case:
    alert: str
    series: str
    """One a line, a value a minute, in promtool's notation. `{a,…}` is of the daemon a of the job nsqdigest."""
    at: str
    fires: Sequence[Mapping[str, str]] = ()
    """The labels that the expression leaves, without severity; none: it does not fire."""


SINK, TOPIC, ROUTE, FLEET = ({name: value, "job": "nsqdigest"} for name, value in (
    ("sink", "hook"), ("topic", "events"), ("route", "events"), ("job", "nsqdigest"),
))  # fmt: skip
ONE = {"job": "nsqdigest", "instance": "a"}


def first_event(alert: str, series: str, labels: Mapping[str, str]) -> list[Case]:
    """An alert on single events. `series` ends with "%s": its labels, with {%s, for the daemon."""

    def of(daemon: str) -> str:
        return series.replace("{%s", "{" + daemon)

    return [
        # The first event ever, of a series that stood at 0.
        Case(alert, f"{OLD % 'a'}\n{of('a')} 0x9 1x60", "12m", [labels]),
        # The daemon is new, and the first scrape finds the event counted already.
        Case(alert, f"{NEW % 'a'}\n{of('a')} _ _ _ 1x60", "5m", [labels]),
        # In two daemons: one alert.
        Case(alert, f"{OLD % 'a'}\n{OLD % 'b'}\n{of('a')} 0x9 1x60\n{of('b')} 0x8 2x60", "12m", [labels]),
        # It was a quarter of an hour ago, and nothing came since; nor does a counter of a week stand for news.
        Case(alert, f"{OLD % 'a'}\n{of('a')} 0x9 1x60", "30m"),
        Case(alert, f"{OLD % 'a'}\n{of('a')} 17x60", "5m"),
        # A daemon begins again at 0.
        Case(alert, f"nsqdigest_start_time_seconds{{a}} -86400x9 600x60\n{of('a')} 17x9 0x60", "12m"),
    ]


CASES = [
    Case("NsqdigestAllDown", "up{a} 1x4 0x20\nup{b} 1x5 0x20", "10m", [{}]),
    Case("NsqdigestAllDown", "up{job='other'} 1x20", "5m", [{}]),
    Case("NsqdigestAllDown", "up{a} 1x4 0x20\nup{b} 1x30", "10m"),
    Case("NsqdigestAllDown", "up{a} 1x4 0x2 1x20", "7m"),
    Case("NsqdigestDown", "up{a} 1x2 0x20\nup{b} 1x30", "9m", [ONE]),
    Case("NsqdigestDown", "up{a} 1x2 0x3 1x20", "9m"),
    Case("NsqdigestRestarts", "nsqdigest_start_time_seconds{a} 0 0 120 120 240 360 480 480x9", "12m", [ONE]),
    Case("NsqdigestRestarts", "nsqdigest_start_time_seconds{a} 0 0 120x9\nnsqdigest_start_time_seconds{b} 60x20",
         "12m"),
    Case("NsqdigestConfigDiffers", "nsqdigest_config_info{a,hash='1'} 1x30\nnsqdigest_config_info{b,hash='2'} 1x30",
         "20m", [FLEET]),
    Case("NsqdigestConfigDiffers", "nsqdigest_config_info{a,hash='1'} 1x30\nnsqdigest_config_info{b,hash='1'} 1x30",
         "20m"),
    # A rolling restart: for ten minutes there are both.
    Case("NsqdigestConfigDiffers", "nsqdigest_config_info{a,hash='1'} 1x30\nnsqdigest_config_info{b,hash='1'} 1x40\n"
         "nsqdigest_config_info{a,hash='2'} _x30 1x30\nnsqdigest_config_info{b,hash='2'} _x40 1x30", "50m"),
    Case("NsqdigestReloadFailed", "nsqdigest_config_last_reload_successful{a} 1x5 0x20\n"
         "nsqdigest_config_last_reload_successful{b} 1x30", "16m", [ONE]),
    Case("NsqdigestReloadFailed", "nsqdigest_config_last_reload_successful{a} 1x5 0x5 1x20", "16m"),
    Case("NsqdigestEventLoopLag", "nsqdigest_event_loop_lag_seconds{a} 2x20\nnsqdigest_event_loop_lag_seconds{b} 0x20",
         "6m", [ONE]),
    Case("NsqdigestEventLoopLag", "nsqdigest_event_loop_lag_seconds{a} 0x3 3 0x20", "9m"),
    Case("NsqdigestDescriptors", "nsqdigest_descriptors_used_ratio{a} 1x20\nnsqdigest_descriptors_used_ratio{b} 0.5x20",
         "6m", [ONE]),
    Case("NsqdigestDescriptors", "nsqdigest_descriptors_used_ratio{a} 0.1x3 1 0.1x20\n"
         "nsqdigest_descriptors_used_ratio{b} 0.9x20", "9m"),
    # -- the store
    Case("NsqdigestStoreDown", "nsqdigest_store_up{a} 1x4 0x20", "8m", [FLEET]),
    Case("NsqdigestStoreDown", "nsqdigest_store_up{a} 1x30\nnsqdigest_store_up{b} 0x20", "8m", [FLEET]),
    Case("NsqdigestStoreDown", "nsqdigest_store_up{a} 1x4 0 1x20\nnsqdigest_store_up{b} 1x20", "8m"),
    *first_event("NsqdigestRecordsLost", "nsqdigest_store_records_lost_total{%s,route='events'}", FLEET),
    *first_event("NsqdigestRecordsLost", "nsqdigest_store_partitions_lost_total{%s}", FLEET),
    # -- intake
    Case("NsqdigestNoConnection", "nsqdigest_nsqd_connections{a,topic='events'} 1x3 0x20\n"
         "nsqdigest_nsqd_addresses{a,topic='events'} 1x30", "10m", [TOPIC]),
    # One daemon of two reads on; nobody knows an nsqd.
    Case("NsqdigestNoConnection", "nsqdigest_nsqd_connections{a,topic='events'} 0x20\n"
         "nsqdigest_nsqd_connections{b,topic='events'} 1x20\nnsqdigest_nsqd_addresses{b,topic='events'} 1x20", "10m"),
    Case("NsqdigestNoConnection", "nsqdigest_nsqd_connections{a,topic='events'} 0x20\n"
         "nsqdigest_nsqd_addresses{a,topic='events'} 0x20", "10m"),
    Case("NsqdigestNsqdUnreachable", "nsqdigest_nsqd_connections{a,topic='events'} 2x30\n"
         "nsqdigest_nsqd_addresses{a,topic='events'} 3x30", "16m", [TOPIC]),
    Case("NsqdigestNsqdUnreachable", "nsqdigest_nsqd_connections{a,topic='events'} 2x9 3x30\n"
         "nsqdigest_nsqd_addresses{a,topic='events'} 3x30", "16m"),
    Case("NsqdigestTopicUnknown", "nsqdigest_nsqd_addresses{a,topic='events'} 0x60\n"
         "nsqdigest_nsqd_addresses{b,topic='events'} 0x60", "31m", [TOPIC]),
    Case("NsqdigestTopicUnknown", "nsqdigest_nsqd_addresses{a,topic='events'} 0x20 1x60", "31m"),
    # A backoff that lasts, and one that comes and goes; not one short outage, nor an operator's pause.
    Case("NsqdigestBackoff", "nsqdigest_backoff_state{a,topic='events',state='backoff'} 0x5 1x40\n"
         "nsqdigest_backoff_state{a,topic='events',state='probing'} 0x60", "20m", [TOPIC]),
    Case("NsqdigestBackoff", "nsqdigest_backoff_state{a,topic='events',state='backoff'} 1 0 0 1 0 0 1 0 0 1 0 0 1 0 0 "
         "1 0 0 1 0 0 1 0 0 1 0 0\nnsqdigest_backoff_state{a,topic='events',state='probing'} 0 1 0 0 1 0 0 1 0 0 1 0 0 "
         "1 0 0 1 0 0 1 0 0 1 0 0 1 0\nnsqdigest_backoff_state{b,topic='events',state='backoff'} 0x30", "25m", [TOPIC]),
    Case("NsqdigestBackoff", "nsqdigest_backoff_state{a,topic='events',state='backoff'} 0x20 1x3 0x40", "26m"),
    Case("NsqdigestBackoff", "nsqdigest_backoff_state{a,topic='events',state='paused'} 1x40\n"
         "nsqdigest_backoff_state{a,topic='events',state='backoff'} 0x40", "25m"),
    # 6,000 messages at 10 a second; a depth that grows at a steady rate; one that stands still.
    Case("NsqdigestBehind", "nsqdigest_channel_depth{a,topic='events'} 6000x40\n"
         "nsqdigest_channel_depth{b,topic='events'} 6000x40\n"
         "nsqdigest_messages_finished_total{a,topic='events'} 0+300x40\n"
         "nsqdigest_messages_finished_total{b,topic='events'} 0+300x40", "20m", [TOPIC]),
    Case("NsqdigestBehind", "nsqdigest_channel_depth{a,topic='events'} 0+600x60\n"
         "nsqdigest_messages_finished_total{a,topic='events'} 0+600x60", "20m", [TOPIC]),
    Case("NsqdigestBehind", "nsqdigest_channel_depth{a,topic='events'} 5x40\n"
         "nsqdigest_messages_finished_total{a,topic='events'} 17x40", "20m", [TOPIC]),
    Case("NsqdigestBehind", "nsqdigest_channel_depth{a,topic='events'} 2000x40\n"
         "nsqdigest_messages_finished_total{a,topic='events'} 0+600x40", "20m"),
    Case("NsqdigestBehind", "nsqdigest_channel_depth{a,topic='events'} 0x40\n"
         "nsqdigest_messages_finished_total{a,topic='events'} 17x40", "20m"),
    Case("NsqdigestBehind", "nsqdigest_channel_depth{a,topic='events'} 5x40\n"
         "nsqdigest_messages_finished_total{a,topic='events'} 17x40\n"
         "nsqdigest_paused{a,kind='topic',name='events'} 1x40", "20m"),
    *first_event("NsqdigestDeadLetters", "nsqdigest_dead_letters_total{%s,topic='events',reason='not-json'}",
                 TOPIC | {"reason": "not-json"}),
    Case("NsqdigestUnmatched", "nsqdigest_events_unmatched_total{a,topic='events'} 0+60x90\n"
         "nsqdigest_messages_received_total{a,topic='events'} 0+60x90", "61m", [TOPIC]),
    Case("NsqdigestUnmatched", "nsqdigest_events_unmatched_total{a,topic='events'} 0+54x90\n"
         "nsqdigest_messages_received_total{a,topic='events'} 0+60x90", "61m"),
    Case("NsqdigestUnmatched", "nsqdigest_events_unmatched_total{a,topic='events'} 0x90\n"
         "nsqdigest_messages_received_total{a,topic='events'} 0x90", "61m"),
    Case("NsqdigestDroppedByCapacity", "nsqdigest_records_not_kept_total{a,route='events',reason='capacity'} 0+2x90\n"
         "nsqdigest_records_added_total{a,route='events'} 0+60x90", "80m", [ROUTE]),
    Case("NsqdigestDroppedByCapacity", "nsqdigest_records_not_kept_total{a,route='events',reason='capacity'} 0x9 6x90\n"
         "nsqdigest_records_added_total{a,route='events'} 0+60x90", "80m"),
    *first_event("NsqdigestTooManyTimelines",
                 "nsqdigest_records_not_kept_total{%s,route='events',reason='timelines'}", ROUTE),
    # -- delivery
    Case("NsqdigestSinkStopped", "nsqdigest_sink_state{a,sink='hook',state='stopped'} 0x3 1x20\n"
         "nsqdigest_sink_state{b,sink='hook',state='stopped'} 0x20", "6m", [SINK]),
    Case("NsqdigestSinkStopped", "nsqdigest_sink_state{a,sink='hook',state='stopped'} 0x20\n"
         "nsqdigest_sink_state{a,sink='hook',state='refusing'} 1x20", "6m"),
    Case("NsqdigestSinkRefusing", "nsqdigest_sink_state{a,sink='hook',state='refusing'} 0x3 1x20\n"
         "nsqdigest_sink_state{b,sink='hook',state='refusing'} 0x4 1x20", "10m", [SINK]),
    Case("NsqdigestSinkRefusing", "nsqdigest_sink_state{a,sink='hook',state='refusing'} 0x3 1x3 0x20", "10m"),
    Case("NsqdigestDeliveriesFail", "nsqdigest_digest_attempts_total{a,sink='hook',outcome='delivered'} 0+4x60\n"
         "nsqdigest_digest_attempts_total{a,sink='hook',outcome='again'} 0+6x60", "46m", [SINK]),
    Case("NsqdigestDeliveriesFail", "nsqdigest_digest_attempts_total{a,sink='hook',outcome='delivered'} 0+6x60\n"
         "nsqdigest_digest_attempts_total{a,sink='hook',outcome='again'} 0+4x60", "46m"),
    # It has an alert of its own.
    Case("NsqdigestDeliveriesFail", "nsqdigest_digest_attempts_total{a,sink='hook',outcome='again'} 0+6x60\n"
         "nsqdigest_sink_state{a,sink='hook',state='refusing'} 1x60", "46m"),
    Case("NsqdigestOverdue", "nsqdigest_oldest_due_seconds{a,route='events'} 0+60x40\n"
         "nsqdigest_oldest_due_seconds{b,route='events'} 0+60x40", "12m", [ROUTE]),
    Case("NsqdigestOverdue", "nsqdigest_oldest_due_seconds{a,route='events'} 0x3 0+60x6 0x20", "12m"),
    *(Case("NsqdigestOverdue", "nsqdigest_oldest_due_seconds{a,route='events'} 0+60x40\n"
           "nsqdigest_digests_delivered_total{a,route='events',sink='hook'} 0x40\n" + known, "12m")
      for known in ("nsqdigest_paused{a,kind='route',name='events'} 1x40",
                    "nsqdigest_sink_state{a,sink='hook',state='paused'} 1x40",
                    "nsqdigest_sink_state{a,sink='hook',state='refusing'} 1x40",
                    "nsqdigest_sink_state{a,sink='hook',state='stopped'} 1x40")),
    # What another sink or topic does explains nothing.
    Case("NsqdigestOverdue", "nsqdigest_oldest_due_seconds{a,route='events'} 0+60x40\n"
         "nsqdigest_digests_delivered_total{a,route='events',sink='hook'} 0x40\n"
         "nsqdigest_sink_state{a,sink='other',state='paused'} 1x40\n"
         "nsqdigest_sink_state{a,sink='hook',state='behind'} 1x40\n"
         "nsqdigest_paused{a,kind='topic',name='events'} 1x40", "12m", [ROUTE]),
    *first_event("NsqdigestDigestsBuried", "nsqdigest_digests_buried_total{%s,sink='hook',reason='refused'}",
                 SINK | {"reason": "refused"}),
    *first_event("NsqdigestDeadDigestsDropped", "nsqdigest_dead_digests_dropped_total{%s,sink='hook'}", SINK),
    *first_event("NsqdigestRecipientsRefused", "nsqdigest_mail_recipients_refused_total{%s,sink='hook'}", SINK),
    Case("NsqdigestPaused", "nsqdigest_paused{a,kind='sink',name='hook'} 0x5 1x90", "70m",
         [{"job": "nsqdigest", "kind": "sink", "name": "hook"}]),
    Case("NsqdigestPaused", "nsqdigest_paused{a,kind='sink',name='hook'} 0x5 1x50 0x30", "70m"),
    Case("NsqdigestOrphanRecords", "nsqdigest_orphan_records{a} 0x5 7x90\nnsqdigest_orphan_records{b} 0x6 7x90", "40m",
         [FLEET]),
    Case("NsqdigestOrphanRecords", "nsqdigest_orphan_records{a} 0x5 7x20 0x90", "40m"),
]  # fmt: skip


def promtool_test(case: Case, severity: str) -> dict[str, Any]:
    rows = [
        row.partition("} ")
        for row in re.sub(r"\{([ab])(?=[,}])", r'{job="nsqdigest",instance="\1"', case.series).splitlines()
    ]
    return {
        "interval": "1m",
        "input_series": [{"series": name + "}", "values": values} for name, _, values in rows],
        "alert_rule_test": [
            {
                "eval_time": case.at,
                "alertname": case.alert,
                "exp_alerts": [{"exp_labels": {**labels, "severity": severity}} for labels in case.fires],
            }
        ],
    }


def ran(promtool: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stdout + done.stderr


def test_prometheus_takes_the_rules(promtool: Path) -> None:
    code, said = ran(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert code == 0, said


@pytest.mark.parametrize("rule", ALERTS, ids=NAMES)
def test_it_fires_when_it_should_and_only_then(rule: dict[str, Any], promtool: Path, tmp_path: Path) -> None:
    cases = [case for case in CASES if case.alert == rule["alert"]]
    assert {bool(case.fires) for case in cases} == {True, False}, "a case that fires and one that does not"
    # Without annotations, which promtool would want repeated in each case. JSON is YAML, too.
    alone = {name: part for name, part in rule.items() if name != "annotations"}
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "one", "rules": [alone]}]}), "utf-8")
    tests = [promtool_test(case, rule["labels"]["severity"]) for case in cases]
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yml").write_text(json.dumps(test), "utf-8")
    code, said = ran(promtool, "test", "rules", str(tmp_path / "test.yml"))
    assert code == 0, said


def test_no_case_is_of_an_alert_that_is_gone() -> None:
    assert {case.alert for case in CASES} == set(NAMES)


# -- what a person reads


@pytest.mark.parametrize("rule", ALERTS, ids=NAMES)
def test_an_alert_says_what_how_bad_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert set(rule["labels"]) == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
    assert len(rule["annotations"]["summary"]) <= 120
    assert rule["annotations"]["description"].endswith(".")


@pytest.mark.parametrize("rule", ALERTS, ids=NAMES)
def test_its_text_names_labels_that_it_has(rule: dict[str, Any]) -> None:
    text = " ".join(rule["annotations"].values())
    labels = {name for case in CASES if case.alert == rule["alert"] for fired in case.fires for name in fired}
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels
    assert set(re.findall(r"\| (\w+)", text)) <= FUNCTIONS
    assert all(
        re.fullmatch(r"\{\{ \$(?:labels\.\w+|value(?: \| \w+)?) \}\}", part)
        for part in re.findall(r"\{\{.*?\}\}", text)
    )


def test_the_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    assert re.findall(r"^## (Nsqdigest\w+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE) == NAMES
