"""`nsqdigest run` as a test's own process: the installed command, a configuration file, a free admin port.

It is a server like nsqd and Redis (`support.servers`): it keeps its port and folder over kill and start, can be paused
and resumed, and a failed test shows the end of its log. `start` returns when it is ready; `launch` when it lives, ready
or not.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsqdigest.admin import unix_socket
from nsqdigest.base.reasons import ReloadOutcome
from support.ports import HOST
from support.servers import MissingServer, Server, ServerError, http_get
from support.waiting import PATIENCE_S, wait_until

Settings = Mapping[str, Mapping[str, Any]]

# What no daemon may ever say, whatever is done to it.
_BUG = re.compile(
    r'Traceback|never retrieved|never awaited|ResourceWarning|Unclosed|was destroyed|"event":\s*"[a-z.]+\.bug"'
)
_SERIES = re.compile(r"^nsqdigest_(\w+)(?:\{(.*)\})? (\S+)$")


def installed_command() -> Path:
    command = Path(sysconfig.get_path("scripts")) / "nsqdigest"
    if not command.exists():
        raise MissingServer("nsqdigest is not installed beside this Python; run `make install`")
    return command


def run_command(*words: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command of nsqdigest, to its end."""
    return subprocess.run(
        [installed_command(), *words], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False, env=environ
    )


def toml(settings: Settings, routes: Sequence[Mapping[str, Any]] = ()) -> str:
    """A configuration file. Names of tables may have dots: `{"policies.default": {...}}`."""
    tables = [(f"[{name}]", table) for name, table in settings.items()] + [("[[routes]]", route) for route in routes]
    return "\n".join(
        "\n".join([heading, *(f"{key} = {_toml_value(value)}" for key, value in table.items())]) + "\n"
        for heading, table in tables
    )


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)  # TOML writes text, numbers, true and false, and lists of them as JSON does


class Daemon(Server):
    binary = "nsqdigest"
    port_count = 1

    def __init__(self, folder: Path, settings: Settings, routes: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(folder)
        self.settings = settings
        self.routes = routes
        self.admin: dict[str, Any] = {}
        self.config_path = folder / "nsqdigest.toml"
        self._ready_path = "/readyz"

    def _find(self) -> Path:
        return installed_command()

    def write_file(self) -> None:
        admin = {"listen": f"{HOST}:{self.ports[0]}", **self.admin}
        self.config_path.write_text(toml({**self.settings, "admin": admin}, self.routes), encoding="utf-8")

    def _arguments(self) -> list[str]:
        self.write_file()
        return ["run", "--config", str(self.config_path)]

    def _answers(self, pid: int) -> bool:
        try:
            return self.get(self._ready_path)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    # -- the process

    def launch(self) -> None:
        """Starts it where it cannot be ready yet: returns when it lives."""
        self._ready_path = "/livez"
        try:
            self.start()
        finally:
            self._ready_path = "/readyz"

    def signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            raise ServerError(f"{self} is not running\n{self.log_tail()}")
        self._process.send_signal(number)

    def term(self) -> None:
        self.signal(signal.SIGTERM)

    def reload(self, outcome: str = "applied", within_s: float = 0.0) -> None:
        """Writes its file anew and sends HUP. Returns when the reload has ended, with this outcome."""
        before = self._reloads()
        self.write_file()
        self.signal(signal.SIGHUP)
        wait_until(lambda: self._reloads() != before, within_s, "the reload")
        became = {name for name, count in self._reloads().items() if count != before[name]}
        assert became == {outcome}, self.log_tail()

    @contextmanager
    def holding(self, kind: str, name: str) -> Iterator[None]:
        """Pauses a sink or a route. All that is stored meanwhile for one timeline comes in one digest afterwards.

        The daemon needs an `admin.token`.
        """
        self._operate("pause", kind, name)
        yield
        self._operate("resume", kind, name)

    def _operate(self, *words: str) -> None:
        done = run_command(*words, "-c", str(self.config_path))
        assert done.returncode == 0, done.stdout + done.stderr

    def _reloads(self) -> dict[str, float]:
        return {name: self.metric("config_reloads_total", outcome=name) for name in ReloadOutcome}

    def wait(self, timeout_s: float = 0.0) -> int:
        """Waits until it has ended by itself or by an earlier signal, and returns its exit code."""
        assert self._process is not None
        timeout_s = max(timeout_s, PATIENCE_S)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} did not end within {timeout_s:g} s\n{self.log_tail()}") from None

    def peak_memory_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found.group(1)) * 1024

    # -- what it says

    def get(self, path: str) -> tuple[int, str]:
        listen = str(self.admin.get("listen", ""))
        if not listen.startswith("unix:"):
            return http_get(self.ports[0], path)
        connection = unix_socket.Connection(listen.removeprefix("unix:"), PATIENCE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def is_ready(self) -> bool:
        return self._answers(self.pid)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all series of this name that have these labels."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            found = _SERIES.match(line)
            wanted = (f'{key}="{value}"' for key, value in labels.items())
            if found and found[1] == name and all(label in (found[2] or "") for label in wanted):
                total += float(found[3])
        return total

    def log_text(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def said(self, event: str) -> list[dict[str, Any]]:
        """The log lines of an event, over all its starts. `consumer.topic` stands for all that begin so."""
        lines = []
        for line in self.log_text().splitlines():
            if line.startswith("{"):
                fields = json.loads(line)
                if f"{fields.get('event')}.".startswith(f"{event}."):
                    lines.append(fields)
        return lines

    def bugs(self) -> list[str]:
        """Lines of its log that stand for a mistake of the program itself."""
        if not self.log_path.exists():
            return []
        return [line for line in self.log_text().splitlines() if _BUG.search(line)]
