"""A controller's decisions in the log and in the metrics, under the same names, for a topic or a sink.

A log event ends in the state: `consumer.topic.backoff`, `scheduler.sink.paused`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from nsqdigest.backoff import Controller, Reason, State

if TYPE_CHECKING:
    from nsqdigest.base.log import Log
    from nsqdigest.base.metrics import Metrics

About = Literal["consumer.topic", "scheduler.sink"]
_PREFIX: dict[About, str] = {"consumer.topic": "backoff", "scheduler.sink": "sink_backoff"}


def set_gauges(metrics: Metrics, about: About, controller: Controller, **of: str) -> None:
    """The present state, of the topic or sink that `of` names."""
    decision, prefix = controller.decision, _PREFIX[about]
    metrics.set(f"{prefix}_level", decision.level, **of)
    metrics.set(f"{prefix}_results_ignored_total", controller.ignored, **of)
    for state in State:
        metrics.set(f"{prefix}_state", state is decision.state, **of, state=state)


def report_decision(log: Log, metrics: Metrics, about: About, controller: Controller, **of: str) -> None:
    """To be called once for each decision."""
    decision, prefix = controller.decision, _PREFIX[about]
    metrics.add(f"{prefix}_decisions_total", 1, **of, state=decision.state, reason=decision.reason)
    # A quiet topic or sink lets one probe after the other expire: that is no news.
    write = log.debug if decision.reason is Reason.PROBE_LOST else log.info
    if decision.state is State.BACKOFF and decision.reason is Reason.FAILED:
        write = log.warning
    fields: dict[str, Any] = {
        **of,
        "backoff_level": decision.level,
        "limit": decision.limit,
        "reason": decision.reason,
        "wait_s": None if decision.wake_at_s is None else round(decision.wake_at_s - time.monotonic(), 3),
    }
    write(f"{about}.{decision.state}", **fields)
