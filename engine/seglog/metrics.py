"""Metrics for Prometheus: what rooms count, as text, or through prometheus-client if that is installed.

    from seglog.metrics import Exposition

    exposition = Exposition()
    exposition.add(tracker, topic="orders", subscription="billing")
    exposition.text()                                   # needs no library
    prometheus_client.REGISTRY.register(exposition)     # pip install seglog[prometheus]

`seglog.metrics.PROCESS` shows every log that the process has open, without a call of `add`.

Each room has one table of names, types and labels (`seglog.delayed.metrics.METRICS`); docs/delayed_details.md
shows them.
"""
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from seglog.counters import Histogram, Metric, Sample

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

Labels = tuple[tuple[str, str], ...]


class Source(Protocol):
    """An object that counts something. `samples` takes no lock."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """What it counts: a name, a kind, a meaning and labels for each."""

    def samples(self) -> Iterable[Sample]:
        """The values as of now."""


class Exposition:
    """The samples of several sources, each with labels of its own. Sources may come and go at any time."""

    def __init__(self) -> None:
        self._sources: dict[int, tuple[Source, Labels]] = {}

    def add(self, source: Source, **labels: str) -> None:
        """Show what `source` counts, under these labels besides those of its metrics."""
        self._sources[id(source)] = (source, tuple(labels.items()))

    def remove(self, source: Source) -> None:
        """Stop showing it. Does nothing if it is not shown."""
        self._sources.pop(id(source), None)

    def families(self) -> Iterator[tuple[Metric, list[tuple[Labels, float | Histogram]]]]:
        """Each metric that has a sample, once, with all its samples."""
        found: dict[str, tuple[Metric, list[tuple[Labels, float | Histogram]]]] = {}
        for source, labels in list(self._sources.values()):
            known = {metric.name: metric for metric in source.metrics}
            for sample in source.samples():
                _, samples = found.setdefault(sample.name, (known[sample.name], []))
                samples.append(((*labels, *sample.labels), sample.value))
        yield from found.values()

    def text(self) -> str:
        """Prometheus's text format, version 0.0.4."""
        lines = []
        for metric, samples in self.families():
            lines += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}"]
            for labels, value in samples:
                for name, its_labels, number in _plain(metric.name, labels, value):
                    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in its_labels)
                    lines.append(f"{name}{{{shown}}} {number}" if shown else f"{name} {number}")
        return "".join(f"{line}\n" for line in lines)

    def collect(self) -> "Iterator[Family]":
        """For prometheus_client's registry.

        That library requires that the names of counters end in _total, and adds it to the name of their family.
        Pulsar's do not end so: they are shown without a type.
        """
        from prometheus_client.metrics_core import Metric as Family

        for metric, samples in self.families():
            name, kind = metric.name, metric.kind
            if kind == "counter":
                name = name.removesuffix("_total")
                kind = kind if name != metric.name else "unknown"
            family = Family(name, metric.meaning, kind)
            for labels, value in samples:
                for name, its_labels, number in _plain(metric.name, labels, value):
                    family.add_sample(name, dict(its_labels), number)
            yield family


def _plain(name: str, labels: Labels, value: float | Histogram) -> Iterator[tuple[str, Labels, float]]:
    """A sample as lines of the text format: one, or those of a histogram."""
    if not isinstance(value, Histogram):
        yield name, labels, value
        return
    below = 0
    for bound, count in zip([*value.bounds, "+Inf"], list(value.counts), strict=True):
        below += count
        yield f"{name}_bucket", (*labels, ("le", str(bound))), below
    # The count is that of the buckets shown: another thread may be observing.
    yield f"{name}_sum", labels, value.sum
    yield f"{name}_count", labels, below


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


PROCESS = Exposition()
"""What is open in this process. Rooms add their sources as they are imported: every open log is shown."""
