"""Parts of a configuration for tests that build a part of the daemon by hand: `replace(POLICY, capacity=2)`."""

from __future__ import annotations

from nsqdigest.config import Nsq, Policy, Route
from nsqdigest.delivery.sinks.log import LogSinkSettings
from nsqdigest.delivery.sinks.webhook import WebhookSinkSettings

NSQ = Nsq(
    nsqd_tcp_addresses=(), lookupd_http_addresses=(), lookupd_poll_interval_ms=60_000, lookupd_poll_jitter=0,
    allow_nsqds=(), channel="ch", max_in_flight=2500, batch_size=500, heartbeat_interval_ms=30_000, msg_timeout_ms=0,
    compression="none", auth_secret=None, tls=None, requeue_delay_ms=1000, dead_letter_topic="dead",
    drain_timeout_ms=1000,
)  # fmt: skip
POLICY = Policy(
    name="default", immediate=True, minimum_delay_ms=60_000, increment_delay_ms=0, maximum_delay_ms=60_000,
    growth="none", growth_steps=0, intervals_ms=(), capacity=100, on_retry="frozen", dedupe_window_ms=60_000,
)  # fmt: skip
ROUTE = Route(
    name="r", topic="t", match=(), timeline="{x}", key="", timestamp="", group="", urgent=(), cancel=(),
    on_cancel="tell", drop=(), max_event_age_ms=0, policy="default", sink="out",
)  # fmt: skip
SINK = LogSinkSettings(
    name="out", type="log", concurrency=8, timeout_ms=5000, max_attempts=0, max_age_ms=0, retry_base_ms=1000,
    retry_cap_ms=1000, retry_after_max_ms=1000, max_body_bytes=65536, path="-",
)  # fmt: skip
HOOK = WebhookSinkSettings(
    name="out", type="webhook", concurrency=8, timeout_ms=5000, max_attempts=0, max_age_ms=0, retry_base_ms=1000,
    retry_cap_ms=1000, retry_after_max_ms=1000, max_body_bytes=65536, url="http://127.0.0.1:1/hook", allow_http=True,
    secrets=(), headers={},
)  # fmt: skip
