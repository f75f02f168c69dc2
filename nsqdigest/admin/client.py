"""Requests of commands to a running daemon, over its admin address."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from nsqdigest.base.errors import NsqdigestError, Unreachable
from nsqdigest.base.shown import printable
from nsqdigest.config.rules import is_loopback

if TYPE_CHECKING:
    from nsqdigest.config import Address, Config, Secret

T = TypeVar("T", bound=msgspec.Struct)

_TIMEOUT_S = 10.0
_MOST_BYTES = 16 << 20
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def own_host(listen: Address) -> str:
    """The host to connect to on this machine, for a daemon that listens there."""
    return _ANY_ADDRESS.get(listen.host, listen.host)


def get(config: Config, path: str, shape: type[T], timeout_s: float = _TIMEOUT_S) -> T:
    """What the daemon answers. Raises Unreachable where none does, or something else answers there."""
    token = config.admin.token
    is_free = config.admin.listen is not None and is_loopback(config.admin.listen.host)
    headers = {} if token is None or is_free else _authorization(token)  # it may be newer than that of the daemon
    status, body = _exchange(config, _Request("GET", path, headers, timeout_s=timeout_s))
    if status != http.client.OK:
        raise _refusal(config, status, body)
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.DecodeError as error:
        if "version" not in (_object(body) or {}):
            raise _no_daemon(config, status) from error
        raise Unreachable(
            f"the daemon at {config.admin.listen} is of another version than this command, and its answer cannot be "
            f"read ({error}); use the command of its version"
        ) from error


def post(config: Config, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the daemon's answer. Raises with the daemon's own text where it refuses."""
    _listen(config)
    token = config.admin.token
    if token is None:
        raise NsqdigestError(
            f"{config.source}: admin.token is not set, so the daemon refuses this; "
            'write token = "env:NAME" under [admin], and reload or restart the daemon'
        )
    headers = {"content-type": "application/json", **_authorization(token)}
    status, body_read = _exchange(config, _Request("POST", path, headers, json.dumps(body)))
    answer = _object(body_read)
    if status == http.client.OK and answer is not None:
        return answer
    raise _refusal(config, status, body_read)


def _authorization(token: Secret) -> dict[str, str]:
    return {"authorization": f"Bearer {token.reveal()}"}


def _listen(config: Config) -> Address:
    if config.admin.listen is None:
        raise Unreachable(
            f'{config.source}: admin.listen is "" (off), so no command can reach the daemon; '
            "write an address and restart it"
        )
    return config.admin.listen


class _Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: str | None = None
    timeout_s: float = _TIMEOUT_S


def _exchange(config: Config, request: _Request) -> tuple[int, bytes]:
    listen = _listen(config)
    connection = http.client.HTTPConnection(own_host(listen), listen.port, timeout=request.timeout_s)
    try:
        connection.request(request.method, request.path, request.body, request.headers)
        response = connection.getresponse()
        return response.status, response.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise Unreachable(
            f"no daemon answers at {listen} (admin.listen of {config.source}): {reason}; is it running?"
        ) from error
    finally:
        connection.close()


def _refusal(config: Config, status: int, body: bytes) -> NsqdigestError:
    answer = _object(body)
    if answer is None or "error" not in answer:
        return _no_daemon(config, status)
    return NsqdigestError(f"the daemon at {config.admin.listen} refuses: {printable(str(answer['error']))}")


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
