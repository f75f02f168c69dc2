"""What a URL and headers become on the wire, and what is refused before anything is sent."""

from __future__ import annotations

import base64

import pytest

from nsqdigest.base.http.target import head_of, header_lines, path_of, target_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "host", "port", "host_header", "path"),
    [
        ("http://example.com", "example.com", 80, "example.com", "/"),
        ("http://example.com:80/hook", "example.com", 80, "example.com", "/hook"),
        ("https://example.com/hook", "example.com", 443, "example.com", "/hook"),
        ("https://example.com:8443/hook", "example.com", 8443, "example.com:8443", "/hook"),
        ("http://EXAMPLE.com/Hook", "example.com", 80, "example.com", "/Hook"),
        ("http://[::1]:8080/", "::1", 8080, "[::1]:8080", "/"),
        ("http://[fe80::1%25eth0]/", "fe80::1%eth0", 80, "[fe80::1]", "/"),
        ("http://bücher.example/", "xn--bcher-kva.example", 80, "xn--bcher-kva.example", "/"),
        ("http://example.com?x=1", "example.com", 80, "example.com", "/?x=1"),
        ("http://a.example/../b%2Fc%7e?x=%20&y=a+b#part", "a.example", 80, "a.example", "/../b%2Fc%7e?x=%20&y=a+b"),
        ("http://example.com/ü?q=ß", "example.com", 80, "example.com", "/%C3%BC?q=%C3%9F"),
    ],
)  # fmt: skip
def test_a_url_says_where_to_connect_and_what_to_ask_for(
    url: str, host: str, port: int, host_header: str, path: str
) -> None:
    target = target_of(url)
    assert (target.host, target.port, target.host_header, target.path) == (host, port, host_header, path)
    assert target.tls == url.startswith("https")


def test_a_login_in_the_url_becomes_basic_authorization() -> None:
    target = target_of("https://us%40er:p%3Ass@example.com/hook")
    assert target.authorization == "Basic " + base64.b64encode(b"us@er:p:ss").decode()
    assert "authorization: Basic" in head_of(target, {})
    assert "p:ss" not in repr(target)
    assert "Basic" not in repr(target)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a\r\nx: y",
        "http://example.com/a b",
        "http://exa\nmple.com/",
        "ftp://example.com/",
        "//example.com/",
        "http:///hook",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://a..b/",
        "http://faß.example/",
        "http://exa%0d%0ample.com/",
        "http://example.com%2fpath/",
        "http://[::1/",
    ],
)
def test_a_url_that_cannot_be_sent_is_refused(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        target_of(url)


@pytest.mark.parametrize("path", ["hook", "/a\rb", "/a b", "http://elsewhere/", ""])
def test_a_path_that_cannot_be_sent_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        path_of(path)


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "a\rb", "a\0b", "\x7f"])
def test_a_header_that_would_be_more_than_one_line_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        header_lines([("x", value)])


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "ü"])
def test_a_header_needs_a_proper_name(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        header_lines([(name, "value")])


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "Connection"])
def test_framing_is_no_business_of_the_caller(name: str) -> None:
    with pytest.raises(ValueError, match="set by the client"):
        header_lines([(name, "1")])


def test_a_tab_and_letters_of_any_language_are_sent_in_values() -> None:
    assert header_lines([("x", "a\tü")]) == "x: a\tü\r\n"


def test_a_header_that_is_given_replaces_the_one_that_is_set() -> None:
    head = head_of(target_of("http://user@example.com/"), {"Host": "other", "Authorization": "Bearer x"})
    assert head.lower().count("host:") == 1
    assert head.lower().count("authorization:") == 1
    assert "Host: other\r\n" in head
    assert "accept-encoding: identity\r\n" in head


@pytest.mark.parametrize(
    ("url", "shown"), [("http://[::1]:81/secret", "[::1]:81"), ("https://example.com/secret", "example.com:443")]
)
def test_shown_it_is_host_and_port(url: str, shown: str) -> None:
    assert str(target_of(url)) == shown
    assert "secret" not in repr(target_of(url))


def test_a_dot_at_the_end_of_a_name_is_not_part_of_what_a_certificate_names() -> None:
    assert target_of("https://example.com./").server_name == "example.com"
