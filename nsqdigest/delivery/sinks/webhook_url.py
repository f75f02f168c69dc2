"""The URL of a webhook: what may stand in the file, and what becomes of one that is a template.

    https://{tenant}.example.com/hook/{user.id}?kind={kind}

Invariants:
- Fields stand in the host, the path and the query, never in the scheme, the port or a login, and never in the last
  label of the host: a field may not choose the top-level domain.
- In the host a value is part of one label: letters, digits and hyphens. Elsewhere it is percent-encoded whole, and
  cannot become "." or ".." as a segment of a path.
- Nothing of a URL gets into a message but its host and the names of its fields.
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from nsqdigest.base.host_names import has_bad_length, has_two_names, is_url_host
from nsqdigest.base.http.target import path_of
from nsqdigest.base.templates import Template, TemplateError
from nsqdigest.config import texts
from nsqdigest.config.problems import Wrong
from nsqdigest.delivery import targets
from nsqdigest.delivery.targets import Aim, Encode, NoTarget, Source, Target

EXAMPLE = "https://example.com/hook"
_LIKE = f"write one like {EXAMPLE}"
_TEMPLATE_LIKE = "write one like https://{tenant}.example.com/hook/{user.id}"
LONGEST_URL = 4096
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_PART_OF_A_LABEL = re.compile(r"[a-z0-9-]+")
_SLASHES = re.compile(r"[/\\]")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_FIELD = "x"
"""In the place of a field, for the rules of a URL."""


# -- in the file


def webhook_url(text: str) -> str:
    if not targets.is_template(text):
        return _fixed(text)
    try:
        template = targets.parse(text)
    except TemplateError as error:
        raise Wrong(error.problem, error.remedy, _TEMPLATE_LIKE) from None
    layout = _layout(template)
    _check_places(layout)
    _fixed(layout.text)
    _check_host_fields(layout)
    return text


def _fixed(text: str) -> str:
    parts = texts.url_parts(text, EXAMPLE)
    if parts.scheme not in ("http", "https"):
        raise Wrong("is not the URL of a webhook", _LIKE)
    if not parts.hostname:
        raise Wrong("names no host", _LIKE)
    if has_two_names(unquote(parts.hostname)):
        raise Wrong("has a host with a letter for which there are two standards", "write its name as xn--…")
    if not is_url_host(parts.hostname):
        raise Wrong("has a host that is neither a name nor an IP address", _LIKE)
    if "@" in parts.netloc:
        raise Wrong("holds a user's name or password", 'leave it out; write headers = {authorization = "env:NAME"}')
    if parts.fragment:
        raise Wrong("has a #, which is never sent", "leave out what follows it")
    return text


class _Layout(NamedTuple):
    """A URL with `x` in the place of each field."""

    text: str
    fields: tuple[tuple[int, int], ...]
    """Of each: its number among the template's parts, and where it stands in `text`."""
    authority: tuple[int, int]
    """Where it begins and ends."""

    def is_of_host(self, place: int) -> bool:
        return self.authority[0] <= place < self.authority[1]


def _layout(template: Template) -> _Layout:
    text, fields = "", []
    for number, part in enumerate(template.parts):
        if isinstance(part, tuple):
            fields.append((number, len(text)))
        text += part if isinstance(part, str) else _FIELD
    _, scheme_ends, _ = text.partition("://")
    begin = text.find("://") + 3 if scheme_ends else len(text)
    ends = re.compile(r"[/?#]").search(text, begin)
    return _Layout(text, tuple(fields), (begin, ends.start() if ends else len(text)))


def _check_places(layout: _Layout) -> None:
    begin, end = layout.authority
    port = layout.text.find(":", begin, end) if "@" not in layout.text[begin:end] else -1
    if any(place < begin for _, place in layout.fields):
        raise Wrong("is a template that does not begin with https://", _TEMPLATE_LIKE)
    if "[" in layout.text[begin:end] and any(map(layout.is_of_host, (place for _, place in layout.fields))):
        raise Wrong("has a field in an IP address", _TEMPLATE_LIKE)
    if any(begin <= port < place < end for _, place in layout.fields):
        raise Wrong("has a field in its port", "write the port")


def _check_host_fields(layout: _Layout) -> None:
    begin, end = layout.authority
    host = layout.text[begin:end].partition(":")[0]
    last_label = begin + host.removesuffix(".").rfind(".") + 1
    for place in (place for _, place in layout.fields if layout.is_of_host(place)):
        if place >= last_label:
            raise Wrong("has a field in the last part of its host, so that events decide the domain", _TEMPLATE_LIKE)
        if not host.isascii():
            raise Wrong("has a host with a field and with letters beyond ASCII", "write its name as xn--…")
        if _NUMBER.fullmatch(host[last_label - begin :].removesuffix(".")):
            raise Wrong("has a field in an IP address", _TEMPLATE_LIKE)


def has_host_fields(url: str) -> bool:
    if not targets.is_template(url):
        return False
    layout = _layout(targets.parse(url))
    return any(layout.is_of_host(place) for _, place in layout.fields)


def fixed_parts(url: str) -> str:
    """The URL with `x` in the place of each field."""
    return _layout(targets.parse(url)).text if targets.is_template(url) else url


def shown_origin(url: str) -> str:
    """For logs and messages: without the path, which may be a credential."""
    if not has_host_fields(url):
        parts = urlsplit(fixed_parts(url))
        return f"{parts.scheme}://{parts.netloc}"
    template = targets.parse(url)
    layout = _layout(template)
    shown, place = "", 0
    for part in template.parts:
        text = part if isinstance(part, str) else f"{{{'.'.join(part)}}}"
        length = len(part) if isinstance(part, str) else len(_FIELD)
        shown += text if not isinstance(part, str) else text[: max(0, layout.authority[1] - place)]
        place += length
        if place >= layout.authority[1]:
            break
    return shown


# -- for delivery


def aim_of(url: str) -> Aim | None:
    """None: all digests go to one place."""
    if not targets.is_template(url):
        return None
    template = targets.parse(url)
    return Aim(partial(_aimed, _Compiled(template)), targets.event_paths(template))


class _Compiled:
    def __init__(self, template: Template) -> None:
        self.layout = _layout(template)
        in_host = {number for number, place in self.layout.fields if self.layout.is_of_host(place)}
        begin, end = self.layout.authority
        self.in_query = self.layout.text.find("?", end)
        labels = self.layout.text[begin:end].partition(":")[0].split(".")
        starts = [sum(len(label) + 1 for label in labels[:count]) + begin for count in range(len(labels) + 1)]
        self.labels = [
            count
            for count in range(len(labels))
            if any(starts[count] <= place < starts[count + 1] for _, place in self.layout.fields)
        ]
        """The numbers of those that hold a field."""
        self.names = {number: ".".join(template.parts[number]) for number, _ in self.layout.fields}
        places = dict(self.layout.fields)

        def encode(number: int) -> Encode:
            if number in in_host:
                return in_a_label
            return in_a_query if 0 <= self.in_query < places[number] else in_a_path

        self.filler = targets.Filler("url", template, encode)


def _aimed(compiled: _Compiled, source: Source) -> Target:
    texts_ = compiled.filler.texts(source)
    url = "".join(texts_)
    if len(url) > LONGEST_URL:
        raise NoTarget(f"url: it would have {len(url)} characters; at most {LONGEST_URL} can be sent")
    parts = urlsplit(url)
    host = (parts.hostname or "").removesuffix(".")
    _check_host(host, compiled.labels)
    port = "" if parts.port is None else f":{parts.port}"
    origin = f"{parts.scheme}://{host}{port}"
    path = path_of((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    return Target({"origin": origin, "host": host, "path": path}, _shown(origin, path, compiled, texts_))


def _check_host(host: str, with_fields: list[int]) -> None:
    labels = host.split(".")
    for number in with_fields:
        label = labels[number]
        if not _LABEL.fullmatch(label):
            raise NoTarget("url: a part of its host would begin or end with a hyphen", label)
        if label[2:4] == "--":
            raise NoTarget("url: a part of its host would stand for letters beyond ASCII (xn--)", label)
    if has_bad_length(host):
        raise NoTarget("url: its host, or a part of it, would be longer than a name can be", host)


def _shown(origin: str, path: str, compiled: _Compiled, texts_: list[str]) -> str:
    """With the values that stand behind the host; of the fixed text there only that it is there."""
    if path == "/":
        return f"{origin}/"
    end = compiled.layout.authority[1]
    values = [
        f"{{{compiled.names[number]}}} = {texts_[number]}" for number, place in compiled.layout.fields if place >= end
    ]
    return f"{origin}/…" + (f" ({', '.join(values)})" if values else "")


def in_a_label(value: str) -> str:
    """Names of hosts do not know capitals."""
    lower = value.lower() if value.isascii() else value
    if not _PART_OF_A_LABEL.fullmatch(lower):
        raise ValueError("is not only letters, digits and hyphens, as a part of a host has to be")
    return lower


def in_a_path(value: str) -> str:
    if {".", ".."} & {*_SLASHES.split(value)}:
        raise ValueError('has "." or ".." where a part of a path stands')
    return in_a_query(value)


def in_a_query(value: str) -> str:
    if not value:
        raise ValueError("is empty")
    if texts.CONTROL.search(value):
        raise ValueError("has a control character")
    return quote(value, safe="")
