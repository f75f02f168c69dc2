"""The least that Redis has to do for a digest of five records: ZRANGE and HMGET, two RENAMEs and an UNLINK, pipelined.

No claim, lease, schedule, head, memory or ledger. One UNLINK a digest: Redis' own count of them says how many are done.
"""

from __future__ import annotations

import argparse
import signal
import socket
from collections.abc import Sequence
from typing import Any

import hiredis
import redis

BATCH = 100
RECORDS, VALUE = 5, b'"' + b"x" * 248 + b'"'


def names(number: int) -> tuple[str, str, str, str]:
    return f"index:{number}", f"values:{number}", f"digest:{number}", f"digest-values:{number}"


def fill(client: redis.Redis, digests: int) -> None:
    for first in range(0, digests, BATCH):
        with client.pipeline(transaction=False) as pipeline:
            for number in range(first, min(first + BATCH, digests)):
                index, values, *_ = names(number)
                keys = [f"{number:014x}{record:02x}" for record in range(RECORDS)]
                pipeline.zadd(index, {key: -1_700_000_000_000_000 - place for place, key in enumerate(keys)})
                pipeline.hset(values, mapping=dict.fromkeys(keys, VALUE))
            pipeline.execute()


class Pipe:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._reader = hiredis.Reader()

    def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[list[bytes]]:
        self._socket.sendall(b"".join(hiredis.pack_command(command) for command in commands))
        answers: list[list[bytes]] = []
        while len(answers) < len(commands):
            self._reader.feed(self._socket.recv(1 << 18))
            while (answer := self._reader.gets()) is not False:
                if isinstance(answer, Exception):
                    raise answer
                answers.append(answer)
        return answers


def deliver(port: int, digests: int) -> None:
    pipe = Pipe(port)
    for first in range(0, digests, BATCH):
        taken = [names(number) for number in range(first, min(first + BATCH, digests))]
        found = pipe.ask([("ZRANGE", index, "0", "-1") for index, *_ in taken])
        commands: list[tuple[Any, ...]] = []
        for (index, values, digest, digest_values), keys in zip(taken, found, strict=True):
            commands += [("HMGET", values, *keys), ("RENAME", index, digest), ("RENAME", values, digest_values)]
            commands.append(("UNLINK", digest, digest_values))
        pipe.ask(commands)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--count", type=int, required=True)
    given = options.parse_args()
    deliver(given.port, given.count)
    signal.pause()
