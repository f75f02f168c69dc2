"""The doctor's judgements: what a fact means, and how all of it is shown."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from nsqdigest.base.errors import LookupFailed, Mistake, StoreError, Unreachable
from nsqdigest.base.findings import Finding, Reached, State, from_message
from nsqdigest.base.reasons import LookupProblem
from nsqdigest.base.screen import RED
from nsqdigest.doctor import judgements, report, running
from nsqdigest.doctor.findings import Part
from nsqdigest.doctor.judgements import NsqdFacts, Peer
from nsqdigest.doctor.reach import in_a_thread, peer_of, resolve, why
from nsqdigest.nsq.negotiation import Negotiated
from nsqdigest.store.daemons import Known, Told
from nsqdigest.store.operations import RouteCounts
from nsqdigest.store.servers.facts import ServerFacts
from nsqdigest.store.servers.rights import Rights
from support.stores import redis_settings
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.unit

OK, NOTE, WARN, FAIL = State
NOW_S = 1_800_000_000.0
DAY_S = 86_400.0


def states(found: list[Finding]) -> list[State]:
    return [finding.state for finding in found]


# -- words


def test_the_remedy_stands_behind_the_last_semicolon() -> None:
    assert from_message("x", WARN, "a; b; do it") == Finding("x", WARN, "a; b", "do it")


def test_a_message_without_one_has_that_of_its_judge() -> None:
    assert from_message("x", FAIL, "it is down", "start it") == Finding("x", FAIL, "it is down", "start it")


# -- the file


def test_a_file_with_warnings_is_shown_and_each_of_them() -> None:
    found = judgements.of_file(
        "f.toml", (), (Mistake("is odd", "write b", file="f.toml", line=2, path="a"),), "1 route"
    )
    assert found == [
        Finding("f.toml", OK, "1 route"), Finding("f.toml", WARN, "f.toml:2: a: is odd", "write b"),
    ]  # fmt: skip


def test_of_a_file_with_problems_nothing_else_is_said() -> None:
    assert states(judgements.of_file("f.toml", (Mistake("is odd", "write b"), Mistake("more")), (), "")) == [FAIL, FAIL]


# -- nsqd


def nsqd(sources: tuple[str, ...] = ("file",), redis_timeout_ms: int = 5000, **said: Any) -> list[Finding]:
    facts: dict[str, Any] = {"compression_asked": "none", "has_secret": False, "tls": "", "peer": None}
    facts |= {name: said.pop(name) for name in tuple(said) if name in facts}
    negotiated = Negotiated(version="1.3.0", **said)
    return judgements.of_nsqd("h:4150", sources, NsqdFacts(negotiated=negotiated, **facts), redis_timeout_ms, NOW_S)


def test_an_nsqd_that_is_well_is_one_line_with_all_that_it_said() -> None:
    assert nsqd() == [
        Finding(
            "h:4150",
            OK,
            "nsqd 1.3.0; max_rdy_count 2500; msg_timeout 60 s; in the clear; compression none; from the file",
        )
    ]


def test_who_names_it_is_said_the_file_first() -> None:
    assert nsqd(sources=("a:4161", "file"))[0].detail.endswith("from the file, nsqlookupd a:4161")


def test_its_certificate_is_named_with_its_end() -> None:
    (found,) = nsqd(tls_v1=True, tls="TLSv1.3 AES", peer=Peer("nsqd.example", NOW_S + 100 * DAY_S))
    assert "TLSv1.3 AES, certificate of nsqd.example until 2027-04-25" in found.detail


def test_a_certificate_that_nobody_checked_is_said_to_be_that() -> None:
    assert "certificate not checked" in nsqd(tls_v1=True, tls="TLSv1.3 AES")[0].detail


@pytest.mark.parametrize(("days", "expected"), [(13.5, [OK, WARN]), (14.5, [OK]), (0.1, [OK, WARN])])
def test_a_certificate_that_ends_within_two_weeks_is_warned_of(days: float, expected: list[State]) -> None:
    found = nsqd(tls_v1=True, tls="TLSv1.3 AES", peer=Peer("nsqd", NOW_S + days * DAY_S))
    assert states(found) == expected
    assert all(f"in {int(days)} day" in finding.detail for finding in found[1:])


@pytest.mark.parametrize(
    ("msg_timeout_ms", "expected"), [(10_000, [OK, WARN]), (10_001, [OK]), (1_500, [OK, WARN]), (60_000, [OK])]
)
def test_a_msg_timeout_that_two_slow_writes_outlast_is_warned_of(msg_timeout_ms: int, expected: list[State]) -> None:
    assert states(nsqd(msg_timeout_ms=msg_timeout_ms)) == expected


def test_a_compression_that_is_not_offered_is_warned_of_with_nsqds_own_option() -> None:
    _, found = nsqd(compression_asked="snappy")
    assert (found.state, "--snappy" in found.remedy) == (WARN, True)


def test_auth_is_said_only_where_there_is_any() -> None:
    assert "AUTH" not in nsqd()[0].detail
    assert "no AUTH asked for" in nsqd(has_secret=True)[0].detail
    assert "AUTH accepted" in nsqd(has_secret=True, auth_required=True)[0].detail


def test_an_old_nsqd_is_warned_of() -> None:
    facts = NsqdFacts(
        negotiated=Negotiated(version="0.3.8"), compression_asked="none", has_secret=False, tls="", peer=None
    )
    assert states(judgements.of_nsqd("h:4150", ("file",), facts, 5000, NOW_S)) == [OK, WARN]


def test_the_files_own_nsqd_that_is_down_has_its_option_as_the_remedy() -> None:
    found = judgements.of_failed_nsqd(
        "h:4150", {"file", "a:4161"}, "nsqd at h:4150: refused (connect)", is_reached=False
    )
    assert (found.state, found.detail) == (FAIL, "refused (connect)")
    assert "nsq.nsqd_tcp_addresses" in found.remedy


def test_one_that_only_a_nsqlookupd_names_needs_another_broadcast_address() -> None:
    found = judgements.of_failed_nsqd("h:4150", {"a:4161"}, "nobody knows the name h; correct it", is_reached=False)
    assert found.detail == "nobody knows the name h (named by nsqlookupd a:4161)"
    assert "-broadcast-address" in found.remedy


def test_what_an_nsqd_itself_refuses_keeps_its_remedy_whoever_named_it() -> None:
    found = judgements.of_failed_nsqd("h:4150", {"a:4161"}, "nsqd at h:4150 does not offer TLS; do so", is_reached=True)
    assert found.remedy == "do so"


# -- nsqlookupd and topics


def test_what_a_nsqlookupd_names_that_is_no_address_is_a_failure_each() -> None:
    assert states(judgements.of_lookupd("a:4161", 2, 1, {"x y:1", ":2"}, ())) == [OK, FAIL, FAIL]


def test_nsqds_that_the_file_does_not_allow_are_a_warning() -> None:
    _, one = judgements.of_lookupd("a:4161", 1, 1, (), {"evil:4150"})
    assert (one.state, one.detail) == (WARN, "names evil:4150, which nsq.allow_nsqds does not list")
    _, many = judgements.of_lookupd("a:4161", 1, 1, (), {"evil:4150", "h:2", "h:1"})
    assert many.detail == "names evil:4150 and 2 other nsqds, which nsq.allow_nsqds does not list"


@pytest.mark.parametrize("problem", list(LookupProblem))
def test_a_nsqlookupd_that_fails_has_a_remedy_whatever_it_is(problem: LookupProblem) -> None:
    found = judgements.of_failed_lookupd("a:4161", LookupFailed(problem, "so it is"))
    assert (found.state, found.detail, bool(found.remedy)) == (FAIL, "so it is", True)


def test_a_topic_that_nobody_has_is_waited_for_and_no_failure() -> None:
    assert judgements.of_topic("t", 0).state is NOTE
    assert judgements.of_topic("t", 1) == Finding("t", OK, "1 nsqd has it")


# -- Redis

SERVER = {
    "redis_version": "7.0.15", "redis_mode": "standalone", "role": "master", "connected_slaves": "0",
    "maxmemory_policy": "noeviction", "maxmemory": "104857600", "aof_enabled": "1",
}  # fmt: skip


def server(durability: str = "reply", **info: str) -> list[Finding]:
    facts = ServerFacts.of("r:6379", {**SERVER, **info}, {"appendfsync": "always"})
    return judgements.of_server(facts, "single", redis_settings("redis://r", durability=durability))


def test_a_redis_that_is_well_is_one_line() -> None:
    assert server() == [
        Finding(
            "r:6379",
            OK,
            "Redis 7.0.15; primary, 0 replicas; maxmemory 100 MiB, noeviction; persistent, appendfsync always",
        )
    ]


@pytest.mark.parametrize(
    ("info", "remedy"),
    [
        ({"role": "slave"}, "name its primary"),
        ({"redis_version": "6.0.1"}, "use 6.2 or newer"),
        ({"redis_mode": "cluster"}, "redis+cluster://"),
    ],
)
def test_what_a_daemon_would_refuse_is_a_failure_with_its_remedy(info: dict[str, str], remedy: str) -> None:
    (found,) = server(**info)
    assert (found.state, remedy in found.remedy or remedy in found.detail) == (FAIL, True)


def test_what_may_lose_events_is_a_warning_each_with_a_remedy() -> None:
    found = server(maxmemory_policy="allkeys-lru", maxmemory="0", aof_enabled="0", durability="replica")
    assert states(found) == [OK, WARN, WARN, WARN, WARN]
    assert all(finding.remedy for finding in found[1:])


def test_what_redis_says_is_not_taken_for_a_remedy() -> None:
    found = judgements.of_failed_store("r:6379", StoreError("redis-sentinel", "a: down; b: down"), "f.toml")
    assert found == Finding(
        "r:6379", FAIL, "redis-sentinel: a: down; b: down", "see that it runs, and redis.url in f.toml"
    )
    found = judgements.of_failed_store("r:6379", Unreachable("no such name; correct it"), "f.toml")
    assert (found.detail, found.remedy) == ("no such name", "correct it")


def test_a_namespace_that_nobody_used_is_fine() -> None:
    assert judgements.of_layout("n", None, 4).state is NOTE


@pytest.mark.parametrize("stored", [(1, 4), (2, 3)])
def test_another_layout_is_a_failure_with_the_remedy(stored: tuple[int, int]) -> None:
    found = judgements.of_layout("n", stored, 4)
    assert (found.state, "choose another redis.namespace" in found.remedy) == (FAIL, True)


@pytest.mark.parametrize(
    ("ahead_s", "state", "words"),
    [(0.01, OK, "this machine's"), (-4.9, OK, "4.9 s behind"), (5.1, WARN, "5.1 s ahead of"), (-60, WARN, "behind")],
)
def test_clocks_that_are_far_apart_are_warned_of(ahead_s: float, state: State, words: str) -> None:
    found = judgements.of_clock(ahead_s)
    assert (found.state, words in found.detail) == (state, True)


def test_an_orphan_with_records_is_warned_of_and_an_empty_one_is_not() -> None:
    full, empty = judgements.of_orphans({"old": RouteCounts(2, 1, 5, 4), "gone": RouteCounts(1, 0, 0, 0)})
    assert (full.state, "3 timelines with 9 records" in full.detail) == (WARN, True)
    assert "nsqdigest adopt old --to ROUTE" in full.remedy
    assert "nsqdigest delete --route old" in full.remedy
    assert empty.state is NOTE


# -- rights

NEEDED = Rights("u", "n", ("script load 0", "get @", "hset @ f v"))


def test_a_user_who_may_all_is_fine_and_one_who_could_not_be_asked_is_not_said_to_be() -> None:
    assert judgements.of_rights(NEEDED, set()).state is OK
    assert judgements.of_rights(NEEDED, None).state is NOTE


def test_missing_rights_are_named_as_the_command_that_gives_them() -> None:
    found = judgements.of_rights(NEEDED, {"hset @ f v", "script load 0"})
    assert (found.state, found.remedy) == (FAIL, "ACL SETUSER u +script|load +hset")


def test_a_user_who_may_use_none_of_the_keys_lacks_their_pattern() -> None:
    assert "~{n:*" in judgements.of_rights(NEEDED, {"get @", "hset @ f v"}).remedy


# -- what a sink reaches


def test_a_server_that_was_reached_is_shown_with_its_tls_and_certificate() -> None:
    sound = Peer("h", NOW_S + 90 * DAY_S)
    assert judgements.reached_server("TLSv1.3", sound, NOW_S) == Reached("TLSv1.3, certificate of h until 2027-04-15")
    assert judgements.reached_server("", None, NOW_S) == Reached("in the clear")


def test_a_certificate_that_ends_soon_is_a_doubt() -> None:
    (doubt,) = judgements.reached_server("TLSv1.3", Peer("h", NOW_S + DAY_S), NOW_S).doubts
    assert doubt.detail.endswith(", in 1 day")
    assert doubt.of("w").state is WARN


def test_an_nsqd_that_was_reached_is_shown_as_negotiated() -> None:
    negotiated = Negotiated(version="1.3.0", auth_required=True)
    facts = NsqdFacts(negotiated=negotiated, compression_asked="snappy", has_secret=True, tls="", peer=None)
    reached = judgements.reached_nsqd(facts, NOW_S)
    assert reached.how == "nsqd 1.3.0; in the clear; compression none; AUTH accepted"
    assert ["snappy" in doubt.detail for doubt in reached.doubts] == [True]


# -- the admin address


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("[+] running: yes\n[+] store: answers\nready\n", OK),
        ("[+] running: yes\n[-] store: not reached yet\nnot ready\n", WARN),
        ("<html>another server</html>", FAIL),
        ("", FAIL),  # no HTTP
    ],
)
def test_who_has_the_admin_address_is_told_apart(answer: str, state: State) -> None:
    assert [found.state for found in running.of_used_admin("h:4180", answer)] == [state]


@pytest.mark.parametrize(
    ("pids", "who"), [([], "a daemon that hangs"), ([17], "hangs (pid 17)"), ([17, 18], "hangs (pid 17 or 18)")]
)
def test_a_silent_admin_address_may_be_a_daemon_that_hangs(pids: list[int], who: str) -> None:
    found = running.of_silent_admin("h:4180", 2.0, pids)
    assert found.state is FAIL
    assert "does not answer within 2 s" in found.detail
    assert found.detail.endswith(who)
    assert "restart it" in found.remedy


def test_what_a_daemon_lacks_is_named() -> None:
    (found,) = running.of_used_admin("h:4180", "[+] running: yes\n[-] store: not reached yet\nnot ready\n")
    assert "store: not reached yet" in found.detail


@pytest.mark.parametrize(
    ("what", "detail", "remedy"),
    [
        ("sink hook", "refusing since 09:12 (8 digests buried: 400)", "what the receiver answers"),
        ("sink hook", "stopped since 09:12 (1 digest waits: 410)", "send the daemon HUP"),
        ("sink hook", "behind since 09:12 (3 digests wait)", "concurrency"),
        ("sink hook", "paused since 09:12", "nsqdigest resume sink hook"),
        ("route events", "paused since 09:12 (3 digests wait)", "nsqdigest resume route events"),
        ("topic events", "1 of 1 nsqd connected, paused since 09:12", "nsqdigest resume topic events"),
        ("descriptors", "62 of 64 are open; raise LimitNOFILE=", "NsqdigestDescriptors"),
        ("config", "the reload of 09:12 was not taken: f.toml:3: nsq.x: unknown key", "nsqdigest check"),
    ],
)
def test_what_is_in_trouble_though_the_daemon_is_ready_is_a_warning(what: str, detail: str, remedy: str) -> None:
    answer = f"[+] running: yes\n[+] sink other: delivering\n[!] {what}: {detail}\nready\n"
    ready, trouble = running.of_used_admin("h:4180", answer)
    assert ready.state is OK
    assert (trouble.what, trouble.state, trouble.detail) == (what, WARN, detail)
    assert remedy in trouble.remedy


# -- how it is shown

PARTS = [
    Part("nsqd", (Finding("a:4150", OK, "nsqd 1.3.0"), Finding("b:4150", FAIL, "refused", "start it"))),
    Part("sink", ()),
    Part("redis", (Finding("r:6379", WARN, "no maxmemory", "set it"), Finding("clock", NOTE, "so"))),
]


def test_a_line_says_what_and_how_and_the_next_one_the_remedy() -> None:
    assert list(report.lines(PARTS)) == [
        "nsqd",
        "  ok    a:4150  nsqd 1.3.0",
        "  FAIL  b:4150  refused",
        "        -> start it",
        "",
        "redis",
        "  warn  r:6379  no maxmemory",
        "        -> set it",
        "  note  clock   so",
        "",
        "found: 1 failed, 1 warning, 1 ok",
    ]


def test_where_nothing_is_found_the_last_line_says_so() -> None:
    assert list(report.lines([Part("x", (Finding("a", OK, "b"), Finding("c", NOTE, "d")))]))[-1] == (
        "nothing found: 1 ok"
    )


def test_colour_is_on_marks_and_headings_alone() -> None:
    shown = list(report.lines(PARTS, colour=True))
    assert shown[0] == "\x1b[1mnsqd\x1b[0m"
    assert shown[2] == f"  \x1b[{RED}mFAIL\x1b[0m  b:4150  refused"
    assert shown[3] == "        -> start it"


def test_no_line_is_wider_than_the_terminal() -> None:
    finding = Finding("a:4150", WARN, "word " * 60, "other " * 60)
    lines = list(report.lines([Part("nsqd", (finding,))], width=60))
    assert max(map(len, lines)) <= 60
    assert len(lines) > 8


def test_what_a_peer_says_can_not_write_to_the_terminal() -> None:
    (line, *_) = list(report.lines([Part("nsqd", (Finding("a", OK, "1.3\x1b[2J\n\u202e"),))]))[1:]
    assert line == "  ok    a  1.3\\u001b[2J\\u000a\\u202e"


def test_as_json_each_check_is_named_without_its_heading() -> None:
    answer = report.as_json(PARTS, strict=False)
    assert answer["ok"] is False
    assert answer["checks"][1] == {"what": "nsqd b:4150", "state": "fail", "detail": "refused", "remedy": "start it"}


@pytest.mark.parametrize(("state", "ok"), [(OK, True), (NOTE, True), (WARN, True), (FAIL, False)])
def test_a_warning_is_a_failure_only_to_the_strict(state: State, ok: bool) -> None:
    parts = [Part("x", (Finding("a", state, "b"),))]
    assert report.as_json(parts, strict=False)["ok"] is ok
    assert report.as_json(parts, strict=True)["ok"] is (ok and state is not WARN)


# -- what examiners share


async def test_work_in_a_thread_that_hangs_is_left_alone() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def hang() -> None:
        may_end.wait(PATIENCE_S)
        has_ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await in_a_thread(hang)
    may_end.set()
    assert has_ended.wait(PATIENCE_S)


async def test_an_error_in_a_thread_comes_out() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_a_thread(lambda: 1 // 0)


@pytest.mark.parametrize("name", ["a..b", "x" * 300])
async def test_a_name_that_can_be_none_is_said_with_the_remedy(name: str) -> None:
    with pytest.raises(Unreachable, match=r"nobody knows the name .*; correct it"):
        await resolve(name)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (
            OSError("Multiple exceptions: [Errno 111] Connect … ::1, [Errno 111] Connect … 127.0.0.1"),
            "Connection refused",
        ),
        (TimeoutError(), "no answer within 3 s"),
        (OSError(), "OSError"),
    ],
)
def test_errors_of_a_connection_are_in_plain_words(error: OSError, expected: str) -> None:
    assert why(error) == expected


def test_whose_a_certificate_is() -> None:
    until = {"notAfter": "Jan  1 00:00:00 2030 GMT"}
    name = ((("organizationName", "o"),), (("commonName", "cn"),))
    assert peer_of({"subject": name, **until}) == Peer("cn", 1893456000.0)
    alternatives = (("DNS", "a.example"), ("IP Address", "10.0.0.1"), ("URI", "x:y"))
    assert peer_of({"subject": (), "subjectAltName": alternatives, **until}) == Peer(
        "a.example, 10.0.0.1", 1893456000.0
    )
    assert peer_of({}) is None


# -- other daemons


def daemon_in(host: str, version: str = "1.2.0", config_hash: str = "aaa") -> Known:
    return Known(host, 1, Told(host=host, pid=7, version=version, config_hash=config_hash))


def test_each_daemon_is_named_with_its_pid_and_version() -> None:
    [one] = judgements.of_daemons([daemon_in("web-1")], "1.2.0", "aaa")
    assert one.detail == "1 daemon in this namespace: web-1 (pid 7, 1.2.0)"
    [two] = judgements.of_daemons([daemon_in("web-1"), daemon_in("web-2")], "1.2.0", "aaa")
    assert two.detail == "2 daemons in this namespace: web-1 (pid 7, 1.2.0) and web-2 (pid 7, 1.2.0)"


def test_of_hundreds_of_daemons_with_long_names_the_first_are_named() -> None:
    [many] = judgements.of_daemons([daemon_in(f"web-{number}" * 1000) for number in range(300)], "1.2.0", "aaa")
    assert many.detail.endswith("… and 290 more")
    assert len(many.detail) < 1100


def test_no_daemon_is_no_finding() -> None:
    assert judgements.of_daemons([], "1.2.0", "aaa") == []


def test_daemons_whose_file_says_something_else_are_named() -> None:
    known = [daemon_in("web-1"), daemon_in("web\x1b[2J", config_hash="bbb"), daemon_in("web-3", "1.1.0", "ccc")]
    all_of_them, other = judgements.of_daemons(known, "1.2.0", "aaa")
    assert (all_of_them.state, all_of_them.detail[:28]) == (State.OK, "3 daemons in this namespace:")
    assert (other.state, other.what) == (State.WARN, "daemon web\\u001b[2J (pid 7)")
    assert "the same file" in other.remedy
