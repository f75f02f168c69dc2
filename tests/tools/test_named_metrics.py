"""Every metric, label and value of a label that alerts, dashboard and pages name is one that the daemon has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nsqdigest.base.metric_table import METRICS, PREFIX

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
NAMED = re.compile(rf"\b{PREFIX}(\w+)(?:\{{([^}}]*)\}})?")
FILES = [
    ROOT / "config" / "alerts.yml",
    ROOT / "config" / "grafana-dashboard.json",
    *(path for path in (ROOT / "README.md", *ROOT.glob("docs/*.md")) if NAMED.search(path.read_text("utf-8"))),
]
MATCHER = re.compile(r"""(\w+)\s*(?:=~|!~|!=|=)\s*\\?["'](.*?)\\?["']|(\w+)""")
OF_PROMETHEUS = {"job", "instance"}


def declared_name(name: str) -> str:
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if base in METRICS and METRICS[base].kind == "histogram" else name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_a_file_names_exists(path: Path) -> None:
    found = NAMED.findall(path.read_text("utf-8"))
    assert found
    for name, matchers in found:
        if name.endswith("_"):
            continue  # the beginning of several names: `nsqdigest_sink_backoff_…`
        declared = METRICS[declared_name(name)]
        for label, pattern, alone in MATCHER.findall(matchers):
            known = set(declared.labels) | OF_PROMETHEUS | ({"le"} if declared.kind == "histogram" else set())
            assert (label or alone) in known, f"{name} has no label {label or alone}"
            values = {value for (value,) in declared.values.get((label,), ())}
            if values:
                assert set(pattern.split("|")) <= values, f"{name} has no {label} {pattern}"


def test_the_dashboard_shows_nearly_every_metric() -> None:
    text = (ROOT / "config" / "grafana-dashboard.json").read_text("utf-8")
    shown = {declared_name(name) for name, _ in NAMED.findall(text)}
    of_developers = {
        name for name in METRICS if re.search(r"(decisions|results_ignored)_total$|backoff_state$|publish_waits", name)
    }
    assert set(METRICS) - shown - of_developers == set()
