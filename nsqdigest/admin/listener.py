"""Accepts the connections of the HTTP server, also if the process has no descriptor left.

asyncio's own loop reports such an error for each place of its queue, thousands of times a second, and accepts nothing.

Invariants:
- One spare descriptor is kept. If no other is left, a connection gets it: it is answered, so that `status` and
  `/readyz` can name the cause. The next descriptor that is free becomes the spare.
- Without the spare, an accepted connection that has waited for `GIVES_WAY_AFTER_S` makes room for the next one. If
  none has, the listener pauses for `_PAUSE_S`. Connections in the system's queue are accepted in order.
- The log has one line a minute about it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from nsqdigest.admin.door import Door
from nsqdigest.base import log
from nsqdigest.base.descriptors import EXHAUSTED, Spare

GIVES_WAY_AFTER_S = 1.0
"""A client sends its request at once. Later than that it is idle, or too slow."""
_AT_ONCE = 100
"""Connections accepted in one turn of the event loop, at most."""
_PAUSE_S = 0.02
_LOGGED_EVERY_S = 60.0

_log = log.get("admin")


class Listener:
    def __init__(self, sockets: Sequence[socket.socket], door: Door) -> None:
        """`sockets`: they listen already, and are closed by `stop`."""
        self._sockets = [*sockets]
        self._door = door
        self._spare = Spare()
        self._pause: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        self._go_on()

    async def stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._turn_away()
        while self._sockets:
            self._sockets.pop().close()
        await asyncio.gather(*self._opening, return_exceptions=True)
        self._spare.give()

    def _listen(self) -> None:
        for listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._note(error)
                if error.errno in EXHAUSTED and self._spare.give():
                    self._look_for_spare()
                    continue
                if error.errno not in EXHAUSTED or not self._door.gives_way(GIVES_WAY_AFTER_S):
                    self._stand_still()
                return
            self._open(connection)

    def _note(self, error: OSError) -> None:
        hint = "raise LimitNOFILE= of its unit, or ulimit -n" if error.errno in EXHAUSTED else ""
        _log.counted("error", "admin.accept.failed", by=("hint",), every_s=_LOGGED_EVERY_S, error=error, hint=hint)

    def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        opening = loop.create_task(self._connect(connection), name="admin connection")
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._door, connection)
        except OSError:
            connection.close()  # its client has left already

    # -- without descriptors

    def _stand_still(self) -> None:
        self._turn_away()
        self._look_for_spare()

    def _turn_away(self) -> None:
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)

    def _look_for_spare(self) -> None:
        if self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._listen()
        if not self._spare.keep():
            self._look_for_spare()
