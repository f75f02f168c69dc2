"""Who may ask for what over HTTP: the decision alone, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from nsqdigest.admin.guard import WRONG_AT_ONCE, WRONG_EVERY_S, Asked, Brake, Guard
from nsqdigest.base.reasons import HttpRefusal as Reason

pytestmark = pytest.mark.unit

TOKEN = "a-long-enough-token"
BEARER = f"Bearer {TOKEN}"
OURS = "127.0.0.1:4180"
LOCAL, OPEN = (Guard(TOKEN.encode, is_loopback=is_loopback) for is_loopback in (True, False))
WITHOUT = Guard(lambda: None, is_loopback=True)


def reads(path: str = "/api/status", **said: Any) -> Asked:
    return Asked(**{"method": "GET", "path": path, "hosts": (OURS,), **said})


def writes(path: str = "/api/pause", **said: Any) -> Asked:
    usual = {"method": "POST", "path": path, "hosts": (OURS,), "authorization": BEARER}
    return Asked(**{**usual, "content_type": "application/json", **said})


def reason(guard: Guard, asked: Asked, **options: bool) -> Reason | None:
    refused = guard.decide(asked, **options)
    return refused.reason if refused else None


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
    refused = guard.decide(reads(hosts=hosts, authorization=BEARER))
    assert refused is not None
    assert (refused.status, refused.reason) == (400, Reason.HOST)


def test_a_load_balancer_that_names_no_host_is_no_browser() -> None:
    assert reason(LOCAL, reads("/readyz", hosts=())) is None
    assert reason(LOCAL, reads("/readyz", hosts=(), origin="http://attacker.example")) is Reason.FOREIGN_PAGE


def test_where_other_machines_ask_the_host_may_have_any_name() -> None:
    assert reason(OPEN, reads("/metrics", hosts=("nsqdigest.internal:4180",))) is None


def test_a_refused_host_is_shown_as_one_line() -> None:
    refused = LOCAL.decide(reads(hosts=("a" * 240 + ".example",)))
    assert refused is not None
    assert len(refused.text) < 300


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


def test_the_token_of_a_new_file_counts_at_once() -> None:
    tokens: list[bytes | None] = [None]
    guard = Guard(lambda: tokens[-1], is_loopback=True)
    assert reason(guard, writes()) is Reason.NO_TOKEN
    tokens.append(TOKEN.encode())
    assert reason(guard, writes()) is None
    tokens.append(b"another-long-token")
    assert reason(guard, writes()) is Reason.TOKEN_WRONG


def test_a_refusal_does_not_show_what_was_guessed() -> None:
    refused = LOCAL.decide(writes(authorization="Bearer guess"))
    assert refused is not None
    assert "guess" not in refused.text


# -- guessing


def test_after_many_wrong_tokens_none_is_looked_at() -> None:
    assert reason(LOCAL, writes(), may_try=False) is Reason.TOO_MANY_TOKENS
    assert reason(LOCAL, reads(), may_try=False) is None


def test_what_anybody_may_read_is_not_kept_from_who_shows_a_token() -> None:
    """Ten wrong tokens of another program on this machine must not blind the operator's `status`."""
    for shown in (BEARER, "Bearer wrong"):
        assert reason(LOCAL, reads(authorization=shown), may_try=False) is None
        assert reason(OPEN, reads(authorization=shown), may_try=False) is Reason.TOO_MANY_TOKENS
        assert reason(LOCAL, reads(authorization=shown, is_passed_on=True), may_try=False) is Reason.TOO_MANY_TOKENS


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
