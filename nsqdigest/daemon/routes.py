"""The routes of one topic, as its intake gets them: the daemon and `nsqdigest try` route by the same ones (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsqdigest.delivery.targets import NoTarget, Source
from nsqdigest.intake.routing import IntakeRoute, WhyNoTarget
from nsqdigest.store.schedule import Plan

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.delivery.sinks.kind import SinkKinds
    from nsqdigest.delivery.targets import Aim

Plans = Mapping[str, Plan]
"""By the name of the policy."""


def plans_of(config: Config) -> Plans:
    return {name: Plan(policy) for name, policy in config.policies.items()}


Aims = Mapping[str, "Aim"]
"""By the name of the sink, of those whose digests do not all go to one place."""


def aims_of(config: Config, kinds: SinkKinds) -> Aims:
    aims = {name: kinds[settings.type].aim(settings) for name, settings in config.sinks.items()}
    return {name: aim for name, aim in aims.items() if aim is not None}


def intake_routes(config: Config, topic: str, plans: Plans, aims: Aims) -> list[IntakeRoute]:
    """With their numbers in the file."""
    return [
        IntakeRoute(number, route, plans[route.policy], _why_no_target(route.name, aims.get(route.sink)))
        for number, route in enumerate(config.routes)
        if route.topic == topic
    ]


def _why_no_target(route: str, aim: Aim | None) -> WhyNoTarget | None:
    if aim is None:
        return None

    def why_no_target(timeline: str, value: bytes) -> str:
        try:
            aim.of(Source(route, timeline, value))
        except NoTarget as why:
            return str(why)
        return ""

    return why_no_target
