"""Configuration files that several tests begin with."""

from __future__ import annotations

SMALLEST = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:4150"]

[sinks.out]
type = "log"

[[routes]]
topic = "events"
timeline = "{user}"
sink = "out"
"""
