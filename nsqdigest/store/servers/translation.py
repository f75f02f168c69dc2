"""Translates errors of Redis and of redis-py to `StoreError` (pure but for the classes of the driver).

The code that Redis puts first decides. An unknown error counts as ambiguous: the call may have been applied.
"""

from __future__ import annotations

import asyncio
import os
import re

from redis import exceptions as redis_errors

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.store.scripts import Script

# The code that Redis puts first in an error, or inside one from a script (6.2 wraps it). None of these calls was
# applied: Redis refuses a script at its first write or before, never at a later one.
_NOT_APPLIED = {
    "OOM": "redis-full",
    "READONLY": "redis-readonly",
    "NOREPLICAS": "redis-noreplicas",
    "MISCONF": "redis-misconf",
    "MASTERDOWN": "redis-masterdown",
    "LOADING": "redis-loading",
    "BUSY": "redis-busy",
    "CLUSTERDOWN": "redis-clusterdown",
    "TRYAGAIN": "redis-tryagain",
    "NOSCRIPT": "redis-noscript",
    "MOVED": "redis-moved",
    "ASK": "redis-moved",
    "CROSSSLOT": "redis-slots",
    "NOAUTH": "redis-auth",
    "WRONGPASS": "redis-auth",
    "NOPERM": "redis-auth",
}
_IN_A_SCRIPT = ("OOM", "READONLY", "NOREPLICAS", "MISCONF", "MASTERDOWN", "LOADING", "BUSY", "CLUSTERDOWN", "TRYAGAIN")
_WORD = re.compile(rf"\b({'|'.join(_IN_A_SCRIPT)})\b")
_CODE_OF_CLASS: dict[type[Exception], str] = {
    redis_errors.NoScriptError: "NOSCRIPT",
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.MovedError: "MOVED",
    redis_errors.AskError: "ASK",
    redis_errors.ClusterCrossSlotError: "CROSSSLOT",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.TryAgainError: "TRYAGAIN",
}
# Redis checks rights again for each command of a script: writes before the refused one remain.
_NO_RIGHT_IN_SCRIPT = re.compile(r"The user executing the script can't|ACL failure in script")
_OTHER_SLOT_IN_SCRIPT = re.compile(r"non local key|do not hash to the same slot")
_KILLED = re.compile(r"killed by user")
# The script itself failed, at one of its lines: the same call fails again until the data has changed.
_FAILED_IN_SCRIPT = re.compile(r"\bWRONGTYPE\b|lua/\S+:\d+|user_script|f_[0-9a-f]{40}")
# An unknown command: the server quotes its arguments, which may be a password or a record.
_QUOTED_ARGUMENTS = re.compile(r",? with args beginning with:.*", re.DOTALL)
# Refused before anything was sent: by our pool, or by a server that accepts no more clients.
_NO_CONNECTION = ("No connection available", "max number of clients reached")

# As redis-py writes it: the number of the system's error, or the errors of all addresses of a name.
_NOT_CONNECTED = re.compile(r"Error (?:(\d+)|Multiple exceptions: \[Errno (\d+)\].*) connecting to (\S+:\d+)\.")

# By the first byte of an answer that is not of Redis, as redis-py shows it.
_NOT_REDIS = {"H": "an HTTP server answers there, not Redis", "\\x00": "an nsqd answers there, not Redis"}

_REMEDY = {
    "redis-protocol": "look at host and port in redis.url",
    "redis-full": "Redis is at its maxmemory: raise it, or let deliveries free some; intake goes on by itself then",
    "redis-readonly": "this server is a replica: redis.url has to lead to the primary",
    "redis-misconf": "Redis cannot write its snapshot to disk: look into its log",
    "redis-auth": "look at the user and password in redis.url, and at the rights of that user",
    "redis-connections": "raise maxclients of Redis, or look for what holds its connections",
    "redis-slots": "a script touched a key that it had not declared, or of another slot: this is a bug of nsqdigest",
}


def translate(error: BaseException, script: Script | None = None) -> StoreError:
    """The `StoreError` for an error that a call to Redis raised or returned."""
    if isinstance(error, StoreError):
        return error
    text = _QUOTED_ARGUMENTS.sub("", str(error))
    text = script.locate(text) if script else text
    where = f"{script.name}: {text}" if script else text
    in_script = _NO_RIGHT_IN_SCRIPT.search(text) is not None
    if in_script or isinstance(error, redis_errors.AuthenticationError | redis_errors.NoPermissionError):
        applied = Applied.AMBIGUOUS if in_script else Applied.NO
        return StoreError("redis-auth", f"{where} ({_REMEDY['redis-auth']})", applied)
    if isinstance(error, redis_errors.BusyLoadingError):
        return StoreError("redis-loading", where, Applied.NO)
    if isinstance(error, redis_errors.MaxConnectionsError) or (
        isinstance(error, redis_errors.ConnectionError) and str(error).startswith(_NO_CONNECTION)
    ):
        return StoreError("redis-connections", f"{where} ({_REMEDY['redis-connections']})", Applied.NO)
    if isinstance(error, redis_errors.TimeoutError | asyncio.TimeoutError | TimeoutError):
        return StoreError("redis-timeout", where)
    if isinstance(error, redis_errors.ConnectionError | OSError):
        return StoreError("redis-connection", _not_connected(text) or where)
    if isinstance(error, redis_errors.ResponseError):
        return _translate_refusal(error, text, where)
    if isinstance(error, redis_errors.InvalidResponse):
        other = next((what for byte, what in _NOT_REDIS.items() if f'got "{byte}"' in text), "")
        return StoreError("redis-protocol", f"{other} ({_REMEDY['redis-protocol']})" if other else where)
    return StoreError("redis-unknown", f"{type(error).__name__}: {where}")


def translate_unsent(error: Exception) -> StoreError:
    """The same for an error that kept a call from being sent."""
    translated = translate(error)
    translated.applied = Applied.NO
    return translated


def _not_connected(text: str) -> str:
    """In the system's words; "" for other errors."""
    found = _NOT_CONNECTED.match(text)
    return f"cannot connect to {found[3]}: {os.strerror(int(found[1] or found[2]))}" if found else ""


def _translate_refusal(error: redis_errors.ResponseError, text: str, where: str) -> StoreError:
    code = getattr(error, "status_code", None) or _CODE_OF_CLASS.get(type(error)) or text.split(" ", 1)[0]
    reason = _NOT_APPLIED.get(code)
    if reason is None and (word := _WORD.search(text)):
        reason = _NOT_APPLIED[word.group(1)]
    if reason is not None:
        remedy = f" ({_REMEDY[reason]})" if reason in _REMEDY else ""
        return StoreError(reason, where + remedy, Applied.NO)
    if _OTHER_SLOT_IN_SCRIPT.search(text):
        return StoreError("redis-slots", f"{where} ({_REMEDY['redis-slots']})")
    if _KILLED.search(text):
        return StoreError("redis-killed", where, Applied.NO)  # one that had written cannot be killed
    return StoreError("redis-script" if _FAILED_IN_SCRIPT.search(text) else "redis-unknown", where)
