"""Translates errors of Redis and of redis-py to `StoreError` (pure but for the classes of the driver).

The code that Redis puts first decides. An unknown error counts as ambiguous: the call may have been applied.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from typing import NamedTuple

from redis import exceptions as redis_errors

from nsqdigest.base import tls
from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.base.tls import TlsFault
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

# The errors of all addresses of a name, as asyncio joins them.
_ERRNO = re.compile(r"\[Errno (\d+)\]")

# By the first byte of an answer that is not of Redis, as redis-py shows it.
_NOT_REDIS = {"H": "an HTTP server answers there, not Redis", "\\x00": "an nsqd answers there, not Redis"}

_REMEDY = {
    "redis-protocol": "look at host and port in redis.url",
    "redis-full": "Redis is at its maxmemory: raise it, or let deliveries free some; intake goes on by itself then",
    "redis-readonly": "this server is a replica: redis.url has to lead to the primary",
    "redis-misconf": "Redis cannot write its snapshot to disk: look into its log",
    "redis-database": "end redis.url with a lower number: Redis has databases 0 to 15, unless its file says otherwise",
    "redis-connections": "raise maxclients of Redis, or look for what holds its connections",
    "redis-slots": "a script touched a key that it had not declared, or of another slot: this is a bug of nsqdigest",
}
_PASSWORD_MISSING = "write the password into redis.url: redis://:PASSWORD@HOST, or redis://USER:PASSWORD@HOST"
_PASSWORD_WRONG = "look at the user and password in redis.url"
_NO_PASSWORD = "leave the password out of redis.url, or set one in Redis (requirepass)"
_NO_RIGHT = "give that user the rights that docs/redis.md lists, or correct the user in redis.url"
# As redis-py words them: it cuts off the code that Redis puts first.
_LOGIN_MISSING = re.compile(r"NOAUTH|Authentication required")
_LOGIN_UNKNOWN = re.compile(r"without any password configured|no password is set")
_NO_DATABASE = re.compile(r"DB index is out of range|invalid DB index")

_REMEDY_OF_TLS = {
    TlsFault.OTHER_NAME: "write a name in redis.url that the certificate contains, or give Redis one for this name "
    "(subjectAltName)",
    TlsFault.EXPIRED: "renew the one of Redis' tls-cert-file, or set this machine's clock",
    TlsFault.NOT_YET: "set the clocks of both machines, or wait",
    TlsFault.SELF_SIGNED: "name that very certificate in redis.ca_file, if it is the one of Redis",
    TlsFault.NO_AUTHORITY: "name that authority in redis.ca_file",
    TlsFault.UNFIT: "give Redis another (tls-cert-file), or see redis.ca_file",
    TlsFault.OURS_EXPIRED: "renew the one of redis.cert_file",
    TlsFault.OURS_MISSING: "write cert_file and key_file under [redis], or set tls-auth-clients no in Redis",
    TlsFault.OURS_REFUSED: "name one in redis.cert_file that an authority of Redis' tls-ca-cert-file has signed",
    TlsFault.VERSION: "let Redis speak TLS 1.2 or 1.3 (tls-protocols)",
    TlsFault.NO_TLS: "write redis:// for rediss:// in redis.url, or give that port TLS (tls-port)",
    TlsFault.OTHER: "read the log of Redis for more",
}


class Place(NamedTuple):
    """A server that a connection is made to."""

    at: str
    """HOST:PORT, or the path of a socket."""
    host: str
    is_encrypted: bool
    has_certificate: bool
    """Whether this side has one to show."""


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
        return StoreError("redis-auth", where, applied, _remedy_of_auth(error, text))
    if isinstance(error, redis_errors.BusyLoadingError):
        return StoreError("redis-loading", where, Applied.NO)
    if isinstance(error, redis_errors.MaxConnectionsError) or (
        isinstance(error, redis_errors.ConnectionError) and str(error).startswith(_NO_CONNECTION)
    ):
        return StoreError("redis-connections", where, Applied.NO, _REMEDY["redis-connections"])
    if isinstance(error, redis_errors.TimeoutError | asyncio.TimeoutError | TimeoutError):
        return StoreError("redis-timeout", where)
    if isinstance(error, redis_errors.ConnectionError | OSError):
        return StoreError("redis-connection", where)
    if isinstance(error, redis_errors.ResponseError):
        return _translate_refusal(error, text, where)
    if isinstance(error, redis_errors.InvalidResponse):
        other = next((what for byte, what in _NOT_REDIS.items() if f'got "{byte}"' in text), "")
        return StoreError("redis-protocol", other or where, remedy=_REMEDY["redis-protocol"])
    return StoreError("redis-unknown", f"{type(error).__name__}: {where}")


def _remedy_of_auth(error: BaseException, text: str) -> str:
    if _LOGIN_MISSING.search(text):
        return _PASSWORD_MISSING
    if _LOGIN_UNKNOWN.search(text):
        return _NO_PASSWORD
    return _PASSWORD_WRONG if isinstance(error, redis_errors.AuthenticationError) else _NO_RIGHT


def translate_unconnected(error: Exception, place: Place, within_s: float) -> StoreError:
    """The `StoreError` for an error that kept a connection from being made: nothing was sent."""
    if isinstance(error, StoreError):
        return error
    if (of_tls := tls.error_within(error)) is not None:
        fault, cause = tls.failure(of_tls, place.host, "Redis", has_certificate=place.has_certificate)
        detail = f"cannot connect to {place.at}: TLS failed: {cause}"
        return StoreError("redis-tls", detail, Applied.NO, _REMEDY_OF_TLS[fault])
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        # A Redis without TLS waits for the end of a line.
        remedy = f"see that it runs; if it has no TLS, {_REMEDY_OF_TLS[TlsFault.NO_TLS]}" if place.is_encrypted else ""
        what = "no TLS handshake with" if place.is_encrypted else "no connection to"
        return StoreError("redis-timeout", f"{what} {place.at} within {within_s:g} s", Applied.NO, remedy)
    translated = translate(error)
    if translated.reason == "redis-connection":
        return _of_no_connection(error, place, str(error))
    return StoreError(translated.reason, translated.what.partition(": ")[2], Applied.NO, translated.remedy)


def _of_no_connection(error: BaseException, place: Place, text: str) -> StoreError:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    numbers = dict.fromkeys(_ERRNO.findall(str(cause)))  # one of each address of a name
    if isinstance(cause, socket.gaierror):
        why = cause.strerror or "the name cannot be looked up"
    elif isinstance(cause, OSError) and cause.errno is not None:
        why = os.strerror(cause.errno)
    else:
        why = ", ".join(os.strerror(int(number)) for number in numbers) or text
    is_closed = isinstance(cause, ConnectionResetError) or cause is None
    remedy = _remedy_of_closed(place) if is_closed else ""
    return StoreError("redis-connection", f"cannot connect to {place.at}: {why}", Applied.NO, remedy)


def _remedy_of_closed(place: Place) -> str:
    """A server with TLS closes a connection that begins without, and one whose certificate it refuses. Its reason can
    get lost: what a closed connection still had to deliver is thrown away."""
    if not place.is_encrypted:
        return "see that it runs; if it has TLS, write rediss:// for redis:// in redis.url"
    fault = TlsFault.OURS_REFUSED if place.has_certificate else TlsFault.OURS_MISSING
    asks = "if it refuses the client certificate" if place.has_certificate else "if it asks for a client certificate"
    return f"see that it runs; {asks}, {_REMEDY_OF_TLS[fault]}"


def _translate_refusal(error: redis_errors.ResponseError, text: str, where: str) -> StoreError:
    code = getattr(error, "status_code", None) or _CODE_OF_CLASS.get(type(error)) or text.split(" ", 1)[0]
    reason = _NOT_APPLIED.get(code)
    if reason is None and (word := _WORD.search(text)):
        reason = _NOT_APPLIED[word.group(1)]
    if reason == "redis-auth":
        return StoreError(reason, where, Applied.NO, _remedy_of_auth(error, text))
    if reason is not None:
        return StoreError(reason, where, Applied.NO, _REMEDY.get(reason, ""))
    if _NO_DATABASE.search(text):
        return StoreError("redis-database", where, Applied.NO, _REMEDY["redis-database"])
    if _OTHER_SLOT_IN_SCRIPT.search(text):
        return StoreError("redis-slots", where, remedy=_REMEDY["redis-slots"])
    if _KILLED.search(text):
        return StoreError("redis-killed", where, Applied.NO)  # one that had written cannot be killed
    return StoreError("redis-script" if _FAILED_IN_SCRIPT.search(text) else "redis-unknown", where)
