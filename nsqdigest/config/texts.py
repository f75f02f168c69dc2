"""Texts of the file: names, templates, paths of fields, URLs and secrets.

Each function takes the text and returns its value in the tree, or raises `Wrong`; an `optional_` one takes "" as well.
A text that may hold a credential (a URL, a secret) never gets into a message, not even in part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

from nsq.protocol import valid_channel_name, valid_topic_name

from nsqdigest.base.allowed_hosts import Allowed
from nsqdigest.base.templates import Template, TemplateError, path_of
from nsqdigest.config import redis_urls
from nsqdigest.config.model import Secret
from nsqdigest.config.problems import Wrong

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FIELD_LIKE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise Wrong("is not a name", "write up to 64 letters, digits, _ . and -")
    return text


def optional_name(text: str) -> str:
    return name(text) if text else ""


def _nsq_name(text: str, what: str, valid: Callable[[str], bool]) -> str:
    if not valid(text) or "\n" in text:
        raise Wrong(
            f"is not a {what}'s name", 'write up to 64 letters, digits, _ . and -, perhaps ending in "#ephemeral"'
        )
    return text


def topic(text: str) -> str:
    return _nsq_name(text, "topic", valid_topic_name)


def optional_topic(text: str) -> str:
    return topic(text) if text else ""


def channel(text: str) -> str:
    return _nsq_name(text, "channel", valid_channel_name)


def template(text: str) -> str:
    try:
        Template.parse(text)
    except TemplateError as error:
        raise Wrong(error.problem, error.remedy) from None
    return text


def optional_key_template(text: str) -> str:
    """Without a field each event would supersede the one before it."""
    if text and not Template.parse(template(text)).fields:
        raise Wrong("has no field, so that all events would have the same key", suggested_field(text, "{id}"))
    return text


def suggested_field(text: str, otherwise: str) -> str:
    """The remedy where a template has no field: its whole text may be meant as one."""
    return f'write "{{{text}}}"' if _FIELD_LIKE.fullmatch(text) else f'write one like "{otherwise}"'


def field_path(text: str) -> str:
    """A field, `meta.at` or `{meta.at}`; the braces go."""
    try:
        return path_of(text)
    except TemplateError as error:
        raise Wrong(error.problem, error.remedy) from None


def optional_field_path(text: str) -> str:
    return field_path(text) if text else ""


def whole_path(text: str) -> str:
    if text.startswith("~"):
        raise Wrong("begins with ~, which only a shell replaces", "write the whole path")
    return text


def token(text: str) -> Secret | None:
    if not text:
        return None
    if not re.fullmatch(r"[!-~]+", text):
        raise Wrong("cannot stand in an authorization header", "write printable ASCII without blanks")
    return Secret(text)


def auth_secret(text: str) -> Secret | None:
    """Any text: nsqd passes it to its auth server as it is."""
    return Secret(text) if text else None


def allowed_host(text: str) -> str:
    try:
        Allowed([text])
    except ValueError:
        raise Wrong(
            "is neither a host nor a network",
            'write one like "hooks.internal", "*.svc.internal" or "10.0.0.0/8"',
        ) from None
    return text


def url_parts(text: str, example: str) -> SplitResult:
    """Returns the parts of a URL; reading its port cannot fail. Its text never gets into a message."""
    remedy = f"write one like {example}"
    if CONTROL.search(text) or " " in text:
        raise Wrong("has a blank or a control character", "leave it out")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise Wrong("is not a URL", remedy) from None
    if port == 0:
        raise Wrong("has port 0", "a port is 1 to 65535")
    if not parts.scheme or "://" not in text:
        raise Wrong("is not a URL", remedy)
    return parts


def redis_url(text: str) -> str:
    redis_urls.read(text)
    return text
