"""Counters, gauges and histograms, and their text for Prometheus. They observe and never steer.

`metric_table` declares them all. A series whose labels are known beforehand exists from the start, at 0: an alert on an
increase then fires at the first one, too.

Each series is a `Number` or a `Histogram`, which prometheus-client reads at each scrape. Code that runs for every
message or batch takes its series once (`number`, `histogram`) and adds to it directly: `received.value += count` is no
call and looks up no label. All other code names the metric and its labels at each change (`add`, `set`, `observe`).
Both ways lead to the same series, and it is exact at any moment.

Each `Metrics` has a registry of its own: several daemons in one process do not mix.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from nsqdigest.base.metric_table import METRICS, PREFIX, STARTS_UNKNOWN, Declared, Labels, Values


@dataclass(slots=True)
class Number:
    """One series of a counter or gauge. What changes it adds to `value`; that of a counter never falls."""

    value: float = 0.0


class Histogram:
    """One series of observations."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        """Of each bucket alone; the last one is that of all beyond."""
        self.total = 0.0

    def observe(self, *values: float) -> None:
        """Any number of observations at once: the cost of a batch is that of sorting it."""
        self.total += sum(values)
        if len(values) == 1:
            self.counts[bisect_left(self._buckets, values[0])] += 1
            return
        ordered, before = sorted(values), 0
        for number, upper in enumerate(self._buckets):
            upto = bisect_right(ordered, upper, before)
            self.counts[number] += upto - before
            before = upto
        self.counts[-1] += len(ordered) - before


@dataclass(slots=True)
class _Series:
    """Of one metric: by the values of its labels."""

    numbers: dict[Labels, Number] = field(default_factory=dict)
    histograms: dict[Labels, Histogram] = field(default_factory=dict)


class Metrics:
    def __init__(self, known: Values | None = None) -> None:
        """`known`: all values of the labels that the configuration decides."""
        self._series = {name: _Series() for name in METRICS}
        self._refreshers: list[Callable[[], None]] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self.know(known or {})

    def know(self, known: Values) -> None:
        """From now on the configuration decides these values of labels: their series begin. The gauges of others end;
        a counter stays, since it counts what this process did."""
        decided = {label for labels in known for label in labels}
        for name, declared in METRICS.items():
            now = dict.fromkeys(_beforehand(declared, known))
            if name not in STARTS_UNKNOWN:
                for labels in now:
                    self._begin(name, labels)
            if declared.kind == "gauge" and not decided.isdisjoint(declared.labels):
                numbers = self._series[name].numbers
                for labels in numbers.keys() - now.keys():
                    del numbers[labels]

    def _begin(self, name: str, labels: Labels) -> None:
        if METRICS[name].kind == "histogram":
            self._histogram(name, labels)
        else:
            self._number(name, labels)

    def _number(self, name: str, key: Labels) -> Number:
        numbers = self._series[name].numbers
        if key not in numbers:
            numbers[key] = Number()
        return numbers[key]

    def _histogram(self, name: str, key: Labels) -> Histogram:
        histograms = self._series[name].histograms
        if key not in histograms:
            histograms[key] = Histogram(METRICS[name].buckets)
        return histograms[key]

    # -- for the daemon

    def number(self, name: str, /, **labels: str) -> Number:
        """The series itself, for code that changes it often. It exists from now on, and is never to be cleared."""
        return self._number(name, _key(name, labels))

    def histogram(self, name: str, /, **labels: str) -> Histogram:
        return self._histogram(name, _key(name, labels))

    def add(self, name: str, amount: float = 1, /, **labels: str) -> None:
        self._number(name, _key(name, labels)).value += amount

    def set(self, name: str, value: float, /, **labels: str) -> None:
        self._number(name, _key(name, labels)).value = value

    def clear(self, name: str, /, **labels: str) -> None:
        """Removes the series: its value is unknown."""
        self._series[name].numbers.pop(_key(name, labels), None)

    def observe(self, name: str, /, *values: float, **labels: str) -> None:
        self._histogram(name, _key(name, labels)).observe(*values)

    def total(self, name: str) -> float:
        """Over all labels; of a histogram the number of observations."""
        series = self._series[name]
        return sum(number.value for number in series.numbers.values()) + sum(
            sum(seen.counts) for seen in series.histograms.values()
        )

    def value(self, name: str, /, **labels: str) -> float | None:
        number = self._series[name].numbers.get(_key(name, labels))
        return None if number is None else number.value

    # -- for Prometheus

    def refresh_by(self, refresher: Callable[[], None]) -> None:
        """Calls it before each exposition, to set gauges of state that is kept elsewhere. It must be quick."""
        self._refreshers.append(refresher)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, in the format that the Accept header prefers; a header that cannot be read
        prefers none."""
        for refresh in self._refreshers:
            refresh()
        try:
            encode, content_type = choose_encoder(accept if accept.isascii() else "")
        except (TypeError, ValueError):
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def text(self) -> str:
        return self.exposition()[0].decode()

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        for name, declared in METRICS.items():
            series = self._series[name]
            if declared.kind == "histogram":
                yield _histogram_family(name, declared, series.histograms)
                continue
            family = (CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily)(
                PREFIX + name, declared.help, labels=declared.labels
            )
            for labels, number in series.numbers.items():
                family.add_metric(labels, number.value)
            yield family


def _key(name: str, labels: dict[str, str]) -> Labels:
    declared = METRICS[name].labels
    if len(labels) != len(declared):
        raise KeyError(f"{name} has the labels {declared}, not {tuple(labels)}")
    return tuple([str(labels[label]) for label in declared])


def _beforehand(declared: Declared, known: Values) -> Iterator[Labels]:
    """Every combination of known labels; none where the values of one label are unknown."""
    parts: list[Iterable[Labels]] = []
    labels = declared.labels
    while labels:
        pair, one = labels[:2], labels[:1]
        group = next((group for group in (pair, one) if group in declared.values or group in known), None)
        if group is None:
            return
        parts.append(declared.values[group] if group in declared.values else known[group])
        labels = labels[len(group) :]
    for found in product(*parts):
        yield tuple(str(value) for part in found for value in part)


def _histogram_family(name: str, declared: Declared, histograms: Mapping[Labels, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + name, declared.help, labels=declared.labels)
    bounds = [*(f"{bound:g}" for bound in declared.buckets), "+Inf"]
    for labels, seen in histograms.items():
        family.add_metric(labels, list(zip(bounds, _running(seen.counts), strict=True)), seen.total)
    return family


def _running(counts: Sequence[int]) -> Iterator[float]:
    so_far = 0
    for count in counts:
        so_far += count
        yield so_far
