"""One consumer of one cell, a process of its own: takes so many messages, or gives up, and says what it got.

`python -m bench.transport_matrix.consumer CLIENT JSON`, where CLIENT is nsqdigest or pynsq. One line of JSON comes out:
how many came, a digest over all bodies, and the last complaint.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import ssl
import sys
from typing import Any

from nsqdigest.base.errors import NsqdigestError, NsqdRefused
from nsqdigest.config import Address, Secret, Tls, tls_files
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.frames import Message

CHANNEL = "ch"
MAX_IN_FLIGHT = 100


def digest_of(bodies: list[bytes]) -> str:
    """Of all of them, in whatever order they came."""
    each = sorted(hashlib.sha256(body).digest() for body in bodies)
    return hashlib.sha256(b"".join(each)).hexdigest()


class Ours:
    def __init__(self, cell: dict[str, Any]) -> None:
        self._cell = cell
        self._all_came = asyncio.Event()
        self.bodies: list[bytes] = []
        self.complaint = ""

    async def run(self) -> None:
        cell = self._cell
        client = None
        if cell["tls"] is not None:
            client = tls_files.client(Tls(**cell["tls"], insecure=False))
            if cell["newest"] == "TLSv1.2":
                client.context.maximum_version = ssl.TLSVersion.TLSv1_2
        options = ConnectionOptions(
            heartbeat_interval_ms=30_000,
            tls=client,
            compression=cell["compression"],
            auth_secret=Secret(cell["secret"]) if cell["secret"] else None,
        )
        connection = NsqConnection(Address(cell["host"], cell["port"]), options, self)
        try:
            await connection.open()
            await connection.subscribe(cell["topic"], CHANNEL)
            connection.set_rdy(MAX_IN_FLIGHT)
            async with asyncio.timeout(cell["patience_s"]):
                await self._all_came.wait()
        except NsqdigestError as error:
            self.complaint = str(error)
        except TimeoutError:
            self.complaint = self.complaint or "nothing more came"
        connection.close("done")

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        self.bodies += [message.body for message in messages]
        connection.fin(messages)
        if len(self.bodies) >= self._cell["messages"]:
            self._all_came.set()

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        self.complaint = str(error)

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        self.complaint = self.complaint or str(reason)


class Pynsq:
    """As its documentation says; TLS 1.3 needs an `ssl_version` in the options, since its own default pins 1.2."""

    def __init__(self, cell: dict[str, Any]) -> None:
        self._cell = cell
        self.bodies: list[bytes] = []
        self.complaint = ""

    async def run(self) -> None:
        import nsq  # noqa: PLC0415 - it sets up signal handlers of its own

        logging.getLogger("nsq").addHandler(_Keeping(self))
        cell = self._cell
        all_came = asyncio.Event()

        def handle(message: Any) -> bool:
            self.bodies.append(bytes(message.body))
            if len(self.bodies) >= cell["messages"]:
                all_came.set()
            return True

        options: dict[str, Any] = {"auth_secret": cell["secret"] or None, "max_in_flight": MAX_IN_FLIGHT}
        if cell["compression"] != "none":
            options[cell["compression"]] = True
        if cell["tls"] is not None:
            names = {"ca_file": "ca_certs", "cert_file": "certfile", "key_file": "keyfile"}
            options["tls_v1"] = True
            options["tls_options"] = {names[key]: path for key, path in cell["tls"].items() if path}
            if cell["newest"] == "TLSv1.3":
                options["tls_options"]["ssl_version"] = ssl.PROTOCOL_TLS_CLIENT
        nsq.Reader(
            topic=cell["topic"],
            channel=CHANNEL,
            message_handler=handle,
            nsqd_tcp_addresses=[f"{cell['host']}:{cell['port']}"],
            **options,
        )
        try:
            async with asyncio.timeout(cell["patience_s"]):
                await all_came.wait()
        except TimeoutError:
            self.complaint = self.complaint or "nothing more came"


class _Keeping(logging.Handler):
    """The first complaint is the cause, the others follow from it."""

    def __init__(self, client: Pynsq) -> None:
        super().__init__(logging.WARNING)
        self._client = client

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if record.exc_info is not None and record.exc_info[1] is not None:
            said = f"{said}: {record.exc_info[1]!r}"
        self._client.complaint = self._client.complaint or said


def main() -> None:
    kind, cell = sys.argv[1], json.loads(sys.argv[2])
    client: Ours | Pynsq = Ours(cell) if kind == "nsqdigest" else Pynsq(cell)
    asyncio.run(client.run())
    said = {"received": len(client.bodies), "digest": digest_of(client.bodies), "complaint": client.complaint}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
