"""Golden snapshots of delayed messages and the operations that led to them."""
import json
import struct
from pathlib import Path

from support.golden import unpack

WORKLOADS = [
    "basic", "big-ids", "clear", "merge", "restart", "restart-merge", "small-max-buckets", "strict", "trim",
    "unlimited-seg",
]


def workload(name: str) -> Path:
    return unpack("pulsar") / "delayed" / name


def operations(name: str) -> list[dict]:
    """The steps of a workload; the first is its configuration."""
    return [json.loads(line) for line in (workload(name) / "ops.jsonl").read_text().splitlines()]


def stream(path: Path) -> list[bytes]:
    """The entries of a golden stream: (size uint32, bytes)*."""
    data, entries, pos = path.read_bytes(), [], 0
    while pos < len(data):
        (size,) = struct.unpack_from(">I", data, pos)
        entries.append(data[pos + 4 : pos + 4 + size])
        pos += 4 + size
    assert pos == len(data)
    return entries


def snapshots() -> list[tuple[str, Path]]:
    """(workload, path) of all 152 snapshots that Pulsar 4.2.4 wrote."""
    return [(name, path) for name in WORKLOADS for path in sorted(workload(name).glob("bucket_*.bin"))]
