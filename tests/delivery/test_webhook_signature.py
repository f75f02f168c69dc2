"""Signatures by the Standard Webhooks rules, verified by the rules' own package; how statuses are read."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.sinks.webhook import retry_after_s, signature, signing_key, verdict_of

pytestmark = pytest.mark.unit

OLD_SECRET = "whsec_" + base64.b64encode(b"o" * 24).decode()
NEW_SECRET = "whsec_" + base64.b64encode(bytes(range(64))).decode()
STRANGE_SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
DIGEST_ID = "018bcfe5-6b7b-7000-8000-000000000000"
BODY = '{"type":"digest","data":{"timeline":"user:é😀"}}'.encode()
NOW_S = 1_700_000_000


def headers(
    *secrets: str, body: bytes = BODY, identity: str = DIGEST_ID, timestamp_s: int | None = None
) -> dict[str, str]:
    timestamp_s = int(datetime.now(UTC).timestamp()) if timestamp_s is None else timestamp_s
    return {
        "webhook-id": identity,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": signature([signing_key(secret) for secret in secrets], identity, timestamp_s, body),
    }


@pytest.mark.parametrize("secret", [OLD_SECRET, NEW_SECRET])
def test_the_receiver_verifies_the_signature(secret: str) -> None:
    assert Verifier(secret).verify(BODY, headers(secret)) is not None


@pytest.mark.parametrize("known", [OLD_SECRET, NEW_SECRET])
def test_while_rotating_the_receiver_may_know_either_secret(known: str) -> None:
    assert Verifier(known).verify(BODY, headers(NEW_SECRET, OLD_SECRET)) is not None


def test_a_stranger_does_not_verify() -> None:
    with pytest.raises(WebhookVerificationError):
        Verifier(STRANGE_SECRET).verify(BODY, headers(NEW_SECRET, OLD_SECRET))


@pytest.mark.parametrize("changed", ["webhook-id", "webhook-timestamp", "body"])
def test_what_was_changed_on_the_way_does_not_verify(changed: str) -> None:
    sent = headers(NEW_SECRET)
    body = BODY
    if changed == "body":
        body += b" "
    else:
        sent[changed] = sent[changed][:-1] + ("1" if sent[changed][-1] != "1" else "2")
    with pytest.raises(WebhookVerificationError):
        Verifier(NEW_SECRET).verify(body, sent)


def test_it_is_the_signature_that_the_package_makes_itself() -> None:
    moment = datetime.fromtimestamp(NOW_S, UTC)
    assert signature([signing_key(NEW_SECRET)], DIGEST_ID, NOW_S, BODY) == Verifier(NEW_SECRET).sign(
        DIGEST_ID, moment, BODY.decode()
    )


def test_each_secret_has_its_own_signature_in_the_order_of_the_file() -> None:
    both = signature([signing_key(NEW_SECRET), signing_key(OLD_SECRET)], DIGEST_ID, NOW_S, BODY)
    assert both.split(" ") == [
        signature([signing_key(secret)], DIGEST_ID, NOW_S, BODY) for secret in (NEW_SECRET, OLD_SECRET)
    ]


def test_a_secret_may_stand_without_its_prefix() -> None:
    assert signing_key(NEW_SECRET.removeprefix("whsec_")) == signing_key(NEW_SECRET) == bytes(range(64))


# -- answers


@pytest.mark.parametrize(
    ("verdict", "statuses"),
    [
        (Verdict.DELIVERED, (*range(200, 300),)),
        (Verdict.GONE, (410,)),
        (Verdict.UNAVAILABLE, (401, 429, 502, 503, 504)),
        (Verdict.AGAIN, (403, 404, 405, 408, 425, 500, 501, 505, 507, 511, 599, *range(300, 309))),
        (Verdict.REFUSED, (400, 402, 406, 409, 411, 412, 413, 414, 415, 422, 423, 428, 431, 451, 499)),
    ],
)
def test_every_status_has_its_verdict(verdict: Verdict, statuses: tuple[int, ...]) -> None:
    assert {status: verdict_of(status) for status in statuses} == dict.fromkeys(statuses, verdict)


@pytest.mark.parametrize(("header", "wait_s"), [("0", 0.0), ("1", 1.0), ("120", 120.0), (" 7 ", 7.0)])
def test_retry_after_in_seconds(header: str, wait_s: float) -> None:
    assert retry_after_s(header, NOW_S) == wait_s


@pytest.mark.parametrize(("ahead_s", "wait_s"), [(90, 90.0), (0, 0.0), (-90, 0.0)])
def test_retry_after_as_a_date(ahead_s: int, wait_s: float) -> None:
    header = format_datetime(datetime.fromtimestamp(NOW_S, UTC) + timedelta(seconds=ahead_s), usegmt=True)
    assert retry_after_s(header, NOW_S) == wait_s


@pytest.mark.parametrize(
    "header",
    [None, "", "soon", "-5", "1.5", "1e3", "²", "٣", "\x00", "Fri, 32 Jan 2099 00:00:00 GMT", "1 Jan 99999999 0:0 GMT"],
)
def test_a_retry_after_that_is_none_asks_for_nothing(header: str | None) -> None:
    assert retry_after_s(header, NOW_S) == 0.0


def test_a_retry_after_of_hundreds_of_digits_is_no_error() -> None:
    assert retry_after_s("9" * 400, NOW_S) > 1e300
