"""The commands of one connection that nsqd has not answered yet. Its answers come in the order of the commands."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqdigest.base.errors import NsqdError


class Requests:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[bytes]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self) -> asyncio.Future[bytes]:
        """For the command that is sent now. Whoever awaits it may be cancelled: its answer is still the next one."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        return answer

    def answer_first(self, answer: bytes | NsqdError) -> None:
        first = self._waiting.popleft()
        if first.done():
            return
        if isinstance(answer, bytes):
            first.set_result(answer)
        else:
            first.set_exception(answer)

    def fail_all(self, error: NsqdError) -> None:
        while self._waiting:
            self.answer_first(error)
