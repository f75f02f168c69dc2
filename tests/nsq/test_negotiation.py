"""What is said in IDENTIFY, what nsqd's answer means, and what its refusals mean to an operator."""

from __future__ import annotations

import ssl
from typing import Any

import msgspec
import pytest

from nsqdigest.base.errors import NsqdMismatch, ProtocolError
from nsqdigest.config import Secret
from nsqdigest.config.tls_files import TlsClient
from nsqdigest.nsq.negotiation import (
    Compression,
    ConnectionOptions,
    Negotiated,
    check,
    identity,
    parse,
    refusal,
)

pytestmark = pytest.mark.unit

WHERE = "nsqd at 10.0.0.1:4150"
PLAIN = ConnectionOptions(heartbeat_interval_ms=30_000)
TLS = TlsClient(ssl.create_default_context(), has_certificate=False)
# What nsqd 1.3.0 answers.
ANSWER = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
    b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
    b'"output_buffer_size":65536,"output_buffer_timeout":25}'
)


def options(**settings: Any) -> ConnectionOptions:
    return ConnectionOptions(**{"heartbeat_interval_ms": 30_000, **settings})


# -- what we say


def test_a_plain_connection_says_who_it_is_and_asks_for_no_feature() -> None:
    assert identity(PLAIN, "web-1.example.com", "nsqdigest/1.0") == {
        "client_id": "web-1",
        "hostname": "web-1.example.com",
        "user_agent": "nsqdigest/1.0",
        "feature_negotiation": True,
        "heartbeat_interval": 30_000,
        "output_buffer_size": 65_536,
        "output_buffer_timeout": 25,
        "tls_v1": False,
        "snappy": False,
        "deflate": False,
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"heartbeat_interval_ms": 1_000}, {"heartbeat_interval": 1_000}),
        ({"msg_timeout_ms": 5_000}, {"msg_timeout": 5_000}),
        ({"tls": TLS}, {"tls_v1": True}),
        ({"compression": "snappy"}, {"snappy": True, "deflate": False}),
        ({"compression": "deflate"}, {"snappy": False, "deflate": True, "deflate_level": 6}),
    ],
)
def test_each_option_is_said(settings: dict[str, Any], said: dict[str, Any]) -> None:
    assert identity(options(**settings), "h", "a").items() >= said.items()


def test_the_secret_is_not_part_of_identify() -> None:
    assert "hunter2" not in str(identity(options(auth_secret=Secret("hunter2")), "h", "a"))


# -- what nsqd answers


def test_an_answer_of_nsqd_is_understood() -> None:
    assert parse(ANSWER, WHERE) == Negotiated(version="1.3.0", output_buffer_timeout_ms=25)


def test_what_an_answer_leaves_out_has_nsqds_default() -> None:
    assert parse(b"{}", WHERE) == Negotiated(
        version="",
        max_rdy_count=2_500,
        msg_timeout_ms=60_000,
        tls_v1=False,
        snappy=False,
        deflate=False,
        deflate_level=6,
        auth_required=False,
    )


def test_an_answer_cannot_be_changed_any_more() -> None:
    with pytest.raises(AttributeError):
        parse(ANSWER, WHERE).max_rdy_count = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"OK",
        b"[]",
        b"null",
        b"\xff",
        b'{"version":1}',
        b'{"max_rdy_count":0}',
        b'{"max_rdy_count":true}',
        b'{"max_rdy_count":"2500"}',
        b'{"max_rdy_count":2.5}',
        b'{"msg_timeout":-1}',
        b'{"msg_timeout":null}',
        b'{"tls_v1":1}',
        b'{"snappy":"yes"}',
        b'{"deflate":null}',
        b'{"deflate_level":10}',
        b'{"auth_required":0}',
    ],
)
def test_an_answer_of_other_types_is_none(answer: bytes) -> None:
    with pytest.raises(ProtocolError, match=rf"{WHERE} answered IDENTIFY with something else: is it an nsqd\?"):
        parse(answer, WHERE)


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (Negotiated(), PLAIN),
        (Negotiated(tls_v1=True), options(tls=TLS)),
        (Negotiated(snappy=True), options(compression="snappy")),
        (Negotiated(deflate=True, tls_v1=True), options(compression="deflate", tls=TLS)),
        (Negotiated(auth_required=True), options(auth_secret=Secret("s"))),
        (Negotiated(), options(auth_secret=Secret("s"))),
        (Negotiated(), options(compression="snappy")),
    ],
)
def test_what_fits_passes(answer: Negotiated, asked: ConnectionOptions) -> None:
    check(asked, answer, WHERE)


@pytest.mark.parametrize(
    ("answer", "asked", "unasked"),
    [
        (Negotiated(tls_v1=True), PLAIN, "tls_v1"),
        (Negotiated(snappy=True), PLAIN, "snappy"),
        (Negotiated(deflate=True), options(compression="snappy"), "deflate"),
        (Negotiated(deflate=True, snappy=True), options(compression="snappy"), "deflate"),
        (Negotiated(tls_v1=True, snappy=True), options(compression="deflate"), "tls_v1 and snappy"),
    ],
)
def test_what_nobody_asked_for_is_not_accepted(answer: Negotiated, asked: ConnectionOptions, unasked: str) -> None:
    with pytest.raises(ProtocolError, match=f"{WHERE} begins {unasked}, which nobody asked for"):
        check(asked, answer, WHERE)


def test_tls_is_never_done_without() -> None:
    with pytest.raises(NsqdMismatch, match=r"does not offer TLS, which .* start nsqd with --tls-cert") as caught:
        check(options(tls=TLS), Negotiated(), WHERE)
    assert caught.value.needs_operator


def test_auth_without_a_secret_is_asked_for() -> None:
    with pytest.raises(NsqdMismatch, match=r"requires AUTH, and nsq\.auth_secret is empty") as caught:
        check(PLAIN, Negotiated(auth_required=True), WHERE)
    assert caught.value.needs_operator


@pytest.mark.parametrize(
    ("answer", "compression"),
    [(Negotiated(), "none"), (Negotiated(snappy=True), "snappy"), (Negotiated(deflate=True), "deflate")],
)
def test_the_compression_is_what_nsqd_agreed_to(answer: Negotiated, compression: Compression) -> None:
    assert answer.compression == compression


def test_all_that_nsqd_says_is_read_from_its_own_names() -> None:
    said = {"msg_timeout": 1, "max_rdy_count": 3, "deflate_level": 1, "version": "x"}
    answer = parse(msgspec.json.encode(said), WHERE)
    assert (answer.msg_timeout_ms, answer.max_rdy_count) == (1, 3)
    assert (answer.deflate_level, answer.version) == (1, "x")


# -- what nsqd refuses


@pytest.mark.parametrize(
    ("payload", "asked", "said"),
    [
        (
            b"E_BAD_BODY IDENTIFY msg timeout (3600000) is invalid",
            options(msg_timeout_ms=3_600_000),
            'nsq.msg_timeout asks for "3600s", more than nsqd\'s --max-msg-timeout: write a shorter one, or raise that',
        ),
        (
            b"E_BAD_BODY IDENTIFY msg timeout (1500) is invalid",
            options(msg_timeout_ms=1_500),
            'nsq.msg_timeout asks for "1500ms", more than nsqd\'s --max-msg-timeout: write a shorter one, or '
            "raise that",
        ),
        (
            b"E_BAD_BODY IDENTIFY heartbeat interval (60000) is invalid",
            options(heartbeat_interval_ms=60_000),
            'nsq.heartbeat_interval asks for "60s", more than nsqd\'s --max-heartbeat-interval: write a shorter '
            "one, or raise that",
        ),
        (
            b"E_BAD_BODY IDENTIFY output buffer size (65536) is invalid",
            PLAIN,
            "nsqdigest needs 65536 bytes: raise nsqd's --max-output-buffer-size to that",
        ),
        (
            b"E_BAD_BODY IDENTIFY output buffer timeout (25) is invalid",
            PLAIN,
            "nsqdigest needs 25 ms: lower nsqd's --min-output-buffer-timeout to that",
        ),
        (
            b"E_INVALID cannot SUB in current state (TLS required)",
            PLAIN,
            "nsqd takes clients only over TLS (--tls-required): write [nsq.tls] in the file",
        ),
        (
            b"E_AUTH_FIRST AUTH required before SUB",
            PLAIN,
            'nsqd requires AUTH: write auth_secret = "env:NSQ_SECRET" or so under [nsq]',
        ),
        (
            b"E_AUTH_ERROR AUTH error",
            PLAIN,
            "read in nsqd's log what its auth server (--auth-http-address) answered",
        ),
    ],
)
def test_a_refusal_that_an_operator_must_mend_says_how(payload: bytes, asked: ConnectionOptions, said: str) -> None:
    error = refusal(payload, asked)
    code, _, detail = payload.decode().partition(" ")
    assert str(error) == f"{code}: {detail}; {said}"
    assert (error.code, error.detail, error.needs_operator) == (code, detail, True)


@pytest.mark.parametrize(
    "payload",
    [b"E_BAD_TOPIC SUB topic name", b"E_INVALID", b"", b"\xff\xfe", b"E_BAD_BODY IDENTIFY sample rate (5) is invalid"],
)
def test_any_other_refusal_has_nsqds_words_alone(payload: bytes) -> None:
    error = refusal(payload, PLAIN)
    code, _, detail = payload.decode("utf-8", "replace").partition(" ")
    assert str(error) == (f"{code}: {detail}" if detail else code)
    assert not error.needs_operator
