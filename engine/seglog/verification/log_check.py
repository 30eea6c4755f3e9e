"""The walk of `verify` through a segment's .log: every batch, in order, past any damage.

Yields the intact batches and reports findings. Checksums verify what they cover; the walk checks what they do not
cover: base offset, size, magic, leader epoch.
"""
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from seglog._kernels import batch_survey as survey
from seglog._kernels.columns import ArenaPool, Columns, chunks
from seglog._kernels.crc import crc32, crc32c
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchFinder, BatchTable, scan
from seglog._kernels.status import Status, words
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError
from seglog.format.batch_layout import ATTRIBUTES_POS, MAGIC_POS
from seglog.segment.batches import (
    SCAN_BATCHES,
    SCAN_BYTES,
    UNREADABLE,
    first_offset_of,
    header_offset_of,
    within_int64,
)
from seglog.segment.damage import last_offset_of_final
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import LeaderEpochs
from seglog.verification.batch_time_check import BatchTimeCheck
from seglog.verification.findings import Finding
from seglog.verification.tag_check import TagCheck
from seglog.verification.wrapper_check import WrapperCheck

Level = Literal["headers", "crc", "deep"]

MAX_RELATIVE_OFFSET = 2**31 - 1


@dataclass(slots=True)
class _RecordChecks:
    """What is checked of the records of one segment, at level deep. `tags`: None for Kafka's dialect."""

    wrappers: WrapperCheck
    times: BatchTimeCheck
    tags: TagCheck | None

    def see(self, table: BatchTable, first: int, columns: Columns) -> None:
        """Check the batches of the table from slot `first` on, whose records these are."""
        self.times.see(table, first, columns)
        if self.tags is not None:
            self.tags.see(table, first, columns)

    def see_batch(self, batch: RecordBatch, records: int, largest: int) -> None:
        """Check one batch of so many records, the latest of which has the timestamp `largest`."""
        self.times.see_batch(batch, largest)
        if self.tags is not None:
            self.tags.see_batch(batch, records, largest)

    def finish(self) -> None:
        """Report the findings."""
        self.wrappers.finish()
        self.times.finish()
        if self.tags is not None:
            self.tags.finish()


@dataclass(slots=True)
class LogWalk:
    """The walk through one partition, segment by segment: its state and its counts."""

    level: Level
    config: LogConfig
    epochs: LeaderEpochs | None
    findings: list[Finding]
    log_start_offset: int = 0
    next_offset: int = -1           # one past the last offset so far; -1 before the first segment
    last_epoch: int = -1
    batches: int = 0
    records: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)      # byte ranges of the current segment
    seen_epoch: bool = False
    seen_v2: bool = False
    # Whether the end of the previous segment is known: it was read, and not damaged there.
    knows_end: bool = False
    seen_hole: bool = False         # as compaction leaves them
    # Whether the checkpoint or the batch is right is known at the end: all epochs of batches; and by (file, position)
    # of a batch whose epoch contradicts the checkpoint, the epoch that the checkpoint has there.
    epochs_seen: set[int] = field(default_factory=set)
    disputed: dict[tuple[str, int], int] = field(default_factory=dict)
    _pool: ArenaPool = field(default_factory=ArenaPool)

    def tables(self, segment: Segment) -> Iterator[BatchTable]:
        """Yield the intact batches of the segment; damage becomes findings, and the walk continues after it."""
        self.lost = []
        file = str(segment.path)
        if self.next_offset > segment.base_offset:
            self._find("segment_overlap", file, found=f"base offset {segment.base_offset}",
                       expected=f"at least {self.next_offset}")
        elif self.knows_end and max(self.next_offset, self.log_start_offset) < segment.base_offset:
            first, last = max(self.next_offset, self.log_start_offset), segment.base_offset - 1
            self._find("segment_gap", file, offset=first, last_offset=last,
                       found=f"offsets {first} to {last} are in no segment")
        self.next_offset = segment.base_offset
        self.knows_end = False
        finder = BatchFinder(segment.window)
        checks = _RecordChecks(
            WrapperCheck(file, self.findings), BatchTimeCheck(file, self.findings),
            TagCheck(file, self.findings) if segment.dialect.is_tagged else None,
        )
        position, size = 0, segment.size_bytes
        # Behind damage, -1: a gap there is not a cleaner's.
        expected = max(segment.base_offset, self.log_start_offset)
        while position < size:
            table = scan(
                segment.window, position, check_crc=self.level != "headers", max_batches=SCAN_BATCHES,
                max_bytes=SCAN_BYTES, decompress=segment.decompress,
            )
            if len(table):
                self.seen_hole = self.seen_hole or survey.first_hole(table, expected) >= 0
                self._check(segment, table, checks)
                yield table
                expected = table[-1].last_offset + 1
            position = table.end
            if table.stop not in (Status.OK, Status.LIMIT):
                position = self._damage(segment, table, finder)
                expected = -1
        self.knows_end = not self.lost or self.lost[-1][1] < size
        checks.finish()
        if segment.dialect.is_tagged and (counts := segment._tag_defaults.counts):
            tags = ", ".join(f"tag {tag} in {count}" for tag, count in sorted(counts.items()))
            self._find("tags_missing", file, found=f"messages without {tags}")

    # --- batches -----------------------------------------------------------------------------

    def _check(self, segment: Segment, table: BatchTable, checks: _RecordChecks) -> None:
        file = str(segment.path)
        self.batches += len(table)
        if segment.dialect.is_tagged:
            segment._tag_defaults.add(table, segment.path)
        if survey.first_disorder(table, self.next_offset) >= 0:
            self._find_disorder(segment, table)
        self.next_offset = max(self.next_offset, table[-1].last_offset + 1)
        beyond = survey.first_beyond(table, within_int64(segment.base_offset + MAX_RELATIVE_OFFSET))
        if beyond >= 0:
            self._find("offset_span", file, table[beyond].position, table[beyond].last_offset,
                       expected=f"at most {segment.base_offset + MAX_RELATIVE_OFFSET}")
        large = survey.first_larger(table, self.config.max_message_bytes)
        if large >= 0:
            self._find("large_batch", file, table[large].position, table[large].last_offset,
                       size_bytes=table[large].size_bytes, expected=f"at most {self.config.max_message_bytes} bytes")
        self._check_epochs(segment, table)
        tallies = survey.tally(table)
        self.seen_v2 |= any(magic == 2 for magic, _ in tallies)
        if self.level == "deep":
            self._check_records(segment, table, checks)
        else:
            self.records += sum(tally[2] for tally in tallies.values())

    def _find_disorder(self, segment: Segment, table: BatchTable) -> None:
        """Report one finding per run of batches that begin too low: one bad field puts later ones out of order."""
        above, run = self.next_offset, None
        for batch in table:
            # (A wrapper's first offset is inside it; it is judged by its last offset.)
            first, last = header_offset_of(batch), batch.last_offset
            if first >= above and last >= first:
                above, run = last + 1, None
            elif run is None:
                code = "offset_below_base" if first < segment.base_offset else "offset_back"
                run = self._find(code, str(segment.path), batch.position, first,
                                 found=f"offsets {first} to {last}", expected=f"at least {above}")

    def _check_epochs(self, segment: Segment, table: BatchTable) -> None:
        file = str(segment.path)
        slot = 0
        while slot < len(table):
            stop = survey.next_epoch(table, slot)
            first, last = table[slot], table[stop - 1]
            slot = stop
            if (epoch := first.leader_epoch) < 0:
                continue
            self.seen_epoch = True
            self.epochs_seen.add(epoch)
            if epoch < self.last_epoch:
                self._find("epoch_back", file, first.position, first.base_offset,
                           found=f"epoch {epoch}", expected=f"at least {self.last_epoch}")
            # A recovery builds the checkpoint from the largest epoch so far, so compare with that.
            self.last_epoch = epoch = max(epoch, self.last_epoch)
            if self.epochs is None:
                continue
            for batch in (first, last):
                known = self.epochs.epoch_for_offset(batch.base_offset)
                # (It is None if the checkpoint begins later: entries below the log start offset are dropped.)
                if known is not None and known not in (epoch, batch.leader_epoch):
                    if batch.leader_epoch <= (self.epochs.latest or 0):
                        self.disputed[file, batch.position] = known
                    self._find("epochs_differ", file, batch.position, batch.base_offset,
                               found=f"epoch {epoch} by the batches",
                               expected=f"epoch {known} by the checkpoint")
                    break

    def judge_epoch(self, finding: Finding) -> Finding:
        """Decide, at the end of the log: an epoch that contradicts the checkpoint is wrong if other batches confirm
        that.

        No recovery adds such an epoch to the checkpoint, neither a broker's nor seglog's.
        """
        known = self.disputed.get((finding.file, finding.position or 0))
        is_borne_out = finding.code == "epochs_differ" and known in self.epochs_seen
        return replace(finding, code="epoch_back") if is_borne_out else finding

    def _check_records(self, segment: Segment, table: BatchTable, checks: _RecordChecks) -> None:
        before, seen = -1, 0        # `seen`: the slot up to which the batches' times and tags are checked
        decoded = chunks(table, self._pool, check_crc=False)
        try:
            for columns in decoded:
                offsets = columns.offset
                wrong = survey.first_not_rising(offsets, before)
                if wrong >= 0:
                    raise CorruptRecordError("offsets do not rise")
                before = offsets[-1] if len(columns) else before
                checks.see(table, seen, columns)
                seen = decoded.next_batch
                self.records += len(columns)
            is_bad = checks.wrappers.see(table)
        except UNREADABLE:
            is_bad = True
        if is_bad:
            self._find_bad_records(segment, table, checks, seen)

    def _find_bad_records(self, segment: Segment, table: BatchTable, checks: _RecordChecks, seen: int) -> None:
        """Find the bad batch, by the slow path, batch by batch; from slot `seen` on, check the others' times and tags.
        """
        before = -1
        for slot, batch in enumerate(table):
            what, largest, records = "", -1, 0
            try:
                for record in batch:
                    if record.offset <= before:
                        what = f"offset {record.offset} after {before}"
                        break
                    before, largest, records = record.offset, max(largest, record.timestamp), records + 1
                bad = batch.find_bad_message()
                if not what and bad >= 0:
                    what = f"message {bad} inside the wrapper fails its own checksum"
            except UNREADABLE as e:
                what = e.what
            if what:
                self._find("bad_records", str(segment.path), batch.position, batch.last_offset,
                           size_bytes=batch.size_bytes, found=what)
            elif slot >= seen:
                checks.see_batch(batch, records, largest)

    # --- damage ------------------------------------------------------------------------------

    def _damage(self, segment: Segment, table: BatchTable, finder: BatchFinder) -> int:
        """Report what is wrong where the table ends; return the position of the next intact batch, or of the end."""
        file, size, position, status = str(segment.path), segment.size_bytes, table.end, table.stop
        resume = finder.behind(table, self.next_offset)
        if resume < 0 and segment.is_last and self._is_tail(segment, position, status):
            return size
        end = size if resume < 0 else resume
        self.lost.append((position, end))
        code = "crc_mismatch" if status == Status.BAD_CRC else "bad_batch"
        if resume < 0 and segment.is_last and status != Status.BAD_CRC:
            code = "garbage_tail"
        last = None
        if resume >= 0:
            following = scan(segment.window, resume, max_batches=1, decompress=segment.decompress)[0]
            last = max(first_offset_of(following) - 1, self.next_offset)
        found, expected = words(status), ""
        if status == Status.BAD_CRC:
            batch = scan(segment.window, position, max_batches=1)[0]
            found, expected = _checksums(batch)
            if last is None and not segment.dialect.is_tagged:
                told = last_offset_of_final(memoryview(segment.window)[position:])
                if told is not None and self.next_offset <= told <= segment.base_offset + MAX_RELATIVE_OFFSET:
                    last = told
        self._find(code, file, position, self.next_offset, size_bytes=end - position,
                   found=found, expected=expected, last_offset=last)
        return end

    def _is_tail(self, segment: Segment, position: int, status: Status) -> bool:
        """Whether it is an unfinished write, or zeros that were never overwritten: then the finding is a warning."""
        file, size = str(segment.path), segment.size_bytes
        tail = memoryview(segment.window)[position:]
        if status == Status.ZEROS and not bytes(tail).strip(b"\0"):
            self._find("zero_tail", file, position, self.next_offset, size_bytes=size - position)
            return True
        if status == Status.SHORT:
            offset = int.from_bytes(tail[:8], "big", signed=True) if len(tail) >= 8 else self.next_offset
            magic = tail[MAGIC_POS] if len(tail) > MAGIC_POS else 0
            if magic <= 2 and self.next_offset <= offset <= segment.base_offset + MAX_RELATIVE_OFFSET:
                last = None if segment.dialect.is_tagged else last_offset_of_final(tail)
                self._find(
                    "torn_tail", file, position, self.next_offset, size_bytes=size - position, last_offset=last
                )
                return True
        return False

    def _find(
        self, code: str, file: str, position: int | None = None, offset: int | None = None, *,
        size_bytes: int | None = None, found: str = "", expected: str = "", last_offset: int | None = None,
    ) -> Finding:
        finding = Finding(code, file, position, offset, size_bytes, found, expected, last_offset)
        self.findings.append(finding)
        return finding


def _checksums(batch: RecordBatch) -> tuple[str, str]:
    """Return the checksum that the batch stores, and that of its bytes."""
    raw = batch.raw()
    computed = crc32c(raw[ATTRIBUTES_POS:]) if batch.magic == 2 else crc32(raw[MAGIC_POS:])
    return f"checksum {batch.crc:08x}", f"{computed:08x}, computed from its bytes"
