"""What a mail says and how its bytes are made: addresses, headers and parts from anything that a publisher sends."""

from __future__ import annotations

import html.parser
import json
import re
import time
import tomllib
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from nsqdigest.base.templates import Template
from nsqdigest.delivery.bodies.sample import digest_json, samples
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.mail import mime
from nsqdigest.delivery.mail.addresses import AddressError, Mailbox, address, mailbox, needs_utf8
from nsqdigest.delivery.mail.addressing import LONGEST_SUBJECT, Addressing, addressed, aim
from nsqdigest.delivery.mail.answers import GREYLISTED_S, Refusal, Stage, outcome_of, shown, verdict_of
from nsqdigest.delivery.mail.compose import Composer, Letterhead, Mail
from nsqdigest.delivery.mail.content import SUBJECT_CHARACTERS
from nsqdigest.delivery.mail.fragment import Fragment
from nsqdigest.delivery.mail.mime import Envelope, Part
from nsqdigest.delivery.mail.reading import for_people
from nsqdigest.delivery.targets import NoTarget, Source

ALERTS, OPS = Mailbox("alerts@example.com", "Alerts"), Mailbox("ops@example.com")
LETTERHEAD = Letterhead(ALERTS, Addressing([OPS]))
NAMES = Names("events", "payments", "mail")
SEEN_BY_NOBODY = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
TEXT = st.text(max_size=40) | st.sampled_from([
    "a\r\nBcc: evil@example.com", "=?utf-8?q?=0D=0ABcc:_x?=", "</td><script>alert(1)</script>", "\u202egnp.exe",
    "\x1b[31m", "--=_nsqdigest_01a1ede2-66fb-7c42-8d0e-3f1f1c9f7a10", "W" * 10_000, ".\r\n.\r\nQUIT", "\ud800",
    "{{ x }}", "&amp;&lt;", 'x" onmouseover="alert(1)',
])  # fmt: skip
EVENTS = st.lists(
    st.dictionaries(TEXT, TEXT | st.integers() | st.none() | st.lists(TEXT, max_size=2), max_size=4), min_size=1
)


def composed(events: list[dict[str, Any]], letterhead: Letterhead = LETTERHEAD, *, group: str = "kind") -> Mail:
    return Composer(letterhead)(digest_json(events, NAMES, (group,) if group else ()), {})


def parsed(content: bytes) -> EmailMessage:
    return message_from_bytes(content, policy=policy.default)


def part(mail: Mail, subtype: str) -> str:
    found = parsed(mail.content).get_body((subtype,))
    assert found is not None
    return str(found.get_content()).replace("\r\n", "\n")


# -- addresses


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ada@example.com", "ada@example.com"),
        ("ada.b+c_d-e'f@Mail.Example.com", "ada.b+c_d-e'f@Mail.Example.com"),
        ("ops@localhost", "ops@localhost"),
        ("ada@bücher.example", "ada@xn--bcher-kva.example"),
        ("zoe\u0308@example.com", "zoë@example.com"),
        ("संपर्क@example.com", "संपर्क@example.com"),
    ],
)
def test_an_address_is_taken_in_one_form(text: str, expected: str) -> None:
    assert address(text) == expected


@pytest.mark.unit
@pytest.mark.parametrize(
    "text",
    [
        "", "ada", "@x.org", "ada@", "a@b@c.org", "a b@c.org", "a,b@c.org", "<a@c.org>", '"a"@c.org', "a(b)@c.org",
        "a..b@c.org", ".a@c.org", "a.@c.org", "a@c..org", "a@.org", "a@c.org.", "a@-c.org", "a@[10.0.0.1]", "a%b@c.org",
        "b!a@c.org", "-a@c.org", "=?x?=@c.org", "a\r@c.org", "a\n@c.org", "a\0@c.org", "a@c.org\n", "a@c\u2028.org",
        "a\u202e@c.org", "a\u200d@c.org", "a😀@c.org", "\ud800@c.org", "x" * 65 + "@c.org", "x@" + "y." * 130 + "org",
        "a@stra\u00dfe.example", "a;b@c.org", "a:b@c.org", "a\\@c.org", "a`b`@c.org ",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(AddressError) as raised:
        address(text)
    assert str(raised.value).isprintable()
    assert "c.org" not in str(raised.value)


@pytest.mark.parametrize("text", ["a@" + "é." * 20_000, "a" + "\u0301\u0327" * 15_000 + "@example.com"])
def test_what_is_far_too_long_for_an_address_is_refused_without_a_look_at_all_of_it(text: str) -> None:
    began_s = time.process_time()
    with pytest.raises(AddressError, match="is longer than"):
        address(text)
    assert time.process_time() - began_s < 0.1


@pytest.mark.property
@given(st.text() | st.from_regex(r"[^@]{1,9}@[^@]{1,9}", fullmatch=True))
def test_an_address_that_passed_can_end_nothing_and_name_nobody_else(text: str) -> None:
    try:
        found = address(text)
    except AddressError:
        return
    assert re.fullmatch(r"[^\x00-\x20\x7f<>()\[\],;:\\\"%!@]+@[A-Za-z0-9_.-]+", found)
    assert found.isprintable()
    assert address(found) == found


@pytest.mark.unit
def test_a_mailbox_of_the_file_may_have_a_name() -> None:
    assert mailbox("Alerts of the shop <alerts@example.com>") == Mailbox("alerts@example.com", "Alerts of the shop")
    assert mailbox('"Shop, Alerts" <alerts@example.com>') == Mailbox("alerts@example.com", "Shop, Alerts")
    assert mailbox("<alerts@example.com>") == Mailbox("alerts@example.com")
    for text in ("A <a@b.c", "A <a@b.c> <d@e.f>", "A\u202e <a@b.c>", "A, B <a@b.c>", 'A" <a@b.c>', "A <>"):
        with pytest.raises(AddressError):
            mailbox(text)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("Alerts, Inc. <a@example.com>", """write '"Alerts, Inc." <a@example.com>'"""),
        ("Alerts (shop)<a@example.com>", """write '"Alerts (shop)" <a@example.com>'"""),
        ("O'Brien: Ops <a@example.com>", r'''write "\"O'Brien: Ops\" <a@example.com>"'''),
    ],
)
def test_a_name_that_needs_quotation_marks_is_printed_with_them(text: str, remedy: str) -> None:
    with pytest.raises(AddressError, match="has a name that needs quotation marks") as caught:
        mailbox(text)
    assert caught.value.remedy == remedy
    value = tomllib.loads("from = " + remedy.removeprefix("write "))["from"]
    assert mailbox(value).address == "a@example.com"


# -- bytes


def envelope(**fields: Any) -> Envelope:
    values: dict[str, Any] = {
        "id": "01a1", "sender": ALERTS, "to": [OPS], "reply_to": [], "subject": "s", "thread": "t", "unsubscribe": "",
        "date": datetime(2026, 11, 18, 9, 0, 0, 123_000, UTC),
    }  # fmt: skip
    return Envelope(**{**values, **fields})


@pytest.mark.property
@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))).map(lambda text: " ".join(text.split())))
def test_any_subject_of_one_line_is_read_back_as_it_was(text: str) -> None:
    content = mime.message(envelope(subject=text), [Part("plain", "x")])
    assert parsed(content)["subject"] == text
    assert content.isascii()
    assert max(map(len, content.split(b"\r\n"))) <= 78


@pytest.mark.property
@given(st.text().map(lambda text: text.encode("utf-8", "replace").decode().replace("\r", "")))
def test_any_text_is_read_back_as_it_was(text: str) -> None:
    content = mime.message(envelope(), [Part("plain", text), Part("html", text)])
    for subtype in ("plain", "html"):
        found = parsed(content).get_body((subtype,))
        assert found is not None
        raw = found.get_payload(decode=True)
        assert isinstance(raw, bytes)
        assert raw.decode().replace("\r\n", "\n").removesuffix("\n") == text.removesuffix("\n")
    assert content.isascii()
    assert b"\n" not in content.replace(b"\r\n", b"")


@pytest.mark.property
@given(st.text())
def test_no_header_can_be_ended_by_what_stands_in_it(text: str) -> None:
    named = (envelope(subject=text), envelope(unsubscribe=text), envelope(to=[Mailbox("a@b.c", text)]))
    for each in named:
        try:
            content = mime.message(each, [Part("plain", "x")])
        except ValueError:
            continue
        names = parsed(content).keys()
        assert set(names) <= {
            "From", "To", "Subject", "Date", "Message-ID", "In-Reply-To", "References", "Auto-Submitted", "Precedence",
            "List-Unsubscribe", "List-Unsubscribe-Post", "X-Nsqdigest-Id", "MIME-Version", "Content-Type",
            "Content-Transfer-Encoding",
        }  # fmt: skip
        assert len(names) == len({*names})


@pytest.mark.unit
def test_names_of_any_alphabet_are_read_back() -> None:
    for name in ("Alerts", "Shop, Alerts", "Störungen", "通知", "=?utf-8?q?x?="):
        content = mime.message(envelope(sender=Mailbox("alerts@example.com", name)), [Part("plain", "x")])
        (found,) = parsed(content)["from"].addresses
        assert (found.display_name, found.addr_spec) == (name, "alerts@example.com")


@pytest.mark.unit
def test_a_mail_of_the_same_digest_has_the_same_bytes_and_that_of_another_has_not() -> None:
    one, other = ({"message": text} for text in ("a", "b"))
    assert composed([one]).content == composed([one]).content != composed([other]).content


# -- what it says


@pytest.mark.unit
@pytest.mark.parametrize(
    ("kinds", "group", "subject"),
    [
        (["TimeoutError"] * 9 + ["CardDeclined"] * 5 + ["X"] * 3, "kind",
         "17 events · payments: TimeoutError ×9, CardDeclined ×5, X ×3"),
        (["a", "b", "c", "d"], "kind", "4 events · payments: a ×1, b ×1, c ×1, …"),
        (["TimeoutError"], "kind", "payments: TimeoutError: no answer"),
        (["no"], "kind", "payments: no answer"),
        (["a", "b"], "", "2 events · payments: no answer"),
        ([None, None], "kind", "2 events · payments: no answer"),
    ],
)  # fmt: skip
def test_the_subject_says_what_happened(kinds: list[str | None], group: str, subject: str) -> None:
    mail = composed([{"message": "no answer", "kind": kind} for kind in kinds], group=group)
    assert parsed(mail.content)["subject"] == subject


@pytest.mark.unit
def test_one_event_is_shown_with_its_fields_many_with_a_line_each() -> None:
    event = {"message": "failed", "trace": "a\n    b\nc", "user": {"id": 7}, "tags": ["x"], "none": None}
    text = part(composed([event]), "plain")
    assert '    trace:\n        a\n            b\n        c\n    user.id: 7\n    tags: ["x"]\n    none: null\n' in text
    many = part(composed([event] * 50), "plain")
    assert many.count("  failed") == 20
    assert "user.id" not in many
    assert "30 older events not shown" in many
    assert "2 superseded by newer ones" in many
    assert "The next digest comes not before 2026-11-18 09:05 UTC." in many


@pytest.mark.unit
def test_a_number_of_any_length_is_shown_cut_and_otherwise_as_it_was_written() -> None:
    body = digest_json([{"n": 1}], NAMES).replace(b'{"n": 1}', b'{"n": ' + b"9" * 5_000 + b', "f": 1.50, "k": 7}')
    text = part(Composer(LETTERHEAD)(body, {}), "plain")
    assert f"    n: {'9' * 299}…\n    f: 1.50\n    k: 7\n" in text


@pytest.mark.unit
def test_text_and_html_say_the_same() -> None:
    mail = composed([{"message": f"event {number}", "kind": "ab"[number % 2]} for number in range(30)])
    for each in (
        "30 events",
        "payments",
        "event 0",
        "event 19",
        "20 older",
        "09:05 UTC",
        "01a1ede2-66fb",
        "superseded",
    ):
        for subtype in ("plain", "html"):
            assert each.replace("20 older", "10 older") in part(mail, subtype)


@pytest.mark.unit
def test_digests_of_a_timeline_and_a_day_are_a_thread() -> None:
    def thread(timeline: str, day: int) -> str:
        body = digest_json([{}], Names("events", timeline, "mail")).replace(b"2026-11-18T09", b"2026-11-%dT23" % day)
        mail = Composer(LETTERHEAD)(body, {})
        message = parsed(mail.content)
        assert message["in-reply-to"] == message["references"]
        return str(message["references"])

    assert thread("a", 18) == thread("a", 18)
    assert len({thread("a", 18), thread("b", 18), thread("a", 19)}) == 3


@pytest.mark.property
@given(st.text(), st.text())
def test_a_fragment_escapes_what_is_no_fragment(one: str, other: str) -> None:
    fragment = Fragment("{{<p a='{always}'>{a}-{b}</p>}}", always="'x'")
    made = fragment(a=one, b=Fragment("<i>{c}</i>")(c=other))
    expected = f"{{<p a='&#39;x&#39;'>{escape(one)}-<i>{escape(other)}</i></p>}}"
    assert made == expected


class _Seen(html.parser.HTMLParser):
    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.urls += [value or "" for name, value in attrs if name in ("href", "src", "background")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.property
@given(EVENTS, TEXT)
def test_whatever_is_published_stays_text(events: list[dict[str, Any]], timeline: str) -> None:
    events = json.loads(json.dumps(events, ensure_ascii=False).encode("utf-8", "replace"))
    names = Names("events", timeline.encode("utf-8", "replace").decode() or "t", "mail")
    addressing = Addressing([OPS], None, Template.parse("https://example.com/{timeline}"))
    aimed = aim(addressing)
    assert aimed is not None
    try:
        texts = aimed.of(Source(*names[:2], b"{}")).texts
    except NoTarget:  # the URL would be too long
        return
    mail = Composer(Letterhead(ALERTS, addressing))(digest_json(events, names, ("kind",)), texts)
    message = parsed(mail.content)
    assert mail.recipients == ("ops@example.com",)
    assert len(message.keys()) == len({*message.keys()})
    assert message["bcc"] is None
    assert len(message["subject"]) <= SUBJECT_CHARACTERS
    page = _Seen()
    page.feed(part(mail, "html"))
    page.close()
    assert page.open == []
    assert page.tags <= {
        "html", "head", "meta", "title", "style", "body", "div", "table", "tr", "td", "h1", "strong", "span", "br", "a",
    }  # fmt: skip
    assert not {name for name in page.attributes if name.startswith("on")}
    assert all(url.startswith("https://example.com/") for url in page.urls)
    for text in (str(message["subject"]), part(mail, "plain"), part(mail, "html")):
        assert not SEEN_BY_NOBODY.search(text.replace("\n", ""))
    assert mail.content.isascii()


@pytest.mark.unit
@pytest.mark.parametrize("grouped", [False, True])
def test_every_sample_makes_a_mail(grouped: bool) -> None:
    for sample in samples(grouped=grouped):
        mail = Composer(LETTERHEAD)(sample.digest_json, {})
        assert not parsed(mail.content).defects
        assert for_people(mail.content).startswith("From: Alerts <alerts@example.com>\nTo: ops@example.com\nSubject: ")


@pytest.mark.unit
def test_who_is_named_twice_gets_one_mail() -> None:
    named = Addressing([OPS, Template.parse("{to}"), Mailbox("ops@example.com", "Ops")])
    aimed = aim(named)
    assert aimed is not None
    target = aimed.of(Source("r", "t", b'{"to": "ops@example.com"}'))
    assert target.shown == "ops@example.com"
    assert addressed(named, target.texts).to == [OPS]


@pytest.mark.unit
def test_a_sample_has_an_address_in_the_fields_that_have_to_be_one() -> None:
    aimed = aim(Addressing([Template.parse("{user.email}"), Template.parse("{team}@x.org")], Template.parse("{title}")))
    assert aimed is not None
    assert aimed.sample_fields == {
        ("user", "email"): "someone@example.com", ("team",): "team", ("title",): "title",
    }  # fmt: skip
    assert aim(Addressing([OPS])) is None


@pytest.mark.property
@given(st.text())
def test_a_subject_of_any_value_is_one_line_and_a_url_has_it_encoded(text: str) -> None:
    value = text.encode("utf-8", "replace").decode()
    templates = Template.parse("[{route}] {x}"), Template.parse("https://example.com/?u={x}")
    aimed = aim(Addressing([OPS], *templates))
    assert aimed is not None
    try:
        texts = aimed.of(Source("events", "t", json.dumps({"x": value}).encode())).texts
    except NoTarget:
        return
    assert texts["subject"].startswith("[events]")
    assert not SEEN_BY_NOBODY.search(texts["subject"])
    assert len(texts["subject"]) <= LONGEST_SUBJECT
    assert re.fullmatch(r"https://example\.com/\?u=[A-Za-z0-9_.~%-]*", texts["list_unsubscribe"])


@pytest.mark.unit
def test_an_address_of_another_alphabet_is_known() -> None:
    assert needs_utf8("zoë@example.com")
    assert composed([{}], Letterhead(ALERTS, Addressing([Mailbox("zoë@example.com")]))).needs_utf8
    assert not composed([{}]).needs_utf8


# -- answers


@pytest.mark.property
@given(st.sampled_from(Stage), st.integers(200, 599), st.text(max_size=300))
def test_an_outcome_has_the_codes_in_our_words_and_the_servers_text_apart(stage: Stage, code: int, text: str) -> None:
    outcome = outcome_of(Refusal(stage, code, text))
    assert re.fullmatch(rf"{code}( [245]\.[0-9]{{1,3}}\.[0-9]{{1,3}})?: [A-Za-z ,]+ \({stage}\)", outcome.cause)
    assert outcome.cause == shown(Refusal(stage, code, text))
    assert outcome.answer == text
    assert outcome.verdict is verdict_of(Refusal(stage, code, text))
    assert outcome.retry_after_s in (0, GREYLISTED_S)
