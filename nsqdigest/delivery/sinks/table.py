"""The kinds of sink of this version. A new one is its own file and one line here."""

from __future__ import annotations

from typing import Any

from nsqdigest.delivery.sinks import email, log, nsq, webhook
from nsqdigest.delivery.sinks.kind import SinkKind, SinkKinds

_TABLE: tuple[SinkKind[Any], ...] = (
    webhook.KIND,
    email.KIND,
    nsq.KIND,
    log.KIND,
)
KINDS: SinkKinds = {kind.name: kind for kind in _TABLE}
