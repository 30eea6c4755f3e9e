"""Directories that brokers 0.8.2.2 to 3.3.2 wrote, for their own clients and for others: golden/old_brokers.tar.gz.

tests/oracle/old_brokers/README.md tells what lies where in it. The same checks hold of what they write live.
"""
import hashlib
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import seglog
from seglog._kernels.record_batch import Record
from seglog.format import names
from seglog.state.producer_snapshot import ProducerSnapshot
from support.golden import unpack
from support.old_brokers import VERSIONS, Read, numbers

# As the brokers of the oracle had them.
CONFIG = {"segment.bytes": 16384, "index.interval.bytes": 512, "segment.index.bytes": 65536}
MODERN = "4.1.1"
PAGE_BYTES = 4096
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
    ]


def as_known(records: list[Read], consumed: list[Read]) -> Iterator[Read]:
    """The same without what that client did not know: clients before 0.10 had no times."""
    for record, read in zip(records, consumed, strict=True):
        yield record if read.timestamp != "-" else Read(record.offset, "-", "-", *record[3:])



def reads_as_consumed(directory: Path, file: Path, **options: object) -> int:
    """Hold that we read what the consumer whose lines are in `file` read. How many records."""
    consumed = parse(file)
    with seglog.open_partition(directory) as partition:
        records = seen(partition.read(**options))
    assert list(as_known(records, consumed)) == consumed
    return len(records)


# --- after kill -9 -----------------------------------------------------------------------------------

OFFSET_ENTRY = struct.Struct(">ii")
ABORTED = struct.Struct(">hqqqq")       # version, producer id, first offset, last offset, last stable offset


class Recovered:
    """What `recover` made, in `target`, of a directory that kill -9 left, beside what the broker itself made of it."""

    def __init__(self, version: str, killed: Path, target: Path) -> None:
        self.version, self.killed, self.target = version, killed, target
        self.recovery_point = _recovery_point(killed)
        target.parent.mkdir()
        seglog.recover(killed, target, mode="truncate", config=CONFIG)
        changed = killed.parents[1] / "recovered" / killed.name
        self.theirs = {
            name: (changed / name if (changed / name).exists() else killed / name).read_bytes()
            for name in (changed / "FILES").read_text().split()
        }

    def ours(self, name: str) -> bytes:
        return (self.target / name).read_bytes() if (self.target / name).exists() else b""

    def log_is_the_same(self) -> None:
        ours = {path.name: path.read_bytes() for path in self.target.glob("*.log")}
        assert ours == {name: raw for name, raw in self.theirs.items() if name.endswith(names.LOG_SUFFIX)}
        consumed = self.killed.parents[1] / "recovered-consumed" / f"{self.killed.name}.txt"
        assert reads_as_consumed(self.target, consumed) >= 100

    def indexes_lead_to_the_same(self) -> None:
        """Byte for byte; but up to 1.1 an entry of the offset index names its batch's first offset, not the last.

        Of a segment before the recovery point the broker leaves the indexes as they were; ours makes them of all.
        """
        compared = 0
        bases = sorted(int(name[:20]) for name in self.theirs if name.endswith(names.LOG_SUFFIX))
        first = max((base for base in bases if base <= self.recovery_point), default=0)
        for name, raw in self.theirs.items():
            if name[:20].isdigit() and int(name[:20]) < first:
                continue
            if name.endswith(names.OFFSET_INDEX_SUFFIX) and numbers(self.version) < (2,):
                assert _positions(self.ours(name)) == _positions(raw), name
            elif name.endswith((names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)):
                assert self.ours(name) == raw, name
            else:
                continue
            compared += 1
        assert compared
        has_time_index = any(name.endswith(names.TIME_INDEX_SUFFIX) for name in self.theirs)
        assert has_time_index == (numbers(self.version) >= (0, 10, 1))       # KIP-33

    def state_is_the_same(self) -> None:
        """Producers, transactions and epochs. A recovery makes snapshots at the last two segments and the end; brokers
        leave older ones as they were, and ours deletes those from the first segment that it checks on."""
        *_, since, _ = ["", *sorted(path.stem for path in self.killed.glob("*.log"))]
        for name, raw in self.theirs.items():
            if name.endswith(names.SNAPSHOT_SUFFIX) and (name >= since or self.ours(name)):
                assert self._producers(self.ours(name)) == self._producers(raw), name
            elif name.endswith(names.TRANSACTION_INDEX_SUFFIX):
                # 0.11 to 1.1 list aborted transactions without a record, too.
                listed = [line for line in ABORTED.iter_unpack(raw) if line[2] != line[3]]
                assert list(ABORTED.iter_unpack(self.ours(name))) == listed, name
            elif name == names.LEADER_EPOCH_CHECKPOINT and numbers(self.version) >= (0, 11):
                assert (self.ours(name) or b"0\n0\n") == raw, name

    def nothing_was_torn(self) -> None:
        """kill -9 leaves preallocated zeros behind the entries of indexes; a .log's bytes are in the page cache.

        A roll trims the index, then creates the next segment: a broker that dies in between leaves only entries. And
        Linux ends a write for kill -9 between two pages: the last batch may be a part of one, which both cut off.
        """
        logs = sorted(self.killed.glob("*.log"))
        assert [path.read_bytes() for path in logs[:-1]] == [self.ours(path.name) for path in logs[:-1]]
        ours, theirs = self.ours(logs[-1].name), logs[-1].read_bytes()
        assert theirs.startswith(ours)
        assert len(ours) == len(theirs) or len(theirs) % PAGE_BYTES == 0
        last = logs[-1].with_suffix(names.OFFSET_INDEX_SUFFIX)
        raw = last.read_bytes() if last.exists() else b""       # it died in a roll, before or while it made this file
        if not raw.endswith(bytes(OFFSET_ENTRY.size)):
            positions = _positions(raw)
            assert positions == sorted(set(positions))
            assert all(0 < position < logs[-1].stat().st_size for position in positions)

    def _producers(self, raw: bytes) -> list[object]:
        """In no order: Kafka's replay forgets coordinator epochs, and its files are hash maps.

        0.11 names a marker as the last batch, and 1.1 gives a producer the time of its last data, not of its marker.
        """
        producers = sorted(ProducerSnapshot.parse(raw).producers, key=lambda producer: producer.producer_id)
        if numbers(self.version) < (2,):
            return [(p.producer_id, p.producer_epoch, p.last_sequence, p.current_txn_first_offset) for p in producers]
        return [producer._replace(coordinator_epoch=-1) for producer in producers]


def _recovery_point(killed: Path) -> int:
    """From where on the broker recovered: it writes recovery points 30 s after its start, and then each minute. Of
    golden data there is no such file: those brokers were quicker."""
    file = killed.parent / "recovery-point-offset-checkpoint"
    for line in file.read_text().splitlines() if file.exists() else ():
        words = line.split()
        if len(words) == 3 and f"{words[0]}-{words[1]}" == killed.name:
            return int(words[2])
    return 0


def _positions(raw: bytes) -> list[int]:
    return [position for _, position in OFFSET_ENTRY.iter_unpack(raw)]
