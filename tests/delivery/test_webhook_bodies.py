"""What a webhook posts in place of the digest's JSON, to a real receiver; what it does where a template fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from nsqdigest.base.reasons import Verdict
from nsqdigest.config import ConfigError, Secret, parse_text
from nsqdigest.delivery.bodies.base import BodyFailed
from nsqdigest.delivery.bodies.sample import digest_json
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.sinks.base import OutgoingDigest
from nsqdigest.delivery.sinks.rendering import Rendering
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.delivery.sinks.template_files import TemplateFile
from nsqdigest.delivery.sinks.webhook import Webhook, WebhookSinkSettings
from support.chats import slack_takes, teams_takes
from support.receiver import Receiver
from support.waiting import until

pytestmark = pytest.mark.integration

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = digest_json([{"message": "a"}, {"message": "b"}], Names("events", "user:42", "out"))
DIGEST = OutgoingDigest("id", "events", "user:42", 1, 2, BODY)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


Make = Callable[..., Webhook]


@pytest.fixture
async def webhook(receiver: Receiver) -> AsyncIterator[Make]:
    made: list[Webhook] = []

    def make(text: str = "", **changes: Any) -> Webhook:
        settings: dict[str, Any] = {
            "name": "out", "type": "webhook", "concurrency": 8, "timeout_ms": 5_000, "max_attempts": 0,
            "max_age_ms": 60_000, "retry_base_ms": 1_000, "retry_cap_ms": 1_000, "retry_after_max_ms": 1_000,
            "max_body_bytes": 65_536, "url": receiver.url, "allow_http": True, "secrets": (), "headers": {},
            "template": TemplateFile("message.json.j2", text) if text else None,
        }  # fmt: skip
        made.append(Webhook(WebhookSinkSettings(**(settings | changes))))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def test_formats_post_what_slack_and_teams_take(receiver: Receiver, webhook: Make) -> None:
    for form, takes in (("slack", slack_takes), ("teams", teams_takes)):
        assert (await webhook(format=form).deliver(DIGEST)).verdict is Verdict.DELIVERED
        takes(receiver.posts[-1].body)
        assert receiver.posts[-1].headers["content-type"] == "application/json"


async def test_the_digest_goes_out_as_it_is_where_nothing_else_is_chosen(receiver: Receiver, webhook: Make) -> None:
    await webhook().deliver(DIGEST)
    assert receiver.posts[-1].body == BODY


async def test_a_template_is_posted_with_its_content_type(receiver: Receiver, webhook: Make) -> None:
    await webhook("{{ data.total }} in {{ data.timeline }}", content_type="text/plain").deliver(DIGEST)
    assert receiver.posts[-1].body == b"2 in user:42"
    assert receiver.posts[-1].headers["content-type"] == "text/plain"


async def test_what_is_signed_is_what_goes_out_and_each_attempt_has_the_same_bytes(
    receiver: Receiver, webhook: Make
) -> None:
    sink = webhook('{"text": "{{ data.total }} in {{ data.timeline }}"}', secrets=(Secret(SECRET),))
    for attempt in (1, 2):
        assert (await sink.deliver(DIGEST._replace(attempt=attempt))).verdict is Verdict.DELIVERED
    first, second = receiver.posts
    assert Verifier(SECRET).verify(first.body, dict(first.headers)) == {"text": "2 in user:42"}
    assert first.body == second.body


async def test_where_a_template_fails_nothing_is_posted_and_the_outcome_names_file_line_and_remedy(
    receiver: Receiver, webhook: Make
) -> None:
    sink = webhook('{\n"a": "{{ data.records[0].value.user }}"}')
    outcome = await sink.deliver(DIGEST)
    assert outcome.verdict is Verdict.UNRENDERED
    assert outcome.cause.startswith('message.json.j2:2: "user" is not there; write {{ … | default("") }}')
    assert receiver.posts == []


async def test_a_template_that_computes_for_long_holds_nobody_up_but_its_sink(
    receiver: Receiver, webhook: Make
) -> None:
    endless = webhook("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}")
    quick = webhook(format="slack")
    slow = asyncio.gather(*(endless.deliver(DIGEST) for _ in range(3)))
    began_s = time.monotonic()
    for _ in range(10):
        assert (await quick.deliver(DIGEST)).verdict is Verdict.DELIVERED
    assert not slow.done(), f"ten posts took {time.monotonic() - began_s:.1f} s"
    assert {outcome.verdict for outcome in await slow} == {Verdict.UNRENDERED}


async def test_a_body_that_does_not_come_is_an_outcome_within_the_time_out() -> None:
    may_end = asyncio.Event()
    ended: list[bool] = []

    def hangs(_: bytes) -> bytes:
        while not may_end.is_set():
            time.sleep(0.01)
        ended.append(True)
        return b""

    rendering = Rendering(hangs, "slow.j2", 0.1, "out")
    found = [await rendering.of(b"{}") for _ in range(2)]
    assert [each.verdict for each in found if not isinstance(each, bytes)] == [Verdict.UNRENDERED] * 2
    assert "slow.j2: no body within 0.1 s" in str(found[0])
    may_end.set()
    await until(lambda: len(ended) == 2, 5, "the thread to go on")
    rendering.close()


@pytest.mark.parametrize(
    ("path", "has_templates", "cause"),
    [
        ("slow.j2", False, "slow.j2: no body within 0.1 s; make the template shorter"),
        ("", True, "no body within 0.1 s; make the template shorter"),
        ("", False, "no body within 0.1 s: the machine is too busy; give it more CPU, or raise the sink's timeout"),
    ],
)
async def test_a_template_is_blamed_only_where_there_is_one(path: str, has_templates: bool, cause: str) -> None:
    may_end = threading.Event()

    def hangs(_: bytes) -> bytes:
        may_end.wait()
        return b""

    rendering = Rendering(hangs, path, 0.1, "out", has_templates=has_templates)
    outcome = await rendering.of(b"{}")
    may_end.set()
    rendering.close()
    assert not isinstance(outcome, bytes)
    assert (outcome.verdict, outcome.cause) == (Verdict.UNRENDERED, cause)


async def test_what_quotes_an_event_is_the_answer_and_never_the_detail() -> None:
    def fails(_: bytes) -> bytes:
        raise BodyFailed("fails with ValueError", "test the values before", 3, "ValueError: s3cret")

    outcome = await Rendering(fails, "x.j2", 1, "out").of(b"{}")
    assert not isinstance(outcome, bytes)
    assert (outcome.cause, outcome.answer) == (
        "x.j2:3: fails with ValueError; test the values before", "ValueError: s3cret",
    )  # fmt: skip


# -- in the file

FILE = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:4150"]

[sinks.hook]
type = "webhook"
url = "{url}"
secret = "{secret}"
{body}

[[routes]]
topic = "events"
timeline = "{{user}}"
sink = "hook"
"""


def read(folder: Path, body: str, url: str = "https://example.com/hook", secret: str = SECRET) -> Any:
    return parse_text(FILE.format(url=url, body=body, secret=secret), str(folder / "nsqdigest.toml"), {}, KINDS)


def problems(folder: Path, body: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(folder, body)
    return [each.replace(f"{folder}/", "") for each in raised.value.problems]


def test_a_template_is_read_from_the_folder_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "message.json.j2").write_text('"{{ data.total }}"')
    config = read(tmp_path, 'body = "file:message.json.j2"')
    assert config.sinks["hook"].template.text == '"{{ data.total }}"'
    assert config.warnings == ()


def test_check_names_the_template_and_its_line(tmp_path: Path) -> None:
    (tmp_path / "message.json.j2").write_text('{\n  "text": "{{ data.totl }}"\n}')
    (problem,) = problems(tmp_path, 'body = "file:message.json.j2"')
    assert problem.startswith(
        'message.json.j2:2: sinks.hook.body: "totl" is not there (sample: one event); did you mean'
    )


def test_a_field_that_events_may_lack_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "message.json.j2").write_text('"{{ data.records[0].value.message }}"')
    (warning,) = read(tmp_path, 'body = "file:message.json.j2"').warnings
    assert 'message.json.j2:1: sinks.hook.body: fails for events that lack a field: "message" is not there' in warning


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('body = "message.json.j2"', "does not name a file; write one like"),
        ('body = "env:BODY"', "does not name a file; write one like"),
        ('body = "file:missing.j2"', "which is not there; make it"),
        ('body = "file:."', "which is a folder; name a file in it"),
        ('body = "file:large.j2"', "which is larger than 64 KiB"),
        ('body = "file:latin.j2"', "which is not UTF-8"),
        ('body = "file:open.j2"', "which every user of this machine may write; run: chmod o-w"),
        ('body = "file:fine.j2"\nformat = "slack"', 'format = "slack" has a body already; leave one of the two out'),
        ('content_type = "text/plain"', "is of a body of your own, and there is none"),
        ('body = "file:fine.j2"\ncontent_type = "text"', "is not a content type; write one like"),
        ('body = "file:fine.j2"\ncontent_type = "text/plain\\r\\nx: y"', "is not a content type; write one like"),
        ('format = "slak"', 'write "slack"'),
    ],
)
def test_mistakes_have_a_remedy(tmp_path: Path, body: str, problem: str) -> None:
    for name, content in (("large", b"x" * 70_000), ("latin", b"\xe9"), ("open", b"1"), ("fine", b"1")):
        (tmp_path / f"{name}.j2").write_bytes(content)
    (tmp_path / "open.j2").chmod(0o666)
    (only,) = problems(tmp_path, body)
    assert problem in only


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/x", "slack"),
        ("https://prod-1.westeurope.logic.azure.com/workflows/x", "teams"),
        ("https://x.webhook.office.com/webhookb2/x", "teams"),
    ],
)
def test_a_digest_that_its_receiver_does_not_take_is_warned_about(tmp_path: Path, url: str, form: str) -> None:
    (warning,) = read(tmp_path, "", url).warnings
    assert f'does not take the JSON of a digest; write format = "{form}"' in warning
    assert read(tmp_path, f'format = "{form}"', url, secret="").warnings == ()
