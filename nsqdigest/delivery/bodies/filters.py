"""The filters of a template, each bounded (pure): what multiplies its input is counted before it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol, cast

from jinja2 import Environment, filters
from jinja2.runtime import Context, Undefined
from jinja2.utils import pass_context, pass_environment
from markupsafe import Markup

from nsqdigest.delivery.bodies import values
from nsqdigest.delivery.bodies.base import BodyFailed
from nsqdigest.delivery.bodies.encoding import Encode, encode_json, text_of
from nsqdigest.delivery.bodies.values import AnyField
from nsqdigest.delivery.bodies.work import Work

_LARGEST_BATCH = 10_000
_MOST_DIGITS = 20


class Bounded(Protocol):
    """The environment of a template."""

    work: Work
    encode: Encode


def bounded(context: Context) -> Bounded:
    return cast(Bounded, context.environment)


@pass_context
def shown(context: Context, value: Any) -> Markup:
    """Whatever becomes output, literal text included."""
    sandbox = bounded(context)
    text = value if isinstance(value, Markup) else Markup(sandbox.encode(text_of(value)))
    sandbox.work.grow(len(text))
    return text


@pass_context
def turns(context: Context, items: Any) -> Iterator[Any]:
    """A loop's: every turn is a step."""
    step = bounded(context).work.step
    for item in items:
        step()
        yield item


@pass_context
def weighed(context: Context, value: Any) -> Any:
    """Of every list that a template writes."""
    bounded(context).work.weigh(value)
    return value


@pass_context
def piped(context: Context, value: Any) -> Any:
    """What a filter gets: what it reads one by one is a step each, and of what it may copy at once a part."""
    if isinstance(value, Iterator):
        return turns(context, value)
    bounded(context).work.copy(len(value) if isinstance(value, list | tuple | range) else 0)
    return value


@pass_context
def joined(context: Context, parts: Any, between: str = "") -> str:
    """Text after text. With one that is encoded, all are."""
    sandbox = bounded(context)
    found = [part if isinstance(part, Markup) else text_of(part) for part in turns(context, parts)]
    sandbox.work.grow(sum(map(len, found)) + len(found) * len(between))
    if not any(isinstance(each, Markup) for each in (*found, between)):
        return between.join(found)
    coded = [each if isinstance(each, Markup) else sandbox.encode(each) for each in found]
    return Markup(str(between if isinstance(between, Markup) else sandbox.encode(between)).join(map(str, coded)))


@pass_context
def _join(context: Context, items: Any, d: Any = "", attribute: str | None = None) -> str:
    if attribute is not None:
        items = map(filters.make_attrgetter(context.environment, attribute), items)
    return joined(context, items, d if isinstance(d, str) else text_of(d))


@pass_context
def _tojson(context: Context, value: Any) -> str:
    sandbox = bounded(context)
    if isinstance(value, Undefined):
        str(value)  # raises
    if isinstance(value, Iterator):
        value = list(turns(context, value))
    sandbox.work.weigh(value)
    text = values.encode(value)
    sandbox.work.grow(len(text))
    return Markup(text) if sandbox.encode is encode_json else text


def _plain(value: Any) -> str:
    if isinstance(value, Markup):
        raise BodyFailed("changes text that is encoded already", "use the filter where the text comes from")
    return text_of(value)


def _of_text(change: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: change(_plain(value))


@pass_context
def _replace(context: Context, value: Any, old: str, new: str) -> str:
    text, old, new = _plain(value), _plain(old), _plain(new)
    bounded(context).work.grow(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
    return text.replace(old, new)


@pass_context
def _truncate(context: Context, value: Any, length: int = 255, killwords: bool = False, end: str = "…") -> str:
    text = _plain(value)
    return filters.do_truncate(context.environment, text, max(length, len(end)), killwords, end, 0)


def _trim(value: Any) -> str:
    return Markup(str(value).strip()) if isinstance(value, Markup) else text_of(value).strip()


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, AnyField):
        return [(AnyField(value), AnyField(value))]
    return list(filters.do_items(value))


@pass_environment
def _sum(environment: Environment, value: Any, attribute: str | None = None, start: Any = 0) -> Any:
    return filters.do_sum(environment, value, attribute, start if isinstance(start, int | float) else 0)


@pass_context
def _groupby(context: Context, *args: Any, **options: Any) -> Any:
    """A group holds its items and what they have in common: one thing twice."""
    return weighed(context, filters.sync_do_groupby(context.environment, *args, **options))


@pass_context
def _batch(context: Context, value: Any, linecount: int, fill_with: Any = None) -> Any:
    if linecount > _LARGEST_BATCH:
        raise BodyFailed(f"makes batches of more than {_LARGEST_BATCH:,}", "write a smaller number")
    # A list takes more memory than most that is made in one step.
    return turns(context, filters.do_batch(value, linecount, fill_with))


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    if isinstance(value, AnyField):
        return value
    return filters.do_round(value, max(-_MOST_DIGITS, min(precision, _MOST_DIGITS)), method)


def _known(*names: str) -> dict[str, Callable[..., Any]]:
    return {name: filters.FILTERS[name] for name in names}


FILTERS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    **_known(
        "abs", "count", "d", "default", "first", "float", "int", "last", "length", "list", "map",
        "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "unique",
    ),
    "batch": _batch, "capitalize": _of_text(str.capitalize), "groupby": _groupby, "items": _items, "join": _join,
    "lower": _of_text(str.lower), "replace": _replace, "round": _round, "split": _of_text(str.split), "string": text_of,
    "sum": _sum, "title": _of_text(str.title), "tojson": _tojson, "trim": _trim, "truncate": _truncate,
    "upper": _of_text(str.upper), "urlencode": _of_text(filters.do_urlencode),
})  # fmt: skip
