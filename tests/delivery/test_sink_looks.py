"""What each kind of sink tells the doctor: of what it reached, and of what it did not."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from nsqdigest.base.findings import Doubt, Finding, Reached, State
from nsqdigest.config import parse_text
from nsqdigest.delivery.sinks import log, nsq, webhook
from nsqdigest.delivery.sinks.kind import Reach
from nsqdigest.delivery.sinks.table import KINDS

pytestmark = pytest.mark.unit

OK, NOTE, WARN, FAIL = State
DOUBT = Doubt("its certificate expires on 2027-01-01, in 1 day", "renew it")


def test_of_a_webhook_it_says_that_nothing_was_sent() -> None:
    (found,) = webhook.judged("w", "https://h", Reached("TLSv1.3, certificate not checked"))
    assert found == Finding(
        "w", OK,
        "https://h is reached; TLSv1.3, certificate not checked; "
        "nothing was sent, so its answer to a digest is not known",
    )  # fmt: skip


def test_a_doubt_about_the_webhooks_server_is_a_warning_about_the_sink() -> None:
    _, doubt = webhook.judged("w", "https://h", Reached("TLSv1.3", (DOUBT,)))
    assert doubt == Finding("w", WARN, DOUBT.detail, DOUBT.remedy)


def test_a_webhook_that_is_not_reached_has_the_remedy_of_the_message_or_names_its_option() -> None:
    assert webhook.unreached("w", "https://h", "no such name; correct it") == Finding(
        "w", FAIL, "https://h: no such name", "correct it"
    )
    assert webhook.unreached("w", "https://h", "Connection refused") == Finding(
        "w", FAIL, "https://h: Connection refused", "see that it runs, and the url of this sink (https://h)"
    )


async def test_hosts_that_come_from_events_are_not_connected_to() -> None:
    text = '[nsq]\nnsqd_tcp_addresses = ["h:1"]\n[sinks.w]\ntype = "webhook"\nurl = "https://{t}.example.com/s3cret"\n'
    text += '[[routes]]\ntopic = "t"\ntimeline = "{x}"\nsink = "w"\n'
    sink = parse_text(text, "f.toml", {}, KINDS).sinks["w"]
    assert isinstance(sink, webhook.WebhookSinkSettings)
    (found,) = await webhook.look(sink, cast(Reach, None))
    assert found == Finding(
        "w", NOTE, "https://{t}.example.com: its hosts come from events, so none was connected to",
        "nsqdigest test-sink sends to the host of one event",
    )  # fmt: skip


def test_of_a_sinks_nsqd_it_says_that_nothing_was_published() -> None:
    well, doubt = nsq.judged("queue", "h:4150", "digests", Reached("nsqd 1.3.0; in the clear", (DOUBT,)))
    assert well == Finding(
        "queue", OK,
        "h:4150: nsqd 1.3.0; in the clear; "
        "nothing was published, so whether digests may be published to is not known",
    )  # fmt: skip
    assert (doubt.what, doubt.state) == ("queue at h:4150", WARN)


def test_a_sinks_nsqd_that_is_down_is_a_failure_with_the_sinks_own_option() -> None:
    found = nsq.unreached("queue", "h:4150", "nsqd at h:4150: refused (connect)")
    assert (found.what, found.state, found.detail) == ("queue", FAIL, "h:4150: refused (connect)")
    assert "nsqd_tcp_addresses of this sink" in found.remedy


def test_where_a_log_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"")
    paths = ("-", str(tmp_path / "there"), str(tmp_path / "new"))
    assert [log.unwritable(path)[0] for path in paths] == ["", "", ""]
    assert not (tmp_path / "new").exists()
    assert log.unwritable(str(tmp_path))[0] == "is a folder"
    assert "there is no folder" in log.unwritable(str(tmp_path / "no" / "log"))[0]
