"""`--metrics FILE`: figures for the textfile collector of Prometheus's node exporter."""
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from seglog.fs.aside import write_atomically
from seglog.fs.files import OsFileSystem
from seglog.named_tuple import NamedTuple


class Gauge(NamedTuple):
    """A metric with one value for each set of labels."""

    name: str
    help: str
    values: Iterable[tuple[Mapping[str, str], float]]


def write_textfile(path: Path, command: str, gauges: Iterable[Gauge]) -> None:
    """Replace the file in one step: the collector may read it at any moment. Raises StorageError."""
    ran = Gauge(
        f"seglog_{command}_timestamp_seconds", f"When seglog {command} ended.", [({}, round(time.time(), 3))]
    )
    lines = []
    for gauge in [*gauges, ran]:
        lines += [f"# HELP {gauge.name} {gauge.help}", f"# TYPE {gauge.name} gauge"]
        lines += [f"{gauge.name}{_shown(labels)} {value}" for labels, value in gauge.values]
    write_atomically(OsFileSystem(), path, ("\n".join(lines) + "\n").encode())


def _shown(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    value = value.encode(errors="backslashreplace").decode()        # a name on disk need not be UTF-8
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
