"""A real Prometheus that scrapes daemons often, with this repository's own configuration and alert rules."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from support.ports import HOST
from support.servers import ROOT, Server, http_get

CONFIG = ROOT / "config"
EVERY = "250ms"


class Prometheus(Server):
    binary = "prometheus"
    port_count = 1

    def __init__(self, folder: Path, targets: Sequence[str]) -> None:
        super().__init__(folder)
        self._targets = list(targets)

    def _arguments(self) -> list[str]:
        settings = yaml.safe_load((CONFIG / "prometheus.yml").read_text("utf-8"))
        settings["global"] = {"evaluation_interval": EVERY}
        (job,) = settings["scrape_configs"]
        job |= {"scrape_interval": EVERY, "scrape_timeout": EVERY, "static_configs": [{"targets": self._targets}]}
        file = self.folder / "prometheus.yml"
        file.write_text(json.dumps(settings), "utf-8")  # JSON is YAML, too
        shutil.copy(CONFIG / "alerts.yml", self.folder)
        return [
            f"--config.file={file}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={HOST}:{self.ports[0]}",
        ]

    def _answers(self, pid: int) -> bool:
        try:
            return self._get("/-/ready")[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _get(self, path: str) -> tuple[int, str]:
        return http_get(self.ports[0], path)

    def _data(self, path: str, **query: str) -> Any:
        text = self._get(f"{path}?{urlencode(query)}")[1]
        answer = json.loads(text)
        assert answer["status"] == "success", text
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of its answer now: each with `metric`, its labels, and `value`."""
        found: list[dict[str, Any]] = self._data("/api/v1/query", query=expression)["result"]
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """Those that fire: `labels` and `annotations`."""
        return [alert for alert in self._data("/api/v1/alerts")["alerts"] if alert["state"] == "firing"]
