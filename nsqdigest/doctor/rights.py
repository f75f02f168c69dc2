"""The rights that a Redis user needs: the commands to ask about, and what it means that some are refused (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nsqdigest.doctor.findings import Finding, State

KEY = "@"
"""In a command: a key of the namespace."""
_EVERYWHERE = (
    "client setname nsqdigest", "info server", "time", "evalsha 0 0", "script load 0",
    "type @", "exists @", "unlink @", "rename @ @", "pexpire @ 1", "pttl @",
    "get @", "incr @", "incrby @ 1", "decr @",
    "hget @ f", "hmget @ f", "hgetall @", "hset @ f v", "hsetnx @ f v", "hdel @ f", "hexists @ f", "hlen @",
    "hincrby @ f 1", "hscan @ 0",
    "zadd @ 1 m", "zrem @ m", "zcard @", "zcount @ 0 1", "zscore @ m", "zmscore @ m", "zrange @ 0 1",
    "zrangebyscore @ 0 1", "zremrangebyrank @ 0 1", "zunionstore @ 1 @",
)  # fmt: skip
_WITH_A_DATABASE = ("select 1",)
_WITH_REPLICAS = ("wait 1 1",)
_IN_A_CLUSTER = ("asking", "cluster slots", "cluster info")
ALL_RIGHTS = (*_EVERYWHERE, *_WITH_A_DATABASE, *_WITH_REPLICAS, *_IN_A_CLUSTER)
"""What docs/redis.md gives."""
_WITH_SUBCOMMANDS = ("client", "script", "cluster")


def rights_needed(kind: str, durability: str, has_database: bool) -> tuple[str, ...]:
    return (
        *_EVERYWHERE,
        *(_WITH_A_DATABASE if has_database else ()),
        *(_WITH_REPLICAS if durability == "replica" else ()),
        *(_IN_A_CLUSTER if kind == "cluster" else ()),
    )


def right_of(command: str) -> str:
    """As an ACL has it: "script load 0" is script|load."""
    words = command.split()
    return "|".join(words[:2]) if words[0] in _WITH_SUBCOMMANDS else words[0]


def of_rights(user: str, namespace: str, needed: Sequence[str], refused: Collection[str] | None) -> Finding:
    """`refused`: of those that are needed; None: Redis cannot tell."""
    what = f"user {user}"
    if refused is None:
        return Finding(what, State.NOTE, "its rights are not checked: that needs Redis 7.0")
    if not refused:
        return Finding(what, State.OK, f"may send all {len(needed)} commands that it needs (none was sent)")
    of_keys = {command for command in needed if KEY in command.split()}
    if of_keys <= set(refused):
        pattern = f"~{{{namespace}:*"
        return Finding(
            what, State.FAIL, "may not use the keys of this namespace",
            f"ACL SETUSER {user} {pattern} and the commands that docs/redis.md lists",
        )  # fmt: skip
    rights = [right_of(command) for command in needed if command in refused]
    remedy = f"ACL SETUSER {user} {' '.join(f'+{right}' for right in rights)}"
    return Finding(what, State.FAIL, f"may not send {', '.join(rights)}", remedy)
