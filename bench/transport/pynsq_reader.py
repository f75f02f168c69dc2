"""pynsq's `Reader` with a handler that does nothing: pynsq finishes each message when it returns True."""

from __future__ import annotations

import argparse

import nsq


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nsqd", required=True)
    options.add_argument("--topic", required=True)
    options.add_argument("--channel", required=True)
    options.add_argument("--max-in-flight", type=int, required=True)
    given = options.parse_args()
    nsq.Reader(
        topic=given.topic,
        channel=given.channel,
        message_handler=lambda _message: True,
        nsqd_tcp_addresses=[given.nsqd],
        max_in_flight=given.max_in_flight,
    )
    nsq.run()


if __name__ == "__main__":
    main()
