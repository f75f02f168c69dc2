"""Requests of commands to a running daemon, over its admin address.

Invariants:
- A command proves that it has the token and never sends it (`proof`): another process may listen at the address.
- If a request was proved, only a proved answer counts as the daemon's.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from nsqdigest.admin import proof, unix_socket
from nsqdigest.base.errors import NsqdigestError, Unreachable
from nsqdigest.base.shown import printable
from nsqdigest.config import UnixSocket
from nsqdigest.config.rules import is_local

if TYPE_CHECKING:
    from nsqdigest.config import Address, Config, Secret

T = TypeVar("T", bound=msgspec.Struct)

_TIMEOUT_S = 10.0
_MOST_BYTES = 16 << 20
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def connection_to(listen: Address | UnixSocket, timeout_s: float) -> http.client.HTTPConnection:
    """To a daemon of this machine that listens there; it connects with the first request."""
    if isinstance(listen, UnixSocket):
        return unix_socket.Connection(listen.path, timeout_s)
    return http.client.HTTPConnection(_ANY_ADDRESS.get(listen.host, listen.host), listen.port, timeout=timeout_s)


def get(config: Config, path: str, shape: type[T], timeout_s: float = _TIMEOUT_S) -> T:
    """Return the daemon's answer. Raises Unreachable if none answers, or something else does."""
    admin, listen = config.admin, _listen(config)
    is_free = is_local(listen) and admin.read_token is None
    token = None if is_free else admin.read_token or admin.token  # it may be newer than that of the daemon
    answer = _exchange(config, _Request("GET", path, timeout_s=timeout_s), token)
    if answer.status != http.client.OK:
        raise _refusal(config, answer)
    try:
        return msgspec.json.decode(answer.body, type=shape)
    except msgspec.DecodeError as error:
        if "version" not in (_object(answer.body) or {}):
            raise _no_daemon(config, answer.status) from error
        raise Unreachable(
            f"the daemon at {listen} is of another version than this command, and its answer cannot be "
            f"read ({error}); use the command of its version"
        ) from error


def post(config: Config, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the daemon's answer. Raises with the daemon's own text if it refuses."""
    _listen(config)
    token = config.admin.token
    if token is None:
        raise NsqdigestError(
            f"{config.source}: admin.token is not set, so the daemon refuses this; "
            'write token = "env:NAME" under [admin], and reload or restart the daemon'
        )
    headers = {"content-type": "application/json"}
    answer = _exchange(config, _Request("POST", path, headers, json.dumps(body).encode()), token)
    told = _object(answer.body)
    if answer.status == http.client.OK and told is not None:
        return told
    raise _refusal(config, answer)


def _listen(config: Config) -> Address | UnixSocket:
    if config.admin.listen is None:
        raise Unreachable(
            f'{config.source}: admin.listen is "" (off), so no command can reach the daemon; '
            "write an address and restart it"
        )
    return config.admin.listen


class _Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    timeout_s: float = _TIMEOUT_S


class _Answer(NamedTuple):
    status: int
    body: bytes
    proof: str


def _exchange(config: Config, request: _Request, token: Secret | None) -> _Answer:
    """With a token the request is proved. Raises Unreachable if the answer to that is a success without a proof."""
    listen = _listen(config)
    connection = connection_to(listen, request.timeout_s)
    try:
        if token is None:
            return _answer(connection, request)
        asked = _answer(connection, _Request("GET", proof.NONCE_PATH))
        nonce = (_object(asked.body) or {}).get("nonce")
        if asked.status != http.client.OK or not proof.is_nonce(nonce):
            raise _no_nonce(config, asked)
        key, nonce = token.reveal().encode(), str(nonce)
        header = proof.authorization(key, nonce, request.method, request.path, request.body)
        answer = _answer(connection, request._replace(headers={**request.headers, "authorization": header}))
        proved = proof.Proved(key, nonce, proof.body_hash(request.body))
        if proved.is_answer(answer.status, answer.body, answer.proof):
            return answer
        if answer.status == http.client.OK:
            raise Unreachable(f"{_unproved(config)} answers; see what listens there. It did not get the token")
        raise _refusal(config, answer, _unproved(config))
    except (TimeoutError, BlockingIOError) as error:
        raise Unreachable(
            f"no answer from {listen} (admin.listen of {config.source}) within {request.timeout_s:g} s: perhaps a "
            "daemon that hangs; see what `nsqdigest doctor` says of it"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise Unreachable(
            f"no daemon answers at {listen} (admin.listen of {config.source}): {reason}; is it running?"
        ) from error
    finally:
        connection.close()


def _answer(connection: http.client.HTTPConnection, request: _Request) -> _Answer:
    connection.request(request.method, request.path, request.body or None, request.headers)
    response = connection.getresponse()
    return _Answer(response.status, response.read(_MOST_BYTES), response.getheader(proof.HEADER, ""))


def _refusal(config: Config, answer: _Answer, who: str = "") -> NsqdigestError:
    told = _object(answer.body)
    if told is None or "error" not in told:
        return _no_daemon(config, answer.status)
    who = who or f"the daemon at {config.admin.listen}"
    return NsqdigestError(f"{who} refuses: {printable(str(told['error']))}")


def _unproved(config: Config) -> str:
    return (
        f"something at {config.admin.listen} (admin.listen of {config.source}), which does not prove that it has the "
        "token of this file,"
    )


def _no_nonce(config: Config, answer: _Answer) -> NsqdigestError:
    if answer.status == http.client.NOT_FOUND and "error" in (_object(answer.body) or {}):
        return Unreachable(
            f"the daemon at {config.admin.listen} is of an older version than this command, which sends no token; "
            "restart the daemon, or use the command of its version"
        )
    return _refusal(config, answer)


def _no_daemon(config: Config, status: int) -> Unreachable:
    return Unreachable(
        f"something answers at {config.admin.listen} (admin.listen of {config.source}) with {status}, but it is no "
        "nsqdigest; write the address of the daemon"
    )


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        decoded = json.loads(body)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None
