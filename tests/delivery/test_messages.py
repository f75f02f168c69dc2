"""Messages of Slack and Teams: what they say, and that nothing a publisher sends is refused, pings or breaks out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqdigest.delivery.bodies.message import EXAMPLE_CHARACTERS, message_of
from nsqdigest.delivery.bodies.sample import digest_json
from nsqdigest.delivery.bodies.slack import escaped, slack
from nsqdigest.delivery.bodies.teams import teams
from nsqdigest.delivery.bodies.texts import one_line
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.grouped import GroupedBuilder
from nsqdigest.store.record import StoredRecord
from support.chats import Refused, characters, runs_of, slack_takes, teams_takes
from support.delivering import HEAD

pytestmark = pytest.mark.unit

NAMES = Names("events", "user:42", "out")


def digest(*events: Any, group: str = "", timeline: str = "user:42") -> bytes:
    return digest_json(events, NAMES._replace(timeline=timeline), (group,) if group else ())


def said(body: bytes) -> str:
    """All that a message of Slack says, as its reader sees it."""
    message = json.loads(body)
    texts = [text["text"] for block in message["blocks"] for text in block.get("elements", [block.get("text")])]
    whole = re.sub(r"<!date[^|]*\|([^>]*)>", r"\1", "\n".join(texts))
    return whole.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


# -- what they say


def test_a_message_says_how_many_of_which_kinds_the_newest_and_when_the_next_can_come() -> None:
    events = [{"kind": kind, "message": f"failed {number}"} for number, kind in enumerate("abbcbba")]
    expected = [
        "7 events in user:42", "4 × ", "2 × ", "1 × ", "failed 0", "failed 4", "2 older events not shown",
        "2 superseded by newer ones", "next not before",
    ]  # fmt: skip
    for text in (said(slack(digest(*events, group="kind"))), "\n".join(runs_of(teams(digest(*events, group="kind"))))):
        places = [text.replace("*", "").index(each) for each in expected]
        assert places == sorted(places)
        assert "failed 5" not in text
    assert "*4 ×* `b`\n*2 ×* `a`\n*1 ×* `c`" in said(slack(digest(*events, group="kind")))


def test_the_next_can_come_when_the_digest_says() -> None:
    document = digest({"message": "x"})
    body = slack(document).decode()
    assert (
        f"<!date^{message_of(document).next_earliest_s}^{{date_short_pretty}} {{time}}|2026-11-18 09:05:00 UTC>" in body
    )
    assert (
        "next not before {{DATE(2026-11-18T09:05:00Z, SHORT)}} {{TIME(2026-11-18T09:05:00Z)}}"
        in teams(document).decode()
    )


def test_a_text_for_notifications_stands_beside_the_blocks() -> None:
    assert json.loads(slack(digest({"message": "x"})))["text"] == "1 event in user:42"


def test_where_records_are_not_grouped_there_are_no_groups() -> None:
    assert " ×" not in said(slack(digest({"message": "x"})))
    assert message_of(digest({"message": "x"})).groups == []


def test_of_many_groups_the_largest_are_shown_and_the_others_counted() -> None:
    kinds = [f"kind {number}" for number in range(30) for _ in range(30 - number)]
    document = digest(*({"kind": kind} for kind in kinds), group="kind")
    assert [group.records for group in message_of(document).groups] == list(range(30, 20, -1))
    assert f"{len(kinds) - sum(range(21, 31))} events in other groups" in said(slack(document))


def test_groups_that_the_digest_had_no_room_for_count_as_others() -> None:
    builder = GroupedBuilder(HEAD._replace(total=400), NAMES, 4_096, ("g",))
    builder.add([StoredRecord(b"k", 1, b'{"g":"group %d"}' % number) for number in range(400)])
    assert "390 events in other groups" in said(slack(builder.body(1, 1)))


@pytest.mark.parametrize(
    ("group", "name"), [("", "(empty)"), (None, "(none)"), (7, "7"), (True, "true"), (1.5, "1.5"), ("  \n ", "(empty)")]
)
def test_every_kind_of_group_has_a_name(group: Any, name: str) -> None:
    assert message_of(digest({"kind": group}, group="kind")).groups[0].name == name


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"message": "a", "title": "b"}, "a"),
        ({"title": "b", "text": "c"}, "b"),
        ({"error": {"message": "inner"}, "x": 1}, "inner"),
        ({"message": "", "msg": "second"}, "second"),
        ({"message": 7, "user": "ada"}, '{"message":7,"user":"ada"}'),
        ({"what": "login failed"}, "login failed"),
        ({"message": "one\n  two\tthree"}, "one two three"),
        ({"message": "a\u202eb\u0000c\u200bd"}, "a b c d"),
        ({}, "{}"),
        ({"message": "x" * 999}, "x" * (EXAMPLE_CHARACTERS - 1) + "…"),
    ],
)
def test_an_example_is_the_text_of_its_event_in_one_line(event: dict[str, Any], text: str) -> None:
    assert message_of(digest(event)).examples[0].text == text


def test_numbers_in_an_example_stay_as_they_were_written() -> None:
    builder = GroupedBuilder(HEAD, NAMES, 65_536, ("g",))
    builder.add([StoredRecord(b"k", 1, b'{"a":1.50,"b":1e999,"c":123456789012345678901234567890}')])
    assert message_of(builder.body(1, 1)).examples[0].text == '{"a":1.50,"b":1e999,"c":123456789012345678901234567890}'


# -- what no publisher can do

HOSTILE = (
    "<!channel>", "<!here>", "<@U012>", "<#C012|x>", "<https://evil.example|click>", "@channel", "@here", "`", "``` ",
    "*b*", "_i_", "~s~", ">", "&lt;!channel&gt;", "&", "&amp;", "\n", "\r", "\u2028", "\u202e", "\x00", "\x1b[31m",
    ":boom:", "http://evil.example",
    "[x](http://evil.example)", "![x](y)", "{{DATE(2020-01-01T00:00:00Z)}}", "{{{{TIME()}}", "{{",
    "}}", "<at>x</at>", "|", "\\", "😀" * 80, "é", "\u0301" * 50, "a" * 3_000, "&" * 700, "<" * 700, " ",
    "\U000e0041", "#general",
)  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40)), max_size=6).map("".join)
scalars = st.one_of(texts, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
events = st.dictionaries(
    st.one_of(st.sampled_from(["message", "title", "kind", "error"]), texts),
    st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(texts, scalars, max_size=3)),
    max_size=5,
)


@given(st.lists(events, min_size=1, max_size=40), texts, st.booleans())
@example([{"message": each, "kind": each} for each in HOSTILE], "".join(HOSTILE), True)
@example([{"message": "&" * 200, "kind": "<" * 100 + str(n)} for n in range(40)], "&" * 500, True)
@example([{"message": "😀" * 200, "kind": "😀" * 100 + str(n)} for n in range(40)], "😀" * 500, True)
def test_whatever_a_publisher_sends_slack_and_teams_take_it_and_nobody_is_pinged(
    sent: list[dict[str, Any]], timeline: str, is_grouped: bool
) -> None:
    document = digest(*sent, group="kind" if is_grouped else "", timeline=timeline)
    slack_takes(slack(document))
    teams_takes(teams(document))


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 10**13, 10**17])
def test_any_timestamp_is_shown_or_called_unknown(timestamp_ms: int) -> None:
    builder = GroupedBuilder(HEAD, NAMES, 65_536, ("g",))
    builder.add([StoredRecord(b"k", timestamp_ms, b"{}")])
    document = builder.body(timestamp_ms, timestamp_ms)
    slack_takes(slack(document))
    teams_takes(teams(document))


@given(texts, st.integers(1, 200))
def test_escaped_text_keeps_its_limit_and_cuts_no_entity(text: str, limit: int) -> None:
    cut = escaped(text, limit)
    assert characters(cut) <= limit
    assert "&" not in re.sub("&(amp|lt|gt);", "", cut)


@given(texts, st.integers(2, 200))
def test_one_line_is_one_and_never_empty(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert line == "(empty)" or 1 <= len(line) <= limit
    assert line.splitlines() == [line]


UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028\u202e\u2060\u2065\u206f\u2800\u3164\ufdd0"
    "\ufdef\ufeff\uffa0\ufff0\ufffb\ufffe\uffff\U0001bca0\U0001d173\U0001fffe\U0001ffff\U000e0000\U000e0001\U000e0041\U000e007f"
    "\U000e01f0\U000e0fff\U0010fffe\U0010ffff"
)
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


@pytest.mark.parametrize("character", UNSEEN, ids=ascii)
def test_what_is_not_seen_is_a_blank(character: str) -> None:
    assert one_line(f"a{character}b", 10) == "a b"
    assert one_line(character, 10) == "(empty)"


@pytest.mark.parametrize(
    "text",
    [
        "\u2764\ufe0f",
        "\U0001f469\u200d\U0001f469\u200d\U0001f467",
        "\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u8fbb\U000e0100",
        f"1:0 {ENGLAND}{ENGLAND} !",
    ],
    ids=ascii,
)
def test_what_shapes_its_neighbours_stays(text: str) -> None:
    assert one_line(text, 40) == text


@pytest.mark.parametrize("text", ["\u200d", "\ufe0f \u200c", "\U000e0100"], ids=ascii)
def test_what_has_nothing_to_shape_is_no_text(text: str) -> None:
    assert one_line(text, 10) == "(empty)"


def test_tags_are_seen_in_a_flag_alone() -> None:
    hidden = "".join(chr(0xE0000 + ord(each)) for each in "ignore")
    assert one_line(f"a{hidden}b \U0001f3f4{hidden}", 40) == "a b \U0001f3f4"


# -- the judge itself


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"text": ""}, "no_text"),
        ({"text": "<!channel>"}, "mention"),
        ({"text": "@channel"}, "everybody"),
        ({"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "x", "verbatim": True}}] * 51}, "number"),
        (
            {"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "x" * 3_001, "verbatim": True}}]},
            "length",
        ),
        (
            {"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "`a` _b_ `c`", "verbatim": True}}]},
            "marked",
        ),
        ({"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "<@U1>", "verbatim": True}}]}, "mention"),
        ({"blocks": [{"type": "header", "text": {"type": "plain_text", "text": "x" * 151, "emoji": False}}]}, "length"),
        ({"blocks": [{"type": "sektion"}]}, "invalid_blocks"),
    ],
)
def test_the_slack_of_these_tests_refuses_what_slack_refuses(change: dict[str, Any], refusal: str) -> None:
    message = json.loads(slack(digest({"message": "x"})))
    with pytest.raises(Refused, match=refusal):
        slack_takes(json.dumps(message | change).encode())
