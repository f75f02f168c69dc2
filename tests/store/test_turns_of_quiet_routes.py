"""Two daemons of the same file share upkeep turns, whatever the policy."""

from nsqdigest.base.quiet_hours import QuietHours, Window
from nsqdigest.base.local_time import zone_named
from nsqdigest.store.route import StoreRoute
from dataclasses import replace
from nsqdigest.store.store import Store
from nsqdigest.store.schedule import Plan
from support.ports import HOST
from support.settings import POLICY
from support.stores import redis_settings
import pytest

pytestmark = pytest.mark.integration


async def test_one_of_two_daemons_with_quiet_hours_has_the_turn(redis_server) -> None:
    got = []
    for _ in range(2):
        plan = Plan(replace(POLICY, quiet=(Window(22 * 60, 7 * 60),), zone="UTC"))
        store = Store(
            redis_settings(f"redis://{HOST}:{redis_server.port}/0"),
            [StoreRoute("r", 100, 0, 60_000, quiet=plan.quiet)],
            1000,
        )
        await store.start()
        got.append(await store.upkeep.has_turn(0, "upkeep", ["r"], 15_000))
        await store.close(5)
    assert got == [True, False]
