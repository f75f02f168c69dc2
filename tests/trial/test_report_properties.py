"""Whatever the events are, the report of them can be shown, and a script can read it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.config import parse_text
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.trial import report
from nsqdigest.trial.events import Event, split
from nsqdigest.trial.trial import Result, Trial
from support.events import NOW_MS, bodies, likely
from support.files import SMALLEST

pytestmark = pytest.mark.property

CONFIG = SMALLEST + 'match = {kind = ["error", 1]}\nkey = "{a}"\ntimestamp = "at"\ngroup = "user.é"\n'
TRIAL = Trial(parse_text(CONFIG, "f.toml", {}, KINDS), "events")


@given(st.lists(likely | bodies, min_size=1, max_size=3), st.sampled_from([0, 40, 80]))
def test_every_line_is_printable_and_every_event_has_its_result(some: list[bytes], width: int) -> None:
    tried = [TRIAL.try_event(Event(number, body), NOW_MS) for number, body in enumerate(some, 1)]
    rows = list(report.lines(tried, "nsqdigest.dead", width=width))
    assert all(row.isprintable() for row in rows)
    heads = [row for row in rows if re.match(r"(?:line \d: )?(?:taken by|dead letter:|no route takes it)", row)]
    assert len(heads) == len(some)
    answer = json.loads(json.dumps(report.as_json("events", tried)))
    assert answer["ok"] is report.is_fine(tried) is all(each.result is Result.TAKEN for each in tried)
    for event in answer["events"]:
        assert (event["result"] == "dead-letter") == (event["dead_letter"] is not None)
        assert (event["result"] == "unmatched") == bool(event["unmet"])
        assert event["result"] != "taken" or event["routes"]


@given(st.binary(max_size=80) | likely | st.lists(likely, max_size=4).map(b"\n".join))
def test_no_byte_of_an_input_is_lost_but_line_ends_and_blank_lines(data: bytes) -> None:
    blank = b" \t\r\n\v\f"
    for by_line in (None, True, False):
        events = split(data, by_line=by_line)
        together = b"".join(body for _, body in events)
        assert together.translate(None, blank) == data.translate(None, blank)
        assert [event.line for event in events] == sorted({event.line for event in events})
