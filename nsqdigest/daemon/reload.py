"""Reloads: what HUP asks for, and what became of it.

    read      the file, as `check` does, in a thread: it may stand on a disk that hangs
    prepare   what differs, whether that can change while the daemon runs, and the parts that are new
    take      the new parts take the place of the others, in one turn of the event loop
    see off   what has no use any more ends, as in a drain

Invariants:
- All or nothing: up to `take` nothing of the configuration in force is touched, so whatever fails leaves it in force.
  `take` does nothing that may fail. Should it fail all the same, that is a mistake of the program, and the daemon ends
  in order rather than go on with half of two configurations.
- One at a time: a HUP during a reload means one more after it, however many there are.
- A refused reload is in the log, in the metrics, in `/readyz?verbose` and the state until one is good.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nsqdigest.base import log, tasks, threads
from nsqdigest.base.errors import ConfigError, NsqdigestError
from nsqdigest.base.reasons import ReloadOutcome
from nsqdigest.base.words import counted
from nsqdigest.config import Config, load
from nsqdigest.daemon.changes import Change, Changes, refusal

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config.options import Kinds
    from nsqdigest.daemon.parts import Parts

READ_WITHIN_S = 30.0

_log = log.get("daemon")


class NeedsRestart(NsqdigestError):
    """Some of what differs cannot change while the daemon runs."""

    def __init__(self, changes: Sequence[Change]) -> None:
        super().__init__(refusal(changes))


class Reloaded(Protocol):
    """The daemon, as far as a reload goes."""

    parts: Parts

    @property
    def is_draining(self) -> bool: ...

    def changes_to(self, config: Config) -> Changes:
        """Raises NeedsRestart."""

    def prepare(self, config: Config, changes: Changes) -> Parts:
        """Raises where a part cannot be built."""

    def take(self, parts: Parts) -> Parts:
        """Lets them take the place of those in force, and returns the latter."""

    async def see_off(self, before: Parts) -> None:
        """Returns when what of them has no use any more has ended."""

    def reloading(self) -> None:
        """A reload begins. `ready` follows."""

    def ready(self) -> None: ...


class Reloads:
    def __init__(self, daemon: Reloaded, metrics: Metrics, read: Callable[[], Config]) -> None:
        """`read`: reads the file; raises ConfigError."""
        self._daemon = daemon
        self._metrics = metrics
        self._read = read
        self._wanted = asyncio.Event()
        self.loaded_at_s = time.time()
        """When the configuration in force was loaded, in Unix time."""
        self.reloaded_at_s: float | None = None
        """When another file came into force; None: the one of the start is."""
        self.failed_at_s: float | None = None
        """When the last reload was refused; None: it was good, or there was none."""
        self.trouble = ""
        """Why, as a sentence."""
        self.tasks = tasks.Tasks()
        self._show()

    def start(self) -> None:
        self.tasks.start(self._run(), "reload")

    async def stop(self) -> None:
        await self.tasks.stop()

    def ask(self) -> None:
        """The signal HUP."""
        if self._daemon.is_draining:
            _log.warning("daemon.reload.ignored")
        else:
            self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._daemon.reloading()
            outcome = await self._reload()
            self._metrics.add("config_reloads_total", outcome=outcome)
            self._show()
            self._daemon.ready()

    async def _reload(self) -> ReloadOutcome:
        began_s = time.monotonic()
        try:
            config = await self._config()
            changes = self._daemon.changes_to(config)
            parts = self._daemon.prepare(config, changes)
        except ConfigError as error:
            for problem in error.problems:
                _log.error("daemon.reload.problem", problem=problem)
            count = len(error.problems)
            first = "" if count == 1 else f"{counted(count, 'problem')}, the first: "
            return self._refused(ReloadOutcome.REFUSED, f"{first}{error.problems[0]}")
        except NeedsRestart as error:
            return self._refused(ReloadOutcome.REFUSED, str(error))
        except NsqdigestError as error:
            return self._refused(ReloadOutcome.FAILED, str(error))
        except Exception as error:
            return self._refused(ReloadOutcome.FAILED, f"{type(error).__name__}: {error}", error)
        known = {(advice.path, advice.problem) for advice in self._daemon.parts.config.warnings}
        for advice in config.warnings:
            if (advice.path, advice.problem) not in known:
                _log.warning("config.advice", advice=advice)
        before = self._daemon.take(parts)
        self._taken(changes)
        await self._daemon.see_off(before)
        self._log_taken(config, changes, time.monotonic() - began_s)
        return ReloadOutcome.APPLIED if changes.is_any else ReloadOutcome.UNCHANGED

    async def _config(self) -> Config:
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                return await asyncio.wrap_future(threads.start(self._read, "reload"))
        except TimeoutError:
            raise NsqdigestError(f"it could not be read within {READ_WITHIN_S:g} s") from None

    def _taken(self, changes: Changes) -> None:
        self.loaded_at_s = time.time()
        if changes.is_any:
            self.reloaded_at_s = self.loaded_at_s
        self.failed_at_s, self.trouble = None, ""
        self._show()

    def _log_taken(self, config: Config, changes: Changes, took_s: float) -> None:
        if changes.is_any:
            _log.info("daemon.reloaded", config=config.source, changes=changes.text, took_s=round(took_s, 3))
        else:
            _log.info("daemon.reload.unchanged", config=config.source)

    def _refused(self, outcome: ReloadOutcome, why: str, bug: Exception | None = None) -> ReloadOutcome:
        self.failed_at_s, self.trouble = time.time(), why
        source, since = self._daemon.parts.config.source, _moment(self.loaded_at_s)
        if outcome is ReloadOutcome.FAILED:
            _log.error("daemon.reload.failed", config=source, error=why, in_force_since=since, exc_info=bug)
        else:
            _log.error("daemon.reload.refused", config=source, why=why, in_force_since=since)
        return outcome

    def _show(self) -> None:
        self._metrics.set("config_last_reload_successful", self.failed_at_s is None)
        self._metrics.set("config_last_reload_success_timestamp_seconds", self.loaded_at_s)


def reader_of(config: Config, kinds: Kinds) -> Callable[[], Config]:
    """Reads the same file again, with the same environment."""
    return lambda: load(Path(config.source), os.environ, kinds)


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
