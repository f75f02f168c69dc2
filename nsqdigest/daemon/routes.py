"""The routes of one topic, as its intake gets them: the daemon and `nsqdigest try` route by the same ones (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsqdigest.intake.routing import IntakeRoute
from nsqdigest.store.schedule import Plan

if TYPE_CHECKING:
    from nsqdigest.config import Config

Plans = Mapping[str, Plan]
"""By the name of the policy."""


def plans_of(config: Config) -> Plans:
    return {name: Plan(policy) for name, policy in config.policies.items()}


def intake_routes(config: Config, topic: str, plans: Plans) -> list[IntakeRoute]:
    """With their numbers in the file."""
    return [
        IntakeRoute(number, route, plans[route.policy])
        for number, route in enumerate(config.routes)
        if route.topic == topic
    ]
