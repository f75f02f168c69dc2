"""docs/receivers/verify.{py,go,mjs}: each is run, with signatures that the real sink made, and agrees with the package
of Standard Webhooks."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from nsqdigest.config import Secret
from nsqdigest.delivery.sinks.base import OutgoingDigest
from nsqdigest.delivery.sinks.webhook import Webhook, WebhookSinkSettings, signature, signing_key
from support.receiver import Receiver
from support.settings import SINK
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[2] / "docs" / "receivers"
NEW, OLD, STRANGE = ("whsec_" + base64.b64encode(letter * 32).decode() for letter in (b"n", b"o", b"s"))
DIGEST_ID = "018bcfe5-6b7b-7000-8000-000000000000"
BODY = '{"type":"digest","data":{"records":[{"value":{"n":1.50,"who":"é😀"}}]}}'.encode()


@dataclass(frozen=True)
class Signed:
    """A post as its receiver has it."""

    body: bytes
    id: str
    timestamp: str
    signature: str

    def signed_again(self, *secrets: str, after_s: int = 0) -> Signed:
        timestamp_s = int(self.timestamp) + after_s
        keys = [signing_key(secret) for secret in secrets]
        return replace(self, timestamp=str(timestamp_s), signature=signature(keys, self.id, timestamp_s, self.body))


Post = Callable[..., Any]
Change = Callable[[Signed], Signed]


@pytest.fixture
async def posted() -> AsyncIterator[Post]:
    """What arrives of a digest that the sink posts with these secrets."""
    with Receiver() as receiver:

        async def post(*secrets: str, body: bytes = BODY) -> Signed:
            common = {name: getattr(SINK, name) for name in SINK.__dataclass_fields__ if name not in ("type", "path")}
            settings = WebhookSinkSettings(
                **common, type="webhook", url=receiver.url, allow_http=True, headers={},
                secrets=tuple(Secret(secret) for secret in secrets),
            )  # fmt: skip
            sink = Webhook(settings)
            await sink.deliver(OutgoingDigest(DIGEST_ID, "events", "user:42", 1, 1, body))
            await sink.close()
            came = receiver.posts[-1]
            names = ("webhook-id", "webhook-timestamp", "webhook-signature")
            return Signed(came.body, *(came.headers[name] for name in names))

        yield post


# -- the programs


def found(name: str, *places: str) -> str:
    """Go and Python are of the gate: it fails without them."""
    for place in (shutil.which(name), *places):
        if place and os.access(place, os.X_OK):
            return place
    if os.environ.get("CI") and name != "node":
        pytest.fail(f"there is no {name} on this machine")
    pytest.skip(f"there is no {name} on this machine")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    go, program = found("go", "/usr/local/go/bin/go"), tmp_path_factory.mktemp("go") / "verify"
    # As nsqd is built: what of Go's own packages was compiled for that is used again.
    environ = {**os.environ, "GOWORK": "off", "GOFLAGS": "", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    subprocess.run([go, "vet", FOLDER / "verify.go"], check=True, env=environ, timeout=300)
    subprocess.run(
        [go, "build", "-trimpath", "-o", program, FOLDER / "verify.go"], check=True, env=environ, timeout=300
    )
    return [str(program)]


@pytest.fixture(params=["python", "go", "node"])
def program(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "go":
        command: list[str] = request.getfixturevalue("compiled")
        return command
    if request.param == "python":
        return [sys.executable, str(FOLDER / "verify.py")]
    return [found("node"), str(FOLDER / "verify.mjs")]


def said(program: list[str], known: str, post: Signed) -> tuple[bool, str]:
    """Whether the program verifies the post with these secrets, and what it prints."""
    done = subprocess.run(
        [*program, post.id, post.timestamp, post.signature],
        input=post.body, capture_output=True, timeout=PATIENCE_S, check=False, env={**os.environ, "HOOK_SECRET": known},
    )  # fmt: skip
    text = (done.stdout + done.stderr).decode()
    assert (done.returncode, "Traceback" in text, "panic" in text) in ((0, False, False), (1, False, False)), text
    return done.returncode == 0, text.strip()


# -- what is verified


@pytest.mark.parametrize("sent", [[NEW], [NEW, OLD], [OLD, NEW]], ids=["one", "rotating", "rotating-back"])
@pytest.mark.parametrize("known", [NEW, f"{NEW} {STRANGE}", f"{STRANGE} {NEW}"], ids=["one", "first", "second"])
async def test_what_the_sink_signs_is_verified(posted: Post, program: list[str], sent: list[str], known: str) -> None:
    assert said(program, known, await posted(*sent)) == (True, f"verified: {DIGEST_ID}")


@pytest.mark.parametrize("body", [b"", b"\xff\x00\r\n", b"x" * 300_000], ids=["empty", "no-text", "large"])
async def test_any_bytes_are_verified(posted: Post, program: list[str], body: bytes) -> None:
    assert said(program, NEW, await posted(NEW, body=body))[0]


@pytest.mark.parametrize("after_s", [-290, 290])
async def test_clocks_may_be_apart(posted: Post, program: list[str], after_s: int) -> None:
    assert said(program, NEW, (await posted(NEW)).signed_again(NEW, after_s=after_s))[0]


async def test_a_signature_of_another_version_beside_ours_does_not_matter(posted: Post, program: list[str]) -> None:
    post = await posted(NEW)
    for signatures in (f"v1a,{'x' * 88} {post.signature}", f"{post.signature} v2,", f"v1 v1, , {post.signature}"):
        assert said(program, NEW, replace(post, signature=signatures))[0]


def flipped(body: bytes, place: int) -> bytes:
    return body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]


MISSING, WRONG, CLOCK, STAMP = "a header is missing", "no signature was made", "too far", "not a number of seconds"
REFUSED: dict[str, tuple[Change, str]] = {
    "another secret": (lambda post: post.signed_again(STRANGE), WRONG),
    "the first byte": (lambda post: replace(post, body=flipped(post.body, 0)), WRONG),
    "the last byte": (lambda post: replace(post, body=flipped(post.body, len(post.body) - 1)), WRONG),
    "a byte more": (lambda post: replace(post, body=post.body + b"\n"), WRONG),
    "a byte less": (lambda post: replace(post, body=post.body[:-1]), WRONG),
    "another id": (lambda post: replace(post, id=post.id[:-1] + "1"), WRONG),
    "another time": (lambda post: replace(post, timestamp=str(int(post.timestamp) - 1)), WRONG),
    "too old": (lambda post: post.signed_again(NEW, after_s=-310), CLOCK),
    "of the future": (lambda post: post.signed_again(NEW, after_s=310), CLOCK),
    "no id": (lambda post: replace(post, id=""), MISSING),
    "no timestamp": (lambda post: replace(post, timestamp=""), MISSING),
    "no signature": (lambda post: replace(post, signature=""), MISSING),
    "a version that is not known": (lambda post: replace(post, signature="v1a" + post.signature[2:]), WRONG),
    "no version": (lambda post: replace(post, signature=post.signature[3:]), WRONG),
    "another case": (lambda post: replace(post, signature="V1" + post.signature[2:]), WRONG),
    "half a signature": (lambda post: replace(post, signature=post.signature[:20]), WRONG),
    "more than a signature": (lambda post: replace(post, signature=post.signature + "="), WRONG),
    "an odd signature": (lambda post: replace(post, signature="v1,é😀"), WRONG),
    "a comma": (lambda post: replace(post, signature=","), WRONG),
    "a timestamp with a sign": (lambda post: replace(post, timestamp="+" + post.timestamp), STAMP),
    "a negative timestamp": (lambda post: replace(post, timestamp="-" + post.timestamp), STAMP),
    "a timestamp with a fraction": (lambda post: replace(post, timestamp=post.timestamp + ".0"), STAMP),
    "a timestamp of other digits": (lambda post: replace(post, timestamp="\u0661" * 10), STAMP),
    "a timestamp without an end": (lambda post: replace(post, timestamp="1" * 5_000), STAMP),
    "words for a timestamp": (lambda post: replace(post, timestamp="NaN"), STAMP),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused(posted: Post, program: list[str], name: str) -> None:
    change, why = REFUSED[name]
    verified, text = said(program, NEW, change(await posted(NEW)))
    assert not verified
    assert text.startswith("not verified: ")
    assert why in text


@pytest.mark.parametrize(
    "secret",
    ["whsec_", NEW.removeprefix("whsec_"), "whsec_" + base64.b64encode(b"x" * 23).decode(), NEW + "!", "whsec_ä"],
    ids=["empty", "no-prefix", "short", "no-base64", "no-ascii"],
)
async def test_a_secret_that_is_none_verifies_nothing(posted: Post, program: list[str], secret: str) -> None:
    post = await posted(NEW)
    for each in (post, replace(post, signature=signature([b""], post.id, int(post.timestamp), post.body))):
        verified, text = said(program, secret, each)
        assert not verified
        assert "a secret is whsec_ and the base64 of 24 to 64 bytes" in text
        assert secret.removeprefix("whsec_") not in text or secret == "whsec_"


async def test_no_secret_verifies_nothing(posted: Post, program: list[str]) -> None:
    assert not said(program, "", await posted(NEW))[0]


# It takes a timestamp for what Python's float() does, and base64 with more padding.
@pytest.mark.parametrize(
    "name", [name for name in REFUSED if "timestamp" not in name and name != "more than a signature"]
)
async def test_the_rules_own_package_refuses_the_same(posted: Post, name: str) -> None:
    post = REFUSED[name][0](await posted(NEW))
    headers = {"webhook-id": post.id, "webhook-timestamp": post.timestamp, "webhook-signature": post.signature}
    with pytest.raises((WebhookVerificationError, ValueError)):
        Verifier(NEW).verify(post.body, headers)


async def test_an_unsigned_post_is_no_post_to_trust(posted: Post) -> None:
    with pytest.raises(KeyError, match="webhook-signature"):
        await posted()


def test_now_is_the_time_of_each_attempt(program: list[str]) -> None:
    """What the sink signs now is within the tolerance: it signs each attempt anew."""
    now_s = int(time.time())
    post = Signed(BODY, DIGEST_ID, str(now_s), signature([signing_key(NEW)], DIGEST_ID, now_s, BODY))
    assert said(program, NEW, post)[0]
