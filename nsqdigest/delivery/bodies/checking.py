"""A template before it is used: compiled, and rendered with samples (pure).

Nobody knows which fields the events will have, so an event of a sample has every field that the template asks for. That
an event may lack one is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from nsqdigest.delivery.bodies.base import BodyFailed
from nsqdigest.delivery.bodies.sample import bare, samples
from nsqdigest.delivery.bodies.template import Template


class Fault(NamedTuple):
    line: int | None
    problem: str
    remedy: str
    is_warning: bool = False


def fault_of(
    text: str, content_type: str, max_body_bytes: int, grouped: Iterable[bool], now_s: Callable[[], float]
) -> Fault | None:
    """The first. `grouped`: of the routes whose digests it is for."""
    try:
        template = Template(text, content_type, max_body_bytes, now_s)
    except BodyFailed as failure:
        return Fault(failure.line, failure.problem, failure.remedy)
    template.sandbox.is_sample = True
    for sample in (sample for each in grouped for sample in samples(grouped=each)):
        try:
            template(sample.digest_json)
        except BodyFailed as failure:
            exact = f": {failure.quoting}" if failure.quoting else ""  # of a sample all may be shown
            return Fault(failure.line, f"{failure.problem} (sample: {sample.what}){exact}", failure.remedy)
    template.sandbox.is_sample = False
    for each in grouped:
        try:
            template(bare(grouped=each))
        except BodyFailed as failure:
            problem = f"fails for events that lack a field: {failure.problem}"
            return Fault(failure.line, problem, failure.remedy, is_warning=True)
    return None
