"""Requests of commands to a running daemon, over its admin address."""

from __future__ import annotations

import http.client
import json
from typing import Any

from nsqdigest.base.errors import NsqdigestError, Unreachable
from nsqdigest.config import Address, Config

_TIMEOUT_S = 10.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def own_host(listen: Address) -> str:
    """The host to connect to on this machine, for a daemon that listens there."""
    return _ANY_ADDRESS.get(listen.host, listen.host)


def post(config: Config, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the daemon's answer. Raises with the daemon's own text where it refuses."""
    listen, token = config.admin.listen, config.admin.token
    if listen is None:
        raise Unreachable(
            f'{config.source}: admin.listen is "" (off), so no command can reach the daemon; '
            "write an address and restart it"
        )
    if token is None:
        raise NsqdigestError(
            f"{config.source}: admin.token is not set, so the daemon refuses this; "
            'write token = "env:NAME" under [admin] and restart the daemon'
        )
    connection = http.client.HTTPConnection(own_host(listen), listen.port, timeout=_TIMEOUT_S)
    try:
        connection.request(
            "POST",
            path,
            json.dumps(body),
            {"content-type": "application/json", "authorization": f"Bearer {token.reveal()}"},
        )
        response = connection.getresponse()
        status, body_read = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise Unreachable(
            f"no daemon answers at {listen} (admin.listen of {config.source}): {reason}; is it running?"
        ) from error
    finally:
        connection.close()
    answer = _object(body_read)
    if status == http.client.OK and answer is not None:
        return answer
    if answer is None or "error" not in answer:
        raise Unreachable(
            f"something answers at {listen} (admin.listen of {config.source}) with {status}, but it is no nsqdigest; "
            "write the address of the daemon"
        )
    raise NsqdigestError(f"the daemon at {listen} refuses: {answer['error']}")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        decoded = json.loads(body)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None
