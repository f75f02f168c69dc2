"""Of which modules mutants are generated, and which tests should catch them.

A module's tests are those that know it best and are done in seconds: its unit tests, and those that put it before a
real Redis or nsqd in this process. What needs a daemon of its own, a minute or luck does not belong here.
"""

from __future__ import annotations

ROUTING = ("tests/intake/test_routing.py", "tests/intake/test_routing_properties.py")
TESTS: dict[str, tuple[str, ...]] = {
    "backoff": (
        "tests/base/test_backoff.py",
        "tests/base/test_backoff_table.py",
        "tests/base/test_curve.py",
        "tests/lineage/test_decorrelated_jitter.py",
        "tests/base/test_backoff_machine.py",
        "tests/intake/test_fleet_machine.py",
    ),
    "intake.rdy": (
        "tests/intake/test_rdy.py",
        "tests/intake/test_rdy_machine.py",
        "tests/intake/test_fleet_machine.py",
    ),
    "nsq.window": ("tests/nsq/test_window.py",),
    "delivery.verdicts": ("tests/delivery/test_verdicts.py", "tests/delivery/test_bounds.py"),
    "delivery.digest": ("tests/delivery/test_digest.py",),
    "delivery.grouped": ("tests/delivery/test_grouped.py", "tests/delivery/test_digest.py"),
    "delivery.bodies.message": ("tests/delivery/test_messages.py",),
    "delivery.bodies.slack": ("tests/delivery/test_messages.py",),
    "delivery.bodies.teams": ("tests/delivery/test_messages.py",),
    "delivery.bodies.template": ("tests/delivery/test_template_body.py",),
    "delivery.bodies.filters": ("tests/delivery/test_template_body.py",),
    "delivery.bodies.work": ("tests/delivery/test_template_body.py",),
    "store.listing": ("tests/store/test_listing.py",),
    "store.inspection": ("tests/store/test_inspection.py",),
    "store.dead_selection": ("tests/store/test_dead_work.py",),
    "store.dead_work": ("tests/store/test_dead_work.py",),
    "intake.letter_reading": ("tests/intake/test_letter_reading.py",),
    "intake.routing": ROUTING,
    "intake.shapes": ROUTING,
    "intake.names": ROUTING,
    "intake.timestamps": ROUTING,
    "trial.events": ("tests/trial/test_events.py", "tests/trial/test_report_properties.py"),
    "trial.hints": ("tests/trial/test_hints.py", "tests/trial/test_wrong_events.py", "tests/trial/test_trial.py"),
    "trial.trial": (
        "tests/trial/test_trial.py",
        "tests/trial/test_wrong_events.py",
        "tests/trial/test_report_properties.py",
    ),
    "intake.decoding": ("tests/intake/test_decoding.py", "tests/intake/test_batches.py"),
    "store.servers.client": ("tests/store/test_client.py",),
    "store.servers.base": ("tests/store/test_sentinel_discovery.py", "tests/store/test_cluster_discovery.py"),
    "store.servers.sentinel": ("tests/store/test_sentinel_discovery.py",),
    "store.servers.cluster": ("tests/store/test_cluster_discovery.py",),
    "intake.writer": ("tests/intake/test_writer.py",),
    "intake.batches": ("tests/intake/test_batches.py",),
    "intake.batch": ("tests/intake/test_batch.py", "tests/intake/test_batches.py"),
    "intake.oversize": ("tests/intake/test_oversize.py",),
    "intake.letter_queue": ("tests/intake/test_letter_queue.py",),
    "intake.late_answers": ("tests/intake/test_late_answers.py",),
    "delivery.timer": ("tests/delivery/test_timer.py",),
    "delivery.claims": (
        "tests/delivery/test_claims_told.py",
        "tests/delivery/test_timer.py",
        "tests/delivery/test_claims.py",
    ),
    "delivery.opener": (
        "tests/delivery/test_bounds.py",
        "tests/delivery/test_opener.py",
        "tests/delivery/test_conclusions.py",
    ),
    "delivery.outlet": (
        "tests/delivery/test_bounds.py",
        "tests/delivery/test_outlet.py",
        "tests/delivery/test_conclusions.py",
    ),
    "delivery.conclusions": ("tests/delivery/test_conclusions.py", "tests/delivery/test_outlet.py"),
    "delivery.finisher": ("tests/delivery/test_finisher.py",),
    "store.digests": (
        "tests/delivery/test_digests_in_redis.py",
        "tests/delivery/test_bad_neighbours.py",
        "tests/delivery/test_delivery.py",
        "tests/store/test_timelines.py",
    ),
}
