"""What commands ask of a running daemon, over its admin address."""

from __future__ import annotations

import http.client
import json
from typing import Any

from nsqdigest.base.errors import NsqdigestError, Unreachable
from nsqdigest.config import Address, Config

_TIMEOUT_S = 10.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def own_host(listen: Address) -> str:
    """Where a daemon of this machine that listens so can be asked."""
    return _ANY_ADDRESS.get(listen.host, listen.host)


def post(config: Config, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The daemon's answer. Raises with the daemon's own words where it refuses."""
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
        answer = connection.getresponse()
        status, read = answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(
            f"no daemon answers at {listen} (admin.listen of {config.source}): {error}; is it running?"
        ) from error
    finally:
        connection.close()
    told = _object(read)
    if status == http.client.OK and told is not None:
        return told
    if told is None or "error" not in told:
        raise Unreachable(
            f"something answers at {listen} (admin.listen of {config.source}) with {status}, but it is no nsqdigest; "
            "write the address of the daemon"
        )
    raise NsqdigestError(f"the daemon at {listen} refuses: {told['error']}")


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        decoded = json.loads(body)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None
