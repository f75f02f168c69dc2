"""A blocking connection to Redis for tests that call it a hundred thousand times: RESP over a Unix socket, by hiredis.

A command costs a fifth of what it does through redis-py, and several go in one round trip. Answers come as Redis
gives them: a hash as a flat list, scores as bytes. What is there is read by a script of the test's own, all keys in
one call.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import hiredis
import redis

from support.store import Scripts, Watch, whole
from support.waiting import PATIENCE_S

_READ_BYTES = 1 << 16

_CONTENTS = """
local all = {}
for _, name in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', name).ok
  if kind == 'hash' then
    all[#all + 1] = { name, kind, redis.call('HGETALL', name) }
  elseif kind == 'zset' then
    all[#all + 1] = { name, kind, redis.call('ZRANGE', name, 0, -1, 'WITHSCORES') }
  else
    all[#all + 1] = { name, kind, redis.call('GET', name) }
  end
end
return all
"""
_SAVED = """
local all = {}
for _, name in ipairs(redis.call('KEYS', '*')) do
  all[#all + 1] = { name, redis.call('DUMP', name), redis.call('PTTL', name) }
end
return all
"""


class Saved(NamedTuple):
    name: bytes
    dump: bytes
    left_ms: int
    """Until it expires; below 0: it does not."""


def _error(text: str) -> Exception:
    word, _, rest = text.partition(" ")
    if word == "NOSCRIPT":
        return redis.exceptions.NoScriptError(rest)
    return redis.exceptions.ResponseError(text)


class Wire:
    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader(replyError=_error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def command(self, *words: bytes | str | int) -> Any:
        return self.commands([words])[0]

    def commands(self, commands: Sequence[Sequence[bytes | str | int]]) -> list[Any]:
        """In one round trip. The first error is raised after all answers were read."""
        pack: Any = hiredis.pack_command  # its types know of tuples of one
        self._socket.sendall(b"".join(pack(tuple(command)) for command in commands))
        answers: list[Any] = []
        while len(answers) < len(commands):
            answer = self._reader.gets()
            if answer is not False:
                answers.append(answer)
                continue
            read = self._socket.recv(_READ_BYTES)
            if not read:
                raise ConnectionError("Redis hung up")
            self._reader.feed(read)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


class WiredScripts(Scripts):
    """Calls and looks through the wire; `client` is for what a test does seldom."""

    def __init__(self, client: redis.Redis, wire: Wire, namespace: str = "test", partition: int = 0) -> None:
        super().__init__(client, namespace, partition)
        self.wire = wire
        self.command = wire.command

    def saved(self) -> list[Saved]:
        found = [Saved(*entry) for entry in self._look(_SAVED)]
        return sorted(found)

    def restore(self, saved: list[Saved]) -> None:
        """What is there is what was there then."""
        restored = [("RESTORE", name, max(0, left_ms), dump) for name, dump, left_ms in saved]
        self.wire.commands([("FLUSHALL",), *restored])

    def dump(self) -> dict[bytes, bytes]:
        expiring = {name for name, _, left_ms in self.saved() if left_ms >= 0}
        return {
            name: repr(sorted(held.items()) if isinstance(held, dict) else held).encode()
            + (b" expires" if name in expiring else b"")
            for name, held in self.contents().items()
        }

    def contents(self) -> dict[bytes, dict[bytes, bytes | int] | bytes]:
        found: dict[bytes, dict[bytes, bytes | int] | bytes] = {}
        for name, kind, value in self._look(_CONTENTS):
            if kind == b"zset":
                found[name] = {
                    member: whole(float(score)) for member, score in zip(value[::2], value[1::2], strict=True)
                }
            elif kind == b"hash":
                found[name] = dict(zip(value[::2], value[1::2], strict=True))
            else:
                found[name] = value
        return found

    def snapshot(self, timeline: bytes, route: str = "r") -> dict[bytes, tuple[int, bytes]]:
        index, values = self.keys("digest digest-values", route, timeline)
        scores, fields = self.wire.commands([("ZRANGE", index, 0, -1, "WITHSCORES"), ("HGETALL", values)])
        held = {key: whole(float(score)) for key, score in zip(scores[::2], scores[1::2], strict=True)}
        return self._joined(held, dict(zip(fields[::2], fields[1::2], strict=True)))

    def _look(self, script: str) -> Any:
        found = self.command("EVAL", script, 0)
        if isinstance(self.watch, Watch):
            self.watch.skip()
        return found
