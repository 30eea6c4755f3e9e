"""Logs whose batches have wrong offsets, which no checksum covers, and what every door of a reader makes of them."""
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import seglog
from seglog.errors import CorruptRecordError

T0 = 1_700_000_000_000
KINDS = ("v2", "v2-gzip", "v1", "v1-gzip", "v0", "v0-gzip")
# To read everything behind each flip costs the square of the size.
BATCHES, ROLLED_AT = (16, 9) if os.environ.get("SEGLOG_TORTURE") else (8, 5)


class Batch(NamedTuple):
    path: Path
    position: int
    size_bytes: int
    base_offset: int        # as the header has it: of a wrapper, its last message's
    last_offset: int
    records: tuple          # (offset, timestamp, value)


@dataclass
class Written:
    kind: str
    directory: Path
    batches: list[Batch]

    @property
    def records(self):
        return [record for batch in self.batches for record in batch.records]

    @property
    def end_offset(self):
        return self.batches[-1].last_offset + 1

    def put_offset(self, batch, offset):
        """Write the offset field of a batch; the checksum stays right."""
        fd = os.open(batch.path, os.O_WRONLY)
        try:
            os.pwrite(fd, struct.pack(">q", offset), batch.position)
        finally:
            os.close(fd)

    def flipped(self, slot, bit):
        """The headers' (base offset, last offset, segment) after the flip."""
        batch = self.batches[slot]
        raw = batch.base_offset % 2**64 ^ 1 << bit
        offset = raw - 2**64 if raw >= 2**63 else raw
        delta = offset - batch.base_offset
        headers = [(b.base_offset, b.last_offset, b.path) for b in self.batches]
        headers[slot] = offset, (offset + batch.last_offset - batch.base_offset), batch.path
        return offset, delta, headers


def is_disorder(headers):
    """By the plain rule: offsets increase from each segment's base on, and a segment ends below the next one's base."""
    bases = sorted({int(path.stem) for _, _, path in headers})
    at = -1
    for base, last, path in headers:
        segment = int(path.stem)
        following = min((b for b in bases if b > segment), default=2**63 - 1)
        if base < max(at, segment) or last < base or last >= following:
            return True
        at = last + 1
    return False


def write(kind, directory) -> Written:
    magic, codec = int(kind[1]), kind.partition("-")[2] or "none"
    config = {"index.interval.bytes": 200, "compression.type": "producer"}
    number = 0
    with seglog.open(directory, config=config, fsync="never") as log:
        for n in range(BATCHES):
            if n == ROLLED_AT:
                log.roll()
            count = 1 + n % 3
            records = [(None, b"%04d" % (number + i) + b"." * 40) for i in range(count)]
            raw = seglog.build_batch(
                records, magic=magic, codec=codec, timestamp=-1 if magic == 0 else T0 + number)
            log.append_batch(raw)
            number += count
    with seglog.open_partition(directory) as partition:
        batches = [
            Batch(
                segment.path, batch.position, batch.size_bytes,
                batch.base_offset if magic == 2 else batch.last_offset, batch.last_offset,
                tuple((r.offset, r.timestamp, r.value) for r in batch),
            )
            for segment in partition.segments for batch in segment.batches()
        ]
    return Written(kind, directory, batches)


def rows(records):
    return [(r.offset, r.timestamp, r.value) for r in records]


def of_columns(chunks):
    return [
        (offset, -1 if timestamp is None else timestamp, chunk.value[i])
        for chunk in chunks for i, (offset, timestamp) in enumerate(zip(chunk.offset, chunk.timestamp, strict=True))
    ]


def or_damage(read):
    """What `read` gives, all of it; None where it ends with CorruptRecordError."""
    try:
        return read()
    except CorruptRecordError:
        return None


def read_by_all_doors(reader, *starts, **options):
    """{door: records, or None for damage}, of everything that can be read from each of `starts` on."""
    found = {}
    for start in starts:
        found["records", start] = or_damage(lambda s=start: rows(reader._records_in_files(s, **options)))
        found["read", start] = or_damage(lambda s=start: rows(reader.read(s, **options)))
        found["batches", start] = or_damage(
            lambda s=start: [r for b in reader.batches(s, **options) for r in rows(b) if r[0] >= (s or 0)])
        found["columns", start] = or_damage(
            lambda s=start: [r for r in of_columns(reader.columns(s, **options)) if r[0] >= (s or 0)])
    return found
