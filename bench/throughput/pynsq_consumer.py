"""Lane a: a pynsq consumer as a good user of pynsq and redis-py writes it.

One coroutine and one EVALSHA per event, all that are in flight at once; pynsq finishes the message when the coroutine
answers True. pynsq swallows what a coroutine raises (it requeues without a word), so it is caught and written here.
The pool never makes one wait (some 50 connections come of it): blocking pools of 32 to 512 cost a tenth more CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import nsq
import redis
import redis.asyncio

RECORD_TTL_S = 3600


def handler(client: redis.asyncio.Redis, sha: str) -> Any:
    async def handle(message: Any) -> bool:
        try:
            timeline = "user:" + json.loads(message.body)["user"]["id"]
            key = message.id.decode()
            await client.evalsha(
                sha,
                5,
                f"r:{timeline}:{key}",
                f"t:{timeline}",
                "waiting",
                "ready",
                f"l:{timeline}",
                key,
                message.body,
                message.timestamp / 1e9,
                RECORD_TTL_S,
                timeline,
            )
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return False
        return True

    return handle


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nsqd", required=True)
    options.add_argument("--redis-port", type=int, required=True)
    options.add_argument("--topic", required=True)
    options.add_argument("--channel", required=True)
    options.add_argument("--script", type=Path, required=True)
    options.add_argument("--max-in-flight", type=int, default=2500)
    given = options.parse_args()

    with redis.Redis(host="127.0.0.1", port=given.redis_port) as loader:
        sha = loader.script_load(given.script.read_text("utf-8"))
    client = redis.asyncio.Redis(host="127.0.0.1", port=given.redis_port, max_connections=given.max_in_flight)
    nsq.Reader(
        topic=given.topic,
        channel=given.channel,
        message_handler=handler(client, str(sha)),
        nsqd_tcp_addresses=[given.nsqd],
        max_in_flight=given.max_in_flight,
    )
    nsq.run()


if __name__ == "__main__":
    main()
