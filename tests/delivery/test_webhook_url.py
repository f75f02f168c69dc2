"""webhook_url.py: a URL with fields of events, and every value that a publisher could put into one."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.http.target import target_of
from nsqdigest.config.problems import Wrong
from nsqdigest.delivery.sinks.webhook_url import aim_of, fixed_parts, has_host_fields, shown_origin, webhook_url
from nsqdigest.delivery.targets import NoTarget, Source, Target

pytestmark = pytest.mark.unit

URL = "https://{tenant}.example.com:8443/hook/{user.id}/s3cret?kind={kind}"


def aimed(url: str, **event: object) -> Target:
    aim = aim_of(webhook_url(url))
    assert aim is not None
    return aim.of(Source("events", "user:42", json.dumps(event).encode()))


def url_of(target: Target) -> str:
    return target.texts["origin"] + target.texts["path"]


def test_a_url_without_fields_is_one_place() -> None:
    assert aim_of("https://example.com/hook") is None
    assert not has_host_fields("https://example.com/hook")


def test_every_field_stands_in_its_place() -> None:
    target = aimed(URL, tenant="acme", user={"id": "a/b ü?&#"}, kind="x=y&z")
    assert url_of(target) == "https://acme.example.com:8443/hook/a%2Fb%20%C3%BC%3F%26%23/s3cret?kind=x%3Dy%26z"
    assert target.texts["host"] == "acme.example.com"


def test_the_fixed_text_of_its_path_is_never_shown() -> None:
    target = aimed(URL, tenant="acme", user={"id": "ada"}, kind="order")
    assert target.shown == "https://acme.example.com:8443/…ada…order…"
    assert shown_origin(URL) == "https://{tenant}.example.com:8443"
    assert shown_origin("https://example.com/s3cret/{user.id}") == "https://example.com"
    assert aimed("https://{tenant}.example.com/s3cret", tenant="a").shown == "https://a.example.com/…"
    assert aimed("https://{tenant}.example.com", tenant="a").shown == "https://a.example.com/"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://hook-{t}-x.Example.com/", "https://hook-ab-x.example.com/"),
        ("https://{t}.example.com./x", "https://ab.example.com/x"),
        ("https://{t}.{u}.example.com?q={v}", "https://ab.cd.example.com/?q=e"),
        ("https://example.com/{route}/{timeline}/{.route}", "https://example.com/events/user%3A42/f"),
        ("http://127.0.0.1:8080/{t}", "http://127.0.0.1:8080/ab"),
    ],
)
def test_templates(url: str, expected: str) -> None:
    assert (
        url_of(aimed(url, t="AB" if "://{t}" in url or "-{t}" in url else "ab", u="cd", v="e", route="f")) == expected
    )


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("{url}", "is a template that does not begin with https://"),
        ("{scheme}://example.com/", "is a template that does not begin with https://"),
        ("ht{x}://example.com/", "is a template that does not begin with https://"),
        ("https://{host}/hook", "has a field in the last part of its host"),
        ("https://{host}./hook", "has a field in the last part of its host"),
        ("https://www.{domain}/hook", "has a field in the last part of its host"),
        ("https://10.0.0.{x}/", "has a field in the last part of its host"),
        ("https://10.{x}.0.1/", "has a field in an IP address"),
        ("https://{x}.0x7f/", "has a field in an IP address"),
        ("https://[2001::{x}]/", "has a field in an IP address"),
        ("https://[::1]:{x}/", "has a field in an IP address"),
        ("https://example.com:{port}/", "has a field in its port"),
        ("https://example.com:8{port}/", "has a field in its port"),
        ("https://{user}@example.com/", "holds a user's name or password"),
        ("https://u:{p}@example.com/", "holds a user's name or password"),
        ("https://example.com\\{x}.example.net/", "has a host that is neither a name nor an IP address"),
        ("https://{x}.bücher.example/", "has a host with a field and with letters beyond ASCII"),
        ("https://example.com/#{x}", "has a #, which is never sent"),
        ("https://example.com/a {x}", "has a blank or a control character"),
        ("ftp://{x}.example.com/", "is not the URL of a webhook"),
        ("https://{{ x }}.example.com/", "is a template of another language"),
        ("https://${x}.example.com/", "is a template of another language"),
        ("https://{x[0]}.example.com/", 'has "{x[0]}", which is not a path of a field'),
    ],
)
def test_mistakes_name_their_place_and_hide_the_rest(url: str, problem: str) -> None:
    with pytest.raises(Wrong) as raised:
        webhook_url(url.replace(".com/", ".com/s3cret/"))
    assert problem in raised.value.mistake
    assert "s3cret" not in raised.value.mistake + raised.value.hidden_remedy


HOSTILE = [
    "", ".", "..", "../..", "..\\..", "a/../b", "/", "//evil.example", "\\\\evil.example", "@evil.example", "a@b",
    "a:b@c", "evil.example", "evil.example/", "evil.example#", "evil.example?", "127.0.0.1", "2130706433",
    "0x7f000001", "0177.0.0.1", "[::1]", "::1", "localhost.", "a.", ".a", "a..b", "xn--bcher-kva", "XN--80ak6aa92e",
    "bücher", "\u0430pple", "a\u3002b", "a\uff0eb", "\u212a", "-a", "a-", "a_b", "a b", "a\tb", "a\nb",
    "a\r\nhost: evil", "a\0b", "%2e%2e", "%2f", "%00", "a%0d%0ab", "a\u202eb", "a\u2028b", "\x1b[31m", "x" * 64,
    "x" * 5000, "?", "#", "&", ";", "{x}", "${x}", "😀",
]  # fmt: skip
GOOD_LABELS = {"2130706433", "0x7f000001"}
"""Of a longer name they are labels like others."""


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_in_the_host(value: str) -> None:
    """There is no target, or the value is one label below the domain of the file."""
    if value in GOOD_LABELS:
        assert aimed("https://{x}.example.com/hook", x=value).texts["host"] == f"{value}.example.com"
        return
    with pytest.raises(NoTarget) as raised:
        aimed("https://{x}.example.com/hook", x=value)
    assert len(value) < 3 or value not in str(raised.value)


@pytest.mark.parametrize(
    "place", ["https://example.com/a/{x}/b", "https://example.com/{x}", "https://example.com/?a={x}&b=1"]
)
@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_behind_the_host(place: str, value: str) -> None:
    """There is no target, or a receiver reads exactly this value in exactly this place."""
    try:
        url = url_of(aimed(place, x=value))
    except NoTarget:
        assert (
            not value
            or len(value) > 4000
            or {".", ".."} & set(value.replace("\\", "/").split("/"))
            or not value.isprintable()
        )
        return
    assert re.fullmatch(r"[!-~]+", url)
    parts, expected = urlsplit(url), urlsplit(place)
    assert (parts.scheme, parts.netloc, parts.fragment) == ("https", "example.com", "")
    found = (
        parts.query.split("&")[0].removeprefix("a=")
        if expected.query
        else parts.path.split("/")[-2 if "/b" in place else -1]
    )
    assert unquote(found) == value
    assert (parts.path.count("/"), parts.query.count("&")) == (expected.path.count("/"), expected.query.count("&"))
    assert target_of(url).host == "example.com"


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_whatever_stands_in_the_fields_the_domain_stays(host: str, path: str, query: str) -> None:
    try:
        target = aimed("https://{a}.example.com/{b}?c={c}", a=host, b=path, c=query)
    except NoTarget:
        return
    reached = target_of(url_of(target))
    assert re.fullmatch(r"[a-z0-9-]+\.example\.com", reached.host)
    assert (reached.port, reached.tls, reached.authorization) == (443, True, "")
    assert target.shown.isprintable()


def test_a_label_too_long_or_of_another_alphabet_is_no_host() -> None:
    with pytest.raises(NoTarget, match="longer than a name can be"):
        aimed("https://{x}.example.com/", x="a" * 64)
    with pytest.raises(NoTarget, match="xn--"):
        aimed("https://x{x}.example.com/", x="n--bcher-kva")
    with pytest.raises(NoTarget, match="hyphen"):
        aimed("https://{x}.example.com/", x="-a")


@pytest.mark.parametrize("url", ["https://example.com/.{a}/x", "https://example.com/{a}{a}/x"])
def test_a_dot_does_not_become_two(url: str) -> None:
    with pytest.raises(NoTarget, match="a part of a path"):
        aimed(url, a=".")


def test_the_rules_of_a_url_see_a_letter_for_each_field() -> None:
    assert fixed_parts(URL) == "https://x.example.com:8443/hook/x/s3cret?kind=x"
