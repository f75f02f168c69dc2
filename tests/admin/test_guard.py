"""Who may ask for what over HTTP: the decision alone, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from nsqdigest.admin import proof
from nsqdigest.admin.guard import WRONG_AT_ONCE, WRONG_EVERY_S, Admitted, Asked, Brake, Guard, Refused, Tokens
from nsqdigest.base.reasons import HttpRefusal as Reason
from nsqdigest.config import Secret

pytestmark = pytest.mark.unit

TOKEN = "a-long-enough-token"
BEARER = f"Bearer {TOKEN}"
OURS = "127.0.0.1:4180"
READING = "a-long-token-that-reads"
NOW_S = 1000.0


def guard_of(write: str | None, read: str | None = None, *, is_local: bool = True) -> Guard:
    tokens = Tokens(*(None if each is None else Secret(each) for each in (write, read)))
    return Guard(lambda: tokens, proof.Nonces(b"key of this process"), is_local=is_local)


LOCAL, OPEN = (guard_of(TOKEN, is_local=is_local) for is_local in (True, False))
WITHOUT = guard_of(None)
BOTH, OPEN_BOTH = (guard_of(TOKEN, READING, is_local=is_local) for is_local in (True, False))
READ_ONLY = guard_of(None, READING)


def reads(path: str = "/api/status", **said: Any) -> Asked:
    return Asked(**{"method": "GET", "path": path, "hosts": (OURS,), **said})


def writes(path: str = "/api/pause", **said: Any) -> Asked:
    usual = {"method": "POST", "path": path, "hosts": (OURS,), "authorization": BEARER}
    return Asked(**{**usual, "content_type": "application/json", **said})


def refusal(guard: Guard, asked: Asked, *, may_try: bool = True) -> Refused:
    decided = guard.decide(asked, NOW_S, may_try=may_try)
    assert isinstance(decided, Refused)
    return decided


def reason(guard: Guard, asked: Asked, *, may_try: bool = True) -> Reason | None:
    decided = guard.decide(asked, NOW_S, may_try=may_try)
    return decided.reason if isinstance(decided, Refused) else None


# -- hosts


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:4180", "127.0.0.1", "localhost", "localhost:4180", "LOCALHOST.", "nsqdigest.localhost:1",
        "[::1]:4180", "[::1]", "10.0.0.7:4180", "[fd00:1::2]:4180",
    ],
)  # fmt: skip
def test_on_a_loopback_address_this_machine_is_localhost_or_an_ip_address(host: str) -> None:
    assert reason(LOCAL, reads(hosts=(host,))) is None


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example", "attacker.example:4180", "localhost.attacker.example", "127.0.0.1.attacker.example",
        "127.0.0.1.nip.io:4180", "notlocalhost", "nsqdigest", "0x7f.0.0.1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/metrics", "/readyz", "/api/status", "/page/main.js", "/nothing"])
def test_a_name_that_was_bound_to_our_address_reads_nothing(host: str, path: str) -> None:
    assert reason(LOCAL, reads(path, hosts=(host,))) is Reason.HOST


@pytest.mark.parametrize(
    "hosts",
    [
        ("",), (OURS, OURS), ("a b",), ("a/b",), ("u@127.0.0.1",), ("[::1",), ("::1",), ("[127.0.0.1]x",), ("x:y",),
        ("a\r\nb",), ("1:999999",), ("[not-ip]",), ("\udcff",),
    ],
)  # fmt: skip
@pytest.mark.parametrize("guard", [LOCAL, OPEN])
def test_there_is_one_host_and_it_is_one(guard: Guard, hosts: tuple[str, ...]) -> None:
    refused = refusal(guard, reads(hosts=hosts, authorization=BEARER))
    assert (refused.status, refused.reason) == (400, Reason.HOST)


def test_a_load_balancer_that_names_no_host_is_no_browser() -> None:
    assert reason(LOCAL, reads("/readyz", hosts=())) is None
    assert reason(LOCAL, reads("/readyz", hosts=(), origin="http://attacker.example")) is Reason.FOREIGN_PAGE


def test_where_other_machines_ask_the_host_may_have_any_name() -> None:
    assert reason(OPEN, reads("/metrics", hosts=("nsqdigest.internal:4180",))) is None


def test_a_refused_host_is_shown_as_one_line() -> None:
    assert len(refusal(LOCAL, reads(hosts=("a" * 240 + ".example",))).text) < 300


# -- web pages of others

FOREIGN: list[dict[str, str]] = [
    {"site": "cross-site"},
    {"site": "same-site"},  # another port of this host
    {"site": "cross-site", "mode": "cors", "origin": "https://attacker.example"},
    {"site": "cross-site", "mode": "no-cors"},
    {"site": "nonsense"},
    {"origin": "https://attacker.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://127.0.0.1:3000"},
    {"origin": "http://127.0.0.1"},
    {"origin": "http://localhost:4180"},
    {"origin": "file://"},
    {"origin": f"ftp://{OURS}"},
    {"origin": f"http://user@{OURS}"},
]
OWN: list[dict[str, str]] = [
    {},
    {"site": "same-origin"},
    {"site": "same-origin", "mode": "cors", "origin": f"http://{OURS}"},
    {"site": "none", "mode": "navigate"},
    {"origin": f"http://{OURS}"},
    {"site": "same-origin", "origin": "https://digests.example.com"},  # a proxy that sends our Host
]


@pytest.mark.parametrize("said", FOREIGN)
@pytest.mark.parametrize("guard", [LOCAL, OPEN, WITHOUT])
@pytest.mark.parametrize("path", ["/api/status", "/metrics", "/page/main.js"])
def test_a_page_of_another_origin_reads_nothing(guard: Guard, said: dict[str, str], path: str) -> None:
    assert reason(guard, reads(path, authorization=BEARER, **said)) is Reason.FOREIGN_PAGE


@pytest.mark.parametrize("said", FOREIGN)
@pytest.mark.parametrize("mode", [{}, {"mode": "navigate"}])
def test_nor_does_it_write_even_with_the_token(said: dict[str, str], mode: dict[str, str]) -> None:
    assert reason(LOCAL, writes(**{**mode, **said})) is Reason.FOREIGN_PAGE


@pytest.mark.parametrize("said", OWN)
@pytest.mark.parametrize("guard", [LOCAL, OPEN])
def test_our_page_and_what_is_no_browser_read_and_write(guard: Guard, said: dict[str, str]) -> None:
    assert reason(guard, reads(authorization=BEARER, **said)) is None
    assert reason(guard, writes(**said)) is None


def test_an_origin_without_its_port_is_that_of_the_scheme() -> None:
    assert reason(LOCAL, reads(hosts=("127.0.0.1",), origin="http://127.0.0.1:80")) is None
    assert reason(LOCAL, reads(hosts=("LocalHost:80",), origin="http://localhost")) is None


def test_a_link_of_another_page_is_followed_and_not_into_the_api() -> None:
    link = {"site": "cross-site", "mode": "navigate"}
    assert reason(LOCAL, reads("/", **link)) is None
    assert reason(LOCAL, reads("/readyz", **link)) is None
    assert reason(LOCAL, reads("/api/status", **link)) is Reason.FOREIGN_PAGE
    assert reason(LOCAL, reads("/", **link, method="POST")) is Reason.FOREIGN_PAGE


# -- the token


@pytest.mark.parametrize(
    ("guard", "asked", "expected"),
    [
        (LOCAL, reads(), None),
        (WITHOUT, reads(), None),
        (OPEN, reads(), Reason.TOKEN_MISSING),
        (OPEN, reads(method="HEAD"), Reason.TOKEN_MISSING),
        (OPEN, reads(authorization=BEARER), None),
        (LOCAL, reads(is_passed_on=True), Reason.TOKEN_MISSING),
        (LOCAL, reads(is_passed_on=True, authorization=BEARER), None),
        (WITHOUT, reads(is_passed_on=True), Reason.NO_TOKEN),
        (LOCAL, reads(authorization="Bearer wrong"), Reason.TOKEN_WRONG),  # so the page learns it
        (LOCAL, reads(authorization="Basic dTpw"), None),  # that of a proxy
        (WITHOUT, reads(authorization=BEARER), None),
        (LOCAL, writes(), None),
        (OPEN, writes(), None),
        (WITHOUT, writes(), Reason.NO_TOKEN),
        (LOCAL, writes(authorization=None), Reason.TOKEN_MISSING),
        (LOCAL, writes(authorization="Bearer wrong"), Reason.TOKEN_WRONG),
        (LOCAL, writes(authorization=TOKEN), Reason.TOKEN_WRONG),
        (LOCAL, writes(authorization=f"Basic {TOKEN}"), Reason.TOKEN_WRONG),
        (LOCAL, writes(authorization=f"bearer  {TOKEN} "), None),
        (LOCAL, writes(authorization="Bearer \udcff\udcfe"), Reason.TOKEN_WRONG),
        (LOCAL, writes(authorization="Bearer ä€"), Reason.TOKEN_WRONG),
        (LOCAL, writes(authorization=""), Reason.TOKEN_WRONG),
        (LOCAL, writes(method="PUT", authorization=None), Reason.TOKEN_MISSING),
        (LOCAL, writes(method="OPTIONS", authorization=None), Reason.TOKEN_MISSING),
    ],
)
def test_who_needs_the_token(guard: Guard, asked: Asked, expected: Reason | None) -> None:
    assert reason(guard, asked) is expected


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/livez", "/readyz", "/metrics"])
def test_the_page_itself_health_and_metrics_never_need_it(path: str) -> None:
    for guard in (LOCAL, OPEN, WITHOUT):
        assert reason(guard, reads(path, is_passed_on=True)) is None


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_a_write_is_json(content_type: str) -> None:
    assert reason(LOCAL, writes(content_type=content_type)) is Reason.CONTENT_TYPE


@pytest.mark.parametrize(
    ("guard", "asked", "expected"),
    [
        (BOTH, reads(), Reason.TOKEN_MISSING),  # on this machine, too
        (BOTH, reads(authorization="Basic dTpw"), Reason.TOKEN_WRONG),
        (BOTH, reads(authorization=f"Bearer {READING}"), None),
        (BOTH, reads(authorization=BEARER), None),
        (BOTH, reads("/readyz"), None),
        (BOTH, reads(proof.NONCE_PATH), None),
        (BOTH, writes(authorization=f"Bearer {READING}"), Reason.READ_ONLY),
        (BOTH, writes(), None),
        (OPEN_BOTH, reads(authorization=f"Bearer {READING}"), None),
        (OPEN_BOTH, reads(is_passed_on=True, authorization=f"Bearer {READING}"), None),
        (OPEN_BOTH, writes(authorization=f"Bearer {READING}"), Reason.READ_ONLY),
        (OPEN_BOTH, writes(authorization=f"Bearer {READING}", method="DELETE"), Reason.READ_ONLY),
        (READ_ONLY, reads(authorization=f"Bearer {READING}"), None),
        (READ_ONLY, writes(), Reason.NO_TOKEN),
        (READ_ONLY, writes(authorization=f"Bearer {READING}"), Reason.NO_TOKEN),
    ],
)
def test_a_reading_token_reads_and_changes_nothing(guard: Guard, asked: Asked, expected: Reason | None) -> None:
    assert reason(guard, asked) is expected


def test_the_token_of_a_new_file_counts_at_once() -> None:
    tokens = [Tokens()]
    guard = Guard(lambda: tokens[-1], proof.Nonces(b"key"), is_local=True)
    assert reason(guard, writes()) is Reason.NO_TOKEN
    tokens.append(Tokens(Secret(TOKEN)))
    assert reason(guard, writes()) is None
    tokens.append(Tokens(Secret("another-long-token")))
    assert reason(guard, writes()) is Reason.TOKEN_WRONG


def test_a_refusal_does_not_show_what_was_guessed() -> None:
    assert "guess" not in refusal(LOCAL, writes(authorization="Bearer guess")).text


# -- bodies


@pytest.mark.parametrize("path", ["/", "/livez", "/api/status", proof.NONCE_PATH])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_has_no_body(path: str, method: str) -> None:
    for guard in (LOCAL, OPEN):
        refused = refusal(guard, reads(path, method=method, has_body=True, authorization=BEARER))
        assert (refused.status, refused.reason) == (400, Reason.BODY)
        assert reason(guard, reads(path, method=method, authorization=BEARER)) is None


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity", "nonsense"])
def test_a_body_is_sent_as_it_is(encoding: str) -> None:
    for authorization in (BEARER, None):
        refused = refusal(LOCAL, writes(has_body=True, content_encoding=encoding, authorization=authorization))
        assert (refused.status, refused.reason) == (415, Reason.CONTENT_ENCODING)


# -- proofs


def proved(nonce: str, token: str = TOKEN, **said: Any) -> Asked:
    fields = {"method": "POST", "path": "/api/pause", "target": "/api/pause", **said}
    shown = proof.authorization(token.encode(), nonce, "POST", "/api/pause", b"{}")
    return Asked(**{"hosts": (OURS,), "authorization": shown, "content_type": "application/json", **fields})


def test_a_proof_is_as_good_as_the_token_and_good_once() -> None:
    nonces = proof.Nonces(b"key of this process")
    guard = Guard(lambda: Tokens(Secret(TOKEN), Secret(READING)), nonces, is_local=True)
    nonce = nonces.make(NOW_S, bytes(16))
    decided = guard.decide(proved(nonce), NOW_S + 1)
    assert isinstance(decided, Admitted)
    assert decided.proved is not None
    assert decided.proved.covers(b"{}")
    assert not decided.proved.covers(b"{ }")
    assert reason(guard, proved(nonce)) is Reason.TOKEN_WRONG
    assert reason(guard, proved(nonces.make(NOW_S, b"another nonce!!!"), READING)) is Reason.READ_ONLY


@pytest.mark.parametrize(
    "said",
    [
        {"target": "/api/pause?x"}, {"target": "/api/resume", "path": "/api/resume"}, {"method": "PUT"},
        {"authorization": "Nsqdigest-Proof"}, {"authorization": "Nsqdigest-Proof a b c"},
        {"authorization": "Nsqdigest-Proof ä ö ü"}, {"authorization": "Nsqdigest-Proof \udcff a b"},
    ],
)  # fmt: skip
def test_a_proof_is_of_one_request(said: dict[str, str]) -> None:
    nonces = proof.Nonces(b"key of this process")
    guard = Guard(lambda: Tokens(Secret(TOKEN)), nonces, is_local=True)
    assert reason(guard, proved(nonces.make(NOW_S, bytes(16)), **said)) is Reason.TOKEN_WRONG


def test_a_proof_by_another_token_or_for_another_process_is_worth_nothing() -> None:
    nonces = proof.Nonces(b"key of this process")
    guard = Guard(lambda: Tokens(Secret(TOKEN)), nonces, is_local=True)
    fresh, foreign = nonces.make(NOW_S, bytes(16)), proof.Nonces(b"key before the restart").make(NOW_S, bytes(16))
    assert reason(guard, proved(fresh, "another-long-token")) is Reason.TOKEN_WRONG
    assert reason(guard, proved(foreign)) is Reason.TOKEN_WRONG
    assert reason(guard, proved(nonces.make(NOW_S - proof.FRESH_S - 1, bytes(16)))) is Reason.TOKEN_WRONG
    assert reason(guard, proved(fresh)) is None


# -- guessing


@pytest.mark.parametrize("guard", [LOCAL, OPEN])
@pytest.mark.parametrize("is_passed_on", [True, False])
def test_the_right_token_passes_however_many_wrong_ones_came(guard: Guard, is_passed_on: bool) -> None:
    right, wrong = (dict[str, Any](authorization=each, is_passed_on=is_passed_on) for each in (BEARER, "Bearer wrong"))
    for make in (reads, writes):
        assert reason(guard, make(**right), may_try=False) is None
        assert reason(guard, make(**wrong), may_try=False) is Reason.TOO_MANY_TOKENS
    assert reason(LOCAL, reads(), may_try=False) is None


def test_an_address_may_be_wrong_ten_times_and_then_once_each_six_seconds() -> None:
    brake = Brake()
    for _ in range(WRONG_AT_ONCE):
        assert brake.may_try("10.0.0.1", 100.0)
        brake.was_wrong("10.0.0.1", 100.0)
    assert not brake.may_try("10.0.0.1", 100.0)
    assert brake.may_try("10.0.0.2", 100.0)
    assert brake.may_try("10.0.0.1", 100.0 + WRONG_EVERY_S)
    brake.was_wrong("10.0.0.1", 100.0 + WRONG_EVERY_S)
    assert not brake.may_try("10.0.0.1", 100.0 + WRONG_EVERY_S)
    assert brake.may_try("10.0.0.1", 10_000.0)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("fd00:1::1", "fd00:1::2", True),
        ("fd00:1::1%eth0", "fd00:1::2%eth0", True),
        ("fd00:1::1", "fd00:1:0:1::1", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "10.0.0.2", False),
    ],
)
def test_a_network_of_ipv6_is_one_address(one: str, other: str, is_same: bool) -> None:
    brake = Brake()
    for _ in range(WRONG_AT_ONCE):
        brake.was_wrong(one, 0.0)
    assert brake.may_try(other, 0.0) is not is_same


def test_it_remembers_a_bounded_number_of_addresses() -> None:
    brake = Brake()
    for number in range(3000):
        brake.was_wrong(f"10.{number >> 8}.{number & 255}.1", 0.0)
    assert len(brake._free_s) == 1000
