"""The bounds of delivery, as docs/how-it-works.md and the module heads name them: who changes one changes a promise."""

from __future__ import annotations

import pytest

from nsqdigest.delivery import conclusions, finisher, opener, outlet, verdicts
from nsqdigest.store import digests

pytestmark = pytest.mark.unit


def test_one_call_opens_a_hundred_digests_at_most_and_ends_two_hundred() -> None:
    assert (opener.MOST_PER_CALL, finisher.MOST_PER_CALL) == (100, 200)


def test_what_is_read_together_and_what_waits_for_a_sink_is_bounded_in_bytes() -> None:
    assert (opener.READ_BYTES, outlet.READY_BYTES) == (1 << 20, 8 << 20)
    assert opener._FIRST_AVERAGE_BYTES == 2048  # of a record, while nothing is known of its route


def test_a_digest_of_more_records_is_read_page_by_page() -> None:
    assert digests.READ_WHOLE_RECORDS == 64


def test_a_tenth_of_a_seconds_work_lies_ready_and_no_more_than_800_digests() -> None:
    assert (outlet.AHEAD_S, outlet.MOST_AHEAD) == (0.1, 800)


def test_redis_is_asked_again_after_a_tenth_of_a_second_and_never_later_than_two() -> None:
    assert verdicts.ask_redis_again_s(1, min) == verdicts.ask_redis_again_s(9, min) == 0.1
    assert [verdicts.ask_redis_again_s(failures, max) for failures in (1, 2, 3, 99)] == [0.3, 0.9, 2.0, 2.0]


def test_a_send_is_ended_five_seconds_after_its_time_out_by_a_look_each_second() -> None:
    assert (outlet._FENCE_GRACE_S, outlet._WATCH_S) == (5.0, 1.0)


def test_the_log_names_what_went_out_every_ten_seconds() -> None:
    assert conclusions.SUMMARY_EVERY_S == 10.0
