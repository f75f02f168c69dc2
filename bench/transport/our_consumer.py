"""The bare NsqConnection: each read's messages are finished with one write, and nothing else is done."""

from __future__ import annotations

import argparse
import asyncio
import signal

from nsqdigest.base.errors import NsqdigestError, NsqdRefused
from nsqdigest.config import Address, Tls, tls_files
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.frames import Message


class Finisher:
    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        connection.fin(messages)

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        raise error

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        print(f"the connection ended: {reason}", flush=True)


async def consume(given: argparse.Namespace) -> None:
    host, _, port = given.nsqd.rpartition(":")
    options = ConnectionOptions(
        heartbeat_interval_ms=30_000,
        tls=tls_files.client(Tls(ca_file=given.ca_file, cert_file="", key_file="", insecure=False))
        if given.ca_file
        else None,
        compression=given.compression,
    )
    connection = NsqConnection(Address(host, int(port)), options, Finisher())
    negotiated = await connection.open()
    assert negotiated.compression == given.compression
    assert bool(connection.tls_version) == bool(given.ca_file)
    await connection.subscribe(given.topic, given.channel)
    connection.set_rdy(given.max_in_flight)
    told_to_end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_end.set)
    await told_to_end.wait()
    connection.close("told to end")
    await connection.hang_up()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nsqd", required=True)
    options.add_argument("--topic", required=True)
    options.add_argument("--channel", required=True)
    options.add_argument("--max-in-flight", type=int, required=True)
    options.add_argument("--ca-file", default="", help="given: TLS")
    options.add_argument("--compression", default="none")
    asyncio.run(consume(options.parse_args()))


if __name__ == "__main__":
    main()
