"""Directories that brokers 0.8.2.2 to 3.3.2 wrote, for their own clients and for others: golden/old_brokers.tar.gz.

tests/oracle/old_brokers/README.md tells what lies where in it.
"""
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from seglog._kernels.record_batch import Record
from support.golden import unpack
from support.old_brokers import VERSIONS, Read

# As the brokers of the oracle had them.
CONFIG = {"segment.bytes": 16384, "index.interval.bytes": 512, "segment.index.bytes": 65536}
MODERN = "4.1.1"
TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


def root() -> Path:
    return unpack("old_brokers")


def partitions(of: str, versions: Iterable[str] = VERSIONS) -> list[object]:
    """pytest params: (version, directory), of `logs` or `killed`."""
    return [
        pytest.param(version, path, id=f"{version}-{path.name}")
        for version in versions for path in sorted((root() / version / of).iterdir()) if path.is_dir()
    ]


def client_cases() -> list[object]:
    """pytest params: the folder of what one client wrote with one codec."""
    return [pytest.param(path, id=path.name) for path in sorted((root() / "clients").iterdir())]


def directory_of(case: Path) -> Path:
    return case / f"{case.name}-0"


def parse(file: Path) -> list[Read]:
    """What a consumer was given."""
    return [Read.parse(line) for line in file.read_text().splitlines()]


def digest(field: bytes | None) -> str:
    return "-" if field is None else hashlib.sha256(field).hexdigest()[:8]


def seen(records: Iterable[Record]) -> list[Read]:
    """Records of ours, as the consumers of the oracle tell them."""
    return [
        Read(
            record.offset, str(record.timestamp), TIMESTAMP_TYPES[record.timestamp_type], digest(record.key),
            digest(record.value),
            ",".join(f"{digest(key.encode())}={digest(value)}" for key, value in record.headers) or "-",
        )
        for record in records
    ]  # fmt: skip


def as_known(records: list[Read], consumed: list[Read]) -> Iterator[Read]:
    """The same without what that client did not know: clients before 0.10 had no times."""
    for record, read in zip(records, consumed, strict=True):
        yield record if read.timestamp != "-" else Read(record.offset, "-", "-", *record[3:])

