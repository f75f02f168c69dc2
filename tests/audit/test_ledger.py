"""What an audit makes of counters: sums, the verdict, and what it says to people and to scripts."""

from __future__ import annotations

import json
import re

import pytest

from nsqdigest.audit.ledger import Account, Audit, Census, Found, FoundDead, Recount, RouteAudit, balances
from nsqdigest.audit.report import report

pytestmark = pytest.mark.unit

ENDS = {"open": 1, "snapshots": 2, "delivered": 4, "superseded": 8, "buried": 16, "deleted": 32}
LEDGER = {"added": 63 + 64 + 128, "dropped:capacity": 64, "dropped:timelines": 128, **ENDS}


def route(*ledgers: dict[str, int], name: str = "events", is_configured: bool = True, timelines: int = 3) -> RouteAudit:
    censuses = (Census(timelines, timelines, 0), *(Census(0, 0, 0) for _ in ledgers[1:]))
    return RouteAudit(name, is_configured, censuses, ledgers)


# -- the sum


def test_a_ledger_balances_when_all_that_was_added_is_somewhere() -> None:
    assert balances(LEDGER)
    assert balances({})


@pytest.mark.parametrize("field", LEDGER)
def test_each_counter_is_part_of_the_balance(field: str) -> None:
    assert not balances({**LEDGER, field: LEDGER[field] + 1})


def test_a_record_may_be_dropped_for_a_reason_that_nobody_knows_here() -> None:
    account = Account.of({"added": 5, "dropped:whatever": 5})
    assert account.missing == 0
    assert account.dropped == {
        "capacity": 0,
        "timelines": 0,
        "duplicate": 0,
        "muted": 0,
        "cancelled": 0,
        "adopted": 0,
        "whatever": 5,
    }


def test_an_account_is_the_sum_of_its_ledgers() -> None:
    account = Account.of(LEDGER, LEDGER, {"added": 1})
    assert (account.added, account.open, account.dropped["timelines"], account.missing) == (511, 2, 256, 1)


# -- the verdict


def test_two_faults_do_not_make_up_for_each_other() -> None:
    one_missing, one_too_many = {"added": 1}, {"open": 1}
    assert Account.of(one_missing, one_too_many).missing == 0
    assert not Audit((route(one_missing, one_too_many),)).balanced
    assert not Audit((route(one_missing), route(one_too_many, name="other"))).balanced


def test_a_counter_below_nothing_never_balances() -> None:
    """Some other one makes up for it in the sum."""
    ledger = {"added": 1, "open": -1, "delivered": 2}
    assert balances(ledger)
    audit = Audit((route(ledger),))
    assert not audit.balanced
    assert '  route "events", partition 0: "open" is below 0' in report(audit)


def test_a_call_that_was_cut_off_is_told_and_not_balanced() -> None:
    audit = Audit((route({}, {**LEDGER, "unfinished:added": 2, "unfinished:delivered": 0}),))
    assert not audit.balanced
    text = "\n".join(report(audit))
    assert "THE COUNTERS ARE NOT EXACT" in text
    assert '  route "events", partition 1: 2 calls stopped half-way' in text
    assert "Redis lost something" not in text
    assert Audit((route({**LEDGER, "unfinished:added": 0}),)).balanced


@pytest.mark.parametrize(
    ("census", "said"),
    [
        (Census(3, 1, 1), "1 timeline neither waiting nor leased"),
        (Census(3, 3, 2), "2 timelines in two places or unknown"),
    ],
)
def test_a_timeline_that_is_not_in_one_place_is_told_and_not_balanced(census: Census, said: str) -> None:
    audit = Audit((route(LEDGER)._replace(censuses=(census,)),))
    assert not audit.balanced
    text = "\n".join(report(audit))
    assert "THE COUNTERS ARE NOT EXACT" in text
    assert f'  route "events", partition 0: {said}\nA running daemon that has the routes mends this' in text
    assert audit.as_json()["routes"]["events"]["timelines_astray"] == abs(census.astray)


def test_a_count_of_timelines_that_is_off_is_told_and_not_balanced() -> None:
    both = route(LEDGER, LEDGER), route(LEDGER, LEDGER, name="b")
    assert Audit(both, timelines_counted=(6, 0)).balanced
    audit = Audit(both, timelines_counted=(7, 0))
    assert not audit.balanced
    assert "  partition 0: 7 timelines are counted, 6 are there" in report(audit)


def test_what_differs_from_its_counters_is_not_balanced_and_what_only_moved_is() -> None:
    assert not Audit((route(LEDGER),), Recount(("a difference",))).balanced
    assert Audit((route(LEDGER),), Recount((), ("it moved",))).balanced


def test_the_answer_for_scripts_is_that_of_the_contract_and_of_each_route() -> None:
    answer = json.loads(json.dumps(Audit((route(LEDGER, LEDGER), route({"added": 2}, name="b"))).as_json()))
    of_routes = answer.pop("routes")
    assert answer == {
        "added": 512, "open": 2, "snapshots": 4, "delivered": 8, "superseded": 16, "buried": 32, "deleted": 64,
        "dropped": {"capacity": 128, "timelines": 256, "duplicate": 0, "muted": 0, "cancelled": 0, "adopted": 0},
        "balanced": False,
    }  # fmt: skip
    assert {name: (of["added"], of["balanced"], of["timelines"]) for name, of in of_routes.items()} == {
        "events": (510, True, 3), "b": (2, False, 3),
    }  # fmt: skip


def test_a_recount_is_in_the_answer_for_scripts() -> None:
    audit = Audit((route(LEDGER),), Recount(("one",), ("two",), untold=7))
    assert audit.as_json()["recount"] == {"exact": False, "differences": ["one", "two"], "untold": 7}


# -- one timeline

SOUND = Found(places=1, counted=2, records=2, values=2, snapshot_counted=3, snapshot_records=3, snapshot_values=3)


def test_of_a_sound_timeline_and_of_one_that_is_gone_there_is_nothing_to_say() -> None:
    assert SOUND.complaints() == []
    assert Found(0, -1, 0, 0, 0, 0, 0).complaints() == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (SOUND._replace(values=1), ["has 2 records and 1 values"]),
        (SOUND._replace(records=3, values=3), ["its schedule counts 2 records, 3 are there"]),
        (SOUND._replace(snapshot_values=4), ["has 3 records in its digest and 4 values"]),
        (SOUND._replace(snapshot_records=1, snapshot_values=1), ["its digest counts 3 records, 1 are there"]),
        (SOUND._replace(places=0), ["is neither waiting nor leased"]),
        (SOUND._replace(places=2), ["is waiting and leased at once"]),
        (SOUND._replace(counted=-1, places=0), ["has 5 records and no schedule"]),
    ],
)
def test_what_does_not_go_together_is_said(found: Found, said: list[str]) -> None:
    assert found.complaints() == said


def test_a_dead_digest_has_all_that_it_was_buried_with() -> None:
    assert FoundDead(2, 2, 2).complaints() == []
    assert FoundDead(2, 2, 1).complaints() == ["has 2 records and 1 values"]
    assert FoundDead(2, 1, 1).complaints() == ["it was buried with 2 records, 1 are there"]
    assert FoundDead(None, 1, 1).complaints() == ["nothing tells of which route it is"]


# -- for people


def test_the_table_has_a_line_for_each_route_and_one_for_all() -> None:
    lines = report(Audit((route({"added": 1200, "delivered": 1200}), route(LEDGER, name="b"))))
    columns = ["route", "added", "open", "in snapshots", "delivered", "superseded", "dropped", "buried", "deleted"]
    assert re.split("  +", lines[0]) == columns
    assert [re.split("  +", line) for line in lines[1:4]] == [
        ["events", "1,200", "0", "0", "1,200", "0", "0", "0", "0"],
        ["b", "255", "1", "2", "4", "8", "192", "16", "32"],
        ["all routes", "1,455", "1", "2", "1,204", "8", "192", "16", "32"],
    ]
    assert len({len(line) for line in lines[:4]}) == 1
    assert "dropped: capacity 64, timelines 128" in lines
    assert 'route "b": 16 of 255 records never delivered: they are in the dead list' in lines
    assert lines[-1] == (
        "balanced: every record is accounted for, but 16 of 1,455 records never delivered: they are in the dead list"
    )


def test_where_nothing_is_in_the_dead_list_none_is_spoken_of() -> None:
    lines = report(Audit((route({"added": 3, "delivered": 2, "open": 1}),)))
    assert lines[-1] == "balanced: every record that was added is accounted for"
    assert "dead" not in "\n".join(lines)


def test_of_one_route_the_table_has_no_sum() -> None:
    assert not any("all routes" in line for line in report(Audit((route(LEDGER),))))


def test_an_orphan_that_has_timelines_is_named() -> None:
    audit = Audit((route(LEDGER, name="old", is_configured=False, timelines=1), route({}, name="e", timelines=0)))
    (line,) = (line for line in report(audit) if line.startswith("orphan"))
    assert '"old"' in line
    assert "1 timeline " in line
    gone = Audit((route(LEDGER, name="old", is_configured=False, timelines=0),))
    assert not any(line.startswith("orphan") for line in report(gone))


def test_where_it_does_not_balance_route_partition_and_number_are_named_with_the_remedy() -> None:
    text = "\n".join(report(Audit((route({}, {"added": 2}, {"open": 1}),))))
    assert "DOES NOT BALANCE" in text
    assert 'route "events", partition 1: 2 records missing' in text
    assert 'route "events", partition 2: 1 record too many' in text
    assert "partition 0" not in text
    assert "nsqdigest audit --deep" in text


def test_what_was_recounted_is_said() -> None:
    assert "recounted: all that the counters say is there" in report(Audit((route(LEDGER),), Recount(())))
    text = "\n".join(report(Audit((route(LEDGER),), Recount(("one",), untold=3))))
    assert "differs: one\ndiffers: 3 more\n" in text
    assert "THE COUNTERS ARE NOT WHAT IS THERE" in text
    assert "--deep" not in text
    moving = "\n".join(report(Audit((route(LEDGER),), Recount((), ("it moved",)))))
    assert "moving: it moved" in moving
    assert "try again when it is quiet" in moving


def test_a_namespace_that_nobody_used_is_said_to_be_new() -> None:
    assert report(Audit((route({}),), is_new=True))[-1] == "balanced: no daemon has used this namespace yet"
