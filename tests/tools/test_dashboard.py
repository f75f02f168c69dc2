"""config/grafana-dashboard.json: what the script gives, and each of its queries shows something of a daemon at work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.daemon import Daemon, run_command
from support.ports import HOST
from support.prometheus import Prometheus
from support.receiver import Answer
from support.stage import TOPIC, Stage
from support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from scripts import dashboard, pages
else:
    from support.tree import load

    dashboard, pages = load("scripts.dashboard"), load("scripts.pages")

BOARD: dict[str, Any] = json.loads(dashboard.FILE.read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = sorted({target["expr"] for panel in PANELS for target in panel["targets"]})


def shown(query: str) -> str:
    """As Grafana asks it for all daemons of the job."""
    return query.replace("$__rate_interval", "5s").replace("$job", "nsqdigest").replace("$instance", ".*")


def has_value(series: list[dict[str, Any]]) -> bool:
    return any(each["value"][1] != "NaN" for each in series)


@pytest.mark.unit
def test_the_file_is_what_the_script_gives() -> None:
    assert pages.stale(dashboard.files) == [], "run `make dashboard`"


@pytest.mark.unit
def test_ids_are_unique_and_panels_fit_side_by_side() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < dashboard.WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.unit
def test_every_panel_explains_itself_and_asks_the_chosen_source() -> None:
    for panel in PANELS:
        assert panel["description"].endswith(".")
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"$datasource"}
        assert len({target.get("legendFormat", target["refId"]) for target in panel["targets"]}) == len(
            panel["targets"]
        )
    assert [variable["name"] for variable in BOARD["templating"]["list"]] == ["datasource", "job", "instance"]
    assert all('job="$job"' in query for query in QUERIES)


# -- on a real Prometheus


@pytest.fixture(scope="module")
def scene(
    promtool: Path,  # comes with Prometheus: where it is missing the test is skipped
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Stage, Daemon, Prometheus]]:
    """A daemon with a sink that accepts everything and one that can be told to refuse."""
    folder = tmp_path_factory.mktemp("scene")
    stage = Stage(folder)
    try:
        stage.nsqd()
        for _ in range(2):
            stage.receiver()
        daemon = stage.daemon(
            {"sinks.second": {"retry_cap": "60ms"}, "backoff": {"base": "10ms"}},
            [
                {"name": sink, "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": sink}
                for sink in ("hook", "second")
            ],
        )
        token = folder / "token"
        token.write_text("sesame-open-the-door", "utf-8")
        token.chmod(0o600)
        daemon.admin = {"token": f"file:{token}"}
        daemon.start()
        with Prometheus(folder / "prometheus", [f"{HOST}:{daemon.ports[0]}"]) as prometheus:
            yield stage, daemon, prometheus
    finally:
        stage.end()


@pytest.mark.integration
@pytest.mark.servers
def test_every_query_shows_something_and_the_first_burial_ever_fires(
    scene: tuple[Stage, Daemon, Prometheus],
) -> None:
    stage, daemon, prometheus = scene
    stage.receivers[1].answer(Answer(400))
    wait_until(lambda: prometheus.query("nsqdigest_digests_buried_total"), PATIENCE_S, "the first scrape")
    publisher = stage.publisher(stage.nsqds[0], timelines=5)
    publisher.publish(20)
    wait_until(lambda: daemon.metric("digests_buried_total", sink="second") >= 5, PATIENCE_S, "digests to be buried")
    (alert,) = wait_until(
        lambda: [a for a in prometheus.alerts() if a["labels"]["alertname"] == "NsqdigestDigestsBuried"],
        PATIENCE_S,
        "the alert",
    )
    assert alert["annotations"]["summary"] == "Digests of sink second were given up: refused"
    assert alert["annotations"]["description"].startswith("About ")
    assert run_command("pause", "sink", "second", "-c", str(daemon.config_path)).returncode == 0
    publisher.publish(20)
    empty = {
        query for query in QUERIES if "channel_depth" not in query
    }  # that one needs nsqlookupd, and a quarter minute

    def all_show() -> bool:
        empty.difference_update([query for query in empty if has_value(prometheus.query(shown(query)))])
        return not empty

    wait_until(all_show, PATIENCE_S, f"a value of each of {empty}")
