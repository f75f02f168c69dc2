"""The daemons of the demo, one after another: the first is killed while it delivers, and the next one takes over.

It is killed when a digest has arrived and before the receiver answers. So nobody knows that it was delivered: the next
daemon has to send it again, with the same id and the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.demo.daemons import DaemonProcess
from nsqdigest.demo.narrator import Narrator
from nsqdigest.demo.servers.ports import draw_port
from nsqdigest.demo.settings import Places, file

HOST = "127.0.0.1"
_LOOKS_EVERY_S = 0.5


class Troupe:
    def __init__(self, narrator: Narrator, on_failure: Callable[[], None]) -> None:
        self._narrator = narrator
        self._on_failure = on_failure
        self._daemons: list[DaemonProcess] = []
        self._understudy: asyncio.Task[None] | None = None
        """Starts the next daemon."""
        self._is_armed = False
        self._places: Places | None = None
        self._file = Path()
        self.kills = 0
        self.waits_for_repeat = False
        """The digest at which a daemon was killed has not come again yet."""
        self.complaints: list[str] = []

    @asynccontextmanager
    async def performing(self, places: Places) -> AsyncIterator[None]:
        """The first daemon takes in events; the last one is drained at the end, or killed after an exception."""
        with file() as self._file:
            self._places = places
            watch = asyncio.create_task(self._watch(), name="demo-watch")
            try:
                await self._start_next()
                yield
                if self._understudy is not None:
                    await self._understudy
                code = await self._daemons[-1].drain()
                if code != 0:
                    self.complaints.append(f"the daemon ended with exit code {code}")
            finally:
                tasks = [watch, *([self._understudy] if self._understudy else [])]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for daemon in self._daemons:
                    await daemon.kill()

    # -- the kill

    def kill_soon(self) -> None:
        self._is_armed = True

    def on_digest(self, digest: dict[str, Any]) -> None:
        """To be called before the receiver answers."""
        if not self._is_armed or digest["total"] < 2:
            return
        self._is_armed = False
        self._daemons[-1].kill_at_once()
        self.kills += 1
        self.waits_for_repeat = True
        self._narrator.killed()
        self._understudy = asyncio.create_task(self._start_next(), name="demo-understudy")

    def on_repeat(self) -> None:
        self.waits_for_repeat = False

    async def _start_next(self) -> None:
        assert self._places is not None
        number = len(self._daemons) + 1
        speaker = "daemon" if number == 1 else f"daemon {number}"
        listen = f"{HOST}:{draw_port(HOST)}"
        daemon = DaemonProcess(
            self._file, self._places.environ(listen), partial(self._narrator.logged, speaker=speaker)
        )
        self._daemons.append(daemon)
        try:
            await daemon.start()
        except NsqdigestError as error:
            if number == 1:
                raise
            self.complaints.append(str(error))
            self._on_failure()
            return
        if number > 1:
            self._narrator.note(f"{speaker} runs: the same file, the same channel, the same Redis")
        self._narrator.page_is_at(f"http://{listen}/")

    async def _watch(self) -> None:
        """A daemon that nobody asked to end is a complaint."""
        while True:
            await asyncio.sleep(_LOOKS_EVERY_S)
            if not self.complaints and any(daemon.has_ended_by_itself for daemon in self._daemons):
                self.complaints.append("the daemon ended by itself")
                self._on_failure()
