"""Scripts that stop in the middle, as they do when a right is taken away or a key has another type.

A command that Redis refuses raises an error out of `redis.call`, and what the script wrote before stays. Here the write
after the n-th raises it: the same text, the same server, with `redis.call` counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from nsqdigest.store import scripts
from support.store import Scripts

WRITES = (
    "DECR HDEL HINCRBY HSET HSETNX INCR INCRBY PEXPIRE RENAME RENAMENX UNLINK ZADD ZREM ZREMRANGEBYRANK ZUNIONSTORE"
)
"""Of all scripts."""
_COUNTING = """
local writes, refuse_after, is_write = 0, %d, {}
for word in string.gmatch('%s', '%%u+') do is_write[word] = true end
local real = redis
local redis = { error_reply = real.error_reply, pcall = real.pcall, call = function(command, ...)
  if is_write[command] then
    writes = writes + 1
    if writes > refuse_after then error('cut off') end
  end
  return real.call(command, ...)
end }
"""


def text_cut_off(name: str, writes: int) -> bytes:
    """The script, to stop after so many writes."""
    return (_COUNTING % (writes, WRITES)).encode() + scripts.load(name).text


class CutOff(Exception):
    pass


class Interruptible(Scripts):
    """The call after `cut_off_after(n)` stops after n writes."""

    _refuse_after: int | None = None

    def cut_off_after(self, writes: int) -> None:
        self._refuse_after = writes

    def cut_off_never(self) -> None:
        self._refuse_after = None

    def run(self, name: str, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]) -> Any:
        if self._refuse_after is None:
            return super().run(name, keys, arguments)
        text, self._refuse_after = text_cut_off(name, self._refuse_after), None
        try:
            return self.command("EVAL", text, len(keys), *keys, *arguments)
        except redis.exceptions.ResponseError as error:
            if "cut off" in str(error):
                raise CutOff from None
            raise
