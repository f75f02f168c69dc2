"""Templates and paths: what they are made of, and that nothing which another language would fill in passes as text."""

from __future__ import annotations

from typing import Any

import pytest

from nsqdigest.base.templates import Template, TemplateError, check_path, path_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("all", ("all",)),
        ("{user}", (("user",),)),
        ("{user.id}", (("user", "id"),)),
        ("user:{user.id}", ("user:", ("user", "id"))),
        ("{a}{b}", (("a",), ("b",))),
        ("{a}-{b.c}-", (("a",), "-", ("b", "c"), "-")),
        ("{user name}", (("user name",),)),
        ("{größe}", (("größe",),)),
        ("{@type}", (("@type",),)),
        ("issue #{number}", ("issue #", ("number",))),
        ("5 $ {a} 100 %", ("5 $ ", ("a",), " 100 %")),
    ],
)
def test_a_template_is_literal_text_and_paths(text: str, parts: tuple[Any, ...]) -> None:
    assert Template.parse(text).parts == parts


def test_the_fields_of_a_template_are_its_paths_in_order() -> None:
    assert Template.parse("{b.c}:{a}").fields == ("b.c", "a")


def refusal(text: str) -> str:
    with pytest.raises(TemplateError) as caught:
        Template.parse(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("{{ user }}", "{user}"),
        ("{{user}}", "{user}"),
        ("{{.user}}", "{user}"),
        ("{{ user.id | lower }}", "{user.id}"),
        ("user:{{- user.id -}}", "user:{user.id}"),
        ("${user}", "{user}"),
        ("user:$user", "user:{user}"),
        ("$(user)", "{user}"),
        ("%{user}", "{user}"),
        ("%(user)s", "{user}"),
        ("<%= user %>", "{user}"),
        ("{{ tenant }}:{user}", "{tenant}:{user}"),
        ("{{{user}}}", ""),
        ("{% if user %}x{% endif %}", ""),
        ("{# user #}", ""),
        ("a {{", ""),
    ],
)
def test_a_template_of_another_language_is_refused_with_ours(text: str, meant: str) -> None:
    remedy = f'write "{meant}"' if meant else 'write one like "user:{user.id}"'
    assert refusal(text) == f"is a template of another language; {remedy}"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("{user[0]}", 'write it like "user.id"'),
        ("a:{users[].id}", 'write it like "user.id"'),
        ("{$.user.id}", 'write "{user.id}"'),
        ("{.user}", 'write "{user}"'),
        ("{/user/id}", 'write "{user.id}"'),
        ("{user['id']}", 'write "{user.id}"'),
        ("to:{user|lower}", 'write "to:{user}"'),
        ("{user!r}", 'write "{user}"'),
        ("{ user }", 'write "{user}"'),
        ("{lower(user)}", 'write it like "user.id"'),
        ("{user.*}", 'write it like "user.id"'),
        ("{}", 'write it like "user.id"'),
        ("{a.}", 'write "{a}"'),
        ("{a..b}", 'write it like "user.id"'),
        ('{a"b}', 'write it like "user.id"'),
        ("{a\\b}", 'write it like "user.id"'),
        ("{a\nb}", 'write it like "user.id"'),
    ],
)
def test_what_is_no_path_within_braces_is_refused(text: str, remedy: str) -> None:
    said = refusal(text)
    assert "is not a path of a field" in said
    assert said.endswith(f"; {remedy}")
    assert "\n" not in said


@pytest.mark.parametrize("text", ["{", "}", "user:{id", "user:id}", "{a{b}"])
def test_a_brace_encloses_a_field(text: str) -> None:
    assert 'has a lone "' in refusal(text)


def test_an_empty_template_is_refused() -> None:
    assert refusal("") == 'is empty; write one like "user:{user.id}"'


def test_a_path_is_its_names() -> None:
    assert check_path("a.b.c") == ("a", "b", "c")


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", " a", "a .b", 'a"', "a\x00", "$.a", "a[0]", "/a/b"])
def test_a_path_that_can_not_be_one_is_refused(text: str) -> None:
    with pytest.raises(TemplateError):
        check_path(text)


@pytest.mark.parametrize(
    ("text", "path"), [("at", "at"), ("meta.at", "meta.at"), ("{meta.at}", "meta.at"), ("@timestamp",) * 2]
)
def test_where_a_field_is_named_braces_may_stand_around_it(text: str, path: str) -> None:
    assert path_of(text) == path


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("{{ at }}", 'write "at"'),
        ("${at}", 'write "at"'),
        ("at:{x}", 'write "x"'),
        ("$.meta.at", 'write "meta.at"'),
        ("/meta/at", 'write "meta.at"'),
        ("{a}{b}", 'write one like "meta.at"'),
        ("meta[0]", 'write it like "user.id"'),
    ],
)
def test_where_a_field_is_named_no_other_template_passes(text: str, remedy: str) -> None:
    with pytest.raises(TemplateError) as caught:
        path_of(text)
    assert str(caught.value).endswith(f"; {remedy}")
