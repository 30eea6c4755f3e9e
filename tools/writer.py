"""Infers which Kafka version wrote a partition directory, from the files in it, with the reasons.

Each fact bounds the version from one side. Facts about data concern only the broker that wrote that data; the bounds
are for the broker that had the directory last. Files that were removed or added by hand can mislead, so the reasons
are part of the answer.
"""
import os
from collections.abc import Iterator
from dataclasses import dataclass

from seglog._kernels.segment_scan import scan
from seglog.errors import CorruptIndexError, CorruptRecordError, StorageError
from seglog.reading.partition import Partition
from seglog.segment.segment import Segment

from .survey import Survey

# Entries checked for the index rule; the first conclusive entry decides, so checking more only costs time.
_ENTRIES_LOOKED_AT = 2000
_CODEC_ZSTD = 4


@dataclass(frozen=True, slots=True)
class Reason:
    """A fact and what it proves: `since` or `until` a version, or neither."""

    text: str
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Writer:
    since: str | None
    until: str | None
    reasons: tuple[Reason, ...]
    is_kafka: bool = True

    @property
    def text(self) -> str:
        if self.since and self.until:
            if _order(self.since) > _order(self.until):
                return f"unclear: facts for {self.since} or later and facts for {self.until} or earlier"
            return self.since if self.since == self.until else f"{self.since} to {self.until}"
        if self.since:
            return f"{self.since} or later"
        return f"{self.until} or earlier" if self.until else "unknown"


def infer(partition: Partition, survey: Survey) -> Writer:
    if partition._dialect.is_tagged:
        return Writer(None, None, (Reason(".tlog files: messages with tags, which no Kafka writes"),), is_kafka=False)
    reasons = (*_by_files(partition), *_by_batches(survey), *_by_index_rule(partition))
    since = max((r.since for r in reasons if r.since), key=_order, default=None)
    until = min((r.until for r in reasons if r.until), key=_order, default=None)
    return Writer(since, until, reasons)


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _by_files(partition: Partition) -> Iterator[Reason]:
    directory = partition.path
    names = set(os.listdir(directory))
    endings = {os.path.splitext(name)[1] for name in names}
    if ".timeindex" in endings:
        yield Reason(".timeindex files: time indexes came with 0.10.1 (KIP-33)", since="0.10.1")
    elif ".index" in endings:
        yield Reason(".index without .timeindex: before time indexes (KIP-33)", until="0.10.0")
    newer = ["leader-epoch-checkpoint"] * ("leader-epoch-checkpoint" in names)
    newer += [f"{ending} files" for ending in (".snapshot", ".txnindex") if ending in endings]
    if newer:
        yield Reason(f"{', '.join(newer)}: came with 0.11 (KIP-98, KIP-101)", since="0.11.0")
    elif ".index" in endings and len(partition.segments) > 1:
        yield Reason("neither leader-epoch-checkpoint nor .snapshot although it rolled: before 0.11", until="0.10.2")
    elif ".index" in endings:
        yield Reason("neither leader-epoch-checkpoint nor .snapshot: before 0.11, or never closed")
    if "partition.metadata" in names:
        yield Reason("partition.metadata: topic ids came with 2.8 (KIP-516)", since="2.8.0")
    clean_marker = directory.parent / ".kafka_cleanshutdown"
    try:
        if clean_marker.stat().st_size:
            yield Reason(".kafka_cleanshutdown holds JSON: since 3.7 (KAFKA-15582)", since="3.7.0")
    except OSError:
        pass        # a copy of only the partition, or a running broker


def _by_batches(survey: Survey) -> Iterator[Reason]:
    magics = {magic for magic, _ in survey.codecs}
    if 2 in magics:
        yield Reason("record batches v2: since 0.11 (KIP-98)", since="0.11.0")
    elif 1 in magics:
        yield Reason("messages v1: since 0.10.0 (KIP-32)", since="0.10.0")
    old = [f"v{magic}" for magic in (0, 1) if magic in magics]
    if old:
        yield Reason(
            f"{' and '.join(old)} data: appended before 4.0, which writes only v2; "
            "from 0.11 on under an old message.format.version"
        )
    if any(codec == _CODEC_ZSTD for _, codec in survey.codecs):
        yield Reason("zstd: since 2.1 (KIP-110)", since="2.1.0")
    if survey.delete_horizons:
        yield Reason("batches with a delete horizon: compacted by 3.1 or later (KIP-534)", since="3.1.0")


def _by_index_rule(partition: Partition) -> Iterator[Reason]:
    """Find which offset an index entry has: the first of its batch up to 1.1, the last of its append
    since 2.0 (KAFKA-6264), the last of its batch since 3.9.1 and 4.0.1 (KAFKA-806's rule)."""
    seen = {kind for segment in partition.segments for kind in _entry_kinds(segment, partition)}
    if "first" in seen:
        yield Reason("index entries with the first offset of their batch: before KAFKA-6264 (2.0)", until="1.1.1")
    elif seen & {"last", "beyond"}:
        yield Reason("index entries with the last offset: since KAFKA-6264 (2.0)", since="2.0.0")
    if "beyond" in seen:
        yield Reason(
            "index entries beyond their batch: one per append, before 3.9.1 and 4.0.1", until="4.0.0",
        )


def _entry_kinds(segment: Segment, partition: Partition) -> Iterator[str]:
    try:
        index = segment.offset_index
        if index is None:
            return
        for slot in range(min(len(index), _ENTRIES_LOOKED_AT)):
            offset, position = index[slot]
            if not 0 <= position < segment.size_bytes:
                continue
            table = scan(segment.window, position, max_batches=1, decompress=partition._decompress)
            if not len(table) or not table[0].crc_is_valid():
                continue
            batch = table[0]
            if offset > batch.last_offset:
                yield "beyond"
            elif batch.base_offset < batch.last_offset:
                yield "last" if offset == batch.last_offset else "first" if offset == batch.base_offset else "inside"
    except (CorruptIndexError, CorruptRecordError, StorageError):
        return      # `verify` reports them; here they say nothing
