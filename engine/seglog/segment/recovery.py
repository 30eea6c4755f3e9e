"""Checks the .log of one segment after a crash: which parts are intact or damaged, and the indexes it should have.

Kafka's LogSegment.recover reads up to the first bad batch. Here the walk continues after it, because what follows
shows what the damage is: the tail of an unfinished write, or a hole in a log that is otherwise good. The loader, which
sees the whole log, decides which of the two it is (seglog.loading.loader); nothing is changed here.

A batch is intact if its CRC is correct and its offsets are above those before it and within 2^31 - 1 of the segment's
base. No CRC covers base offset and size, nor the magic of v2, so these are judged by what they lead to. Kernels make
the walk without the GIL, a table of some thousand batches at a time.
"""
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from seglog._kernels import batch_survey as survey
from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.segment_scan import BatchFinder, BatchTable, scan
from seglog._kernels.status import Status, words
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.format import names
from seglog.format.batch_layout import LOG_OVERHEAD, MAGIC_POS, SIZE_POS, V2_HEADER_SIZE
from seglog.format.compression import Decompress, decompressor
from seglog.format.dialect import dialect_of
from seglog.fs.mapping import Advice, Mapping
from seglog.late_import import late
from seglog.segment.batches import first_offset_of, header_offset_of, within_int64
from seglog.segment.damage import last_offset_of_final
from seglog.segment.indexes import IndexBytes, take_entries
from seglog.segment.positions import LostRange
from seglog.segment.roll import RELATIVE_OFFSET_MAX

# What one scan covers: large, so that there are few scans; with small batches no more than what keeps their headers in
# the cache for the checks that follow.
CHECK_BYTES = 32 << 20
CHECK_BATCHES = 8192

# With these, the size field may still be correct, and lead to the next batch.
_SIZED = (Status.BAD_CRC, Status.BAD_MAGIC, Status.BAD_COUNT, Status.OFFSET_RANGE)
# How many bytes, and how many times those of the file, are checksummed in vain while looking for the next batch: a
# segment may be crafted so that each of many places leads to a large batch that is bad, or contains another.
_PROBE_BYTES, _PROBE_PASSES = 64 << 20, 8

GOES_BACK = "the offset goes back"
JUMPS_AHEAD = "the offset jumps ahead of what follows"
TOO_FAR = f"the offset is more than {RELATIVE_OFFSET_MAX} above the segment's base"


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive intact batches: bytes [start, stop) of the file. `next_offset`: one past their last offset."""

    start: int
    stop: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [start, stop) that are not intact batches, and the offsets that may have been in them (last -1: unknown).

    `is_misplaced`: they are batches with a correct CRC and impossible offsets. An unfinished write never leaves these
    behind.
    """

    start: int
    stop: int
    first_offset: int
    last_offset: int
    reason: str
    is_misplaced: bool = False

    def of(self, path: Path) -> LostRange:
        """Return the same with the file's path, as reported to users."""
        size_bytes = self.stop - self.start
        return LostRange(str(path), self.start, size_bytes, self.first_offset, self.last_offset, self.reason)


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """The contents of a segment's .log. `runs` and `damages` alternate, in order, and cover all of its bytes.

    `foreign_magics`: positions of batches inside runs that are intact v2 batches except for a magic above 2. Kafka
    reads them as v2, since it accepts any magic above 1 as such, and no CRC covers it.
    `epochs`: (leader epoch, offset of its first batch), rising. `offset_index`, `time_index`, `minute_index`: the
    correct bytes of these files for the part before the first damage; None if the first damage was noticed too late.
    """

    path: Path
    base_offset: int
    size_bytes: int
    runs: tuple[Run, ...]
    damages: tuple[Damage, ...]
    foreign_magics: tuple[int, ...]
    epochs: tuple[tuple[int, int], ...]
    has_producers: bool
    offset_index: bytes | None
    time_index: bytes | None
    minute_index: bytes | None

    @property
    def next_offset(self) -> int:
        """One past the last offset of all runs; the base offset if there are none."""
        return self.runs[-1].next_offset if self.runs else self.base_offset

    @property
    def sound_bytes(self) -> int:
        """The bytes before the first damage."""
        return self.damages[0].start if self.damages else self.size_bytes

    @property
    def has_run_behind_damage(self) -> bool:
        """Whether an intact batch follows the first damage."""
        return bool(self.damages and self.runs) and self.runs[-1].start > self.damages[0].start

    @property
    def ends_torn(self) -> bool:
        """Whether what follows the first damage is no batch of anybody: no reader can hold a record of it."""
        return bool(self.damages) and not self.has_run_behind_damage and not any(
            damage.is_misplaced for damage in self.damages
        )


def check_segments(
    segments: Iterable[tuple[Path, int, int]], config: LogConfig
) -> list[SegmentCheck]:
    """Check segments given as (path, base offset, offset at which the next one begins), several at a time.

    Uses num.recovery.threads.per.data.dir threads; the kernels release the GIL. Raises StorageError.
    """
    tasks = list(segments)
    threads = min(config.num_recovery_threads, len(tasks))
    if threads < 2:
        return [check_segment(path, base_offset, end_offset, config) for path, base_offset, end_offset in tasks]
    late("concurrent.futures.thread")
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads, thread_name_prefix="seglog-recovery") as pool:
        return list(pool.map(lambda task: check_segment(task[0], task[1], task[2], config), tasks))


def check_segment(path: Path, base_offset: int, end_offset: int, config: LogConfig) -> SegmentCheck:
    """Check one segment. After damage, no batch at or above `end_offset`, where the next segment begins, is trusted.

    Raises StorageError if the file cannot be read.
    """
    with Mapping(path) as mapping:
        mapping.advise(Advice.SEQUENTIAL)
        return _Walk(path, dialect_of(path).window(mapping, path), base_offset, end_offset, config).run()


def check_behind(path: Path, base_offset: int, position: int, next_offset: int, config: LogConfig) -> SegmentCheck:
    """Check what follows byte `position` of a log's last segment, where batches from `next_offset` on are expected.

    The bytes before it are neither read nor part of the result, which has no indexes. Raises StorageError.
    """
    with Mapping(path) as mapping:
        window = dialect_of(path).window(mapping, path)
        return _Walk(path, window, base_offset, names.MAX_OFFSET, config).run_behind(position, next_offset)


class _Walk:
    """The walk over one segment, and its results so far."""

    def __init__(self, path: Path, window: Window, base_offset: int, end_offset: int, config: LogConfig) -> None:
        self.path = path
        self.window = window
        self.base_offset = base_offset
        self.max_offset = within_int64(base_offset + RELATIVE_OFFSET_MAX)
        self.end_offset = end_offset
        self.next_offset = base_offset
        self.runs: list[Run] = []
        self.damages: list[Damage] = []
        self.foreign_magics: list[int] = []
        self.epochs: list[tuple[int, int]] = []
        self.has_producers = False
        self.size_bytes = len(window)
        self._decompress: Decompress = decompressor(config.max_decompressed_message_bytes)
        # None after the first damage.
        self._dialect = dialect_of(path)
        self._builder: IndexBuilder | None = self._dialect.index_builder(base_offset, config, is_bounded=False)
        self._indexes: IndexBytes | None = None
        # The position of the last batch taken, and the next offset before it.
        self._last: tuple[int, int] | None = None
        self._finder = BatchFinder(window)
        self._probe_bytes = _PROBE_BYTES + _PROBE_PASSES * self.size_bytes

    def run_behind(self, position: int, next_offset: int) -> SegmentCheck:
        self._builder = None
        self.next_offset = next_offset
        return self.run(position)

    def run(self, position: int = 0) -> SegmentCheck:
        while position < self.size_bytes:
            table = scan(
                self.window, position, check_crc=True, max_batches=CHECK_BATCHES, max_bytes=CHECK_BYTES,
                decompress=self._decompress,
            )
            self._take(table)
            position = table.end
            if table.stop not in (Status.OK, Status.LIMIT):
                position = self._pass_damage(table)
        if self._last is not None and self.runs and self._last[1] <= self.end_offset < self.next_offset:
            # The last batch reaches into the next segment, and those before it do not: so it jumped ahead.
            self._take_back_last(self.end_offset)
        self._end_indexes()
        offset_index, time_index, minute_index = self._indexes or (None, None, None)
        return SegmentCheck(
            self.path, self.base_offset, self.size_bytes, tuple(self.runs), tuple(self.damages),
            tuple(self.foreign_magics), tuple(self.epochs), self.has_producers, offset_index, time_index,
            minute_index,
        )

    # --- intact batches -------------------------------------------------------------------------

    def _take(self, table: BatchTable) -> None:
        """Take the batches of a table: their CRCs are correct, their offsets are checked here."""
        first = 0
        while first < len(table):
            stop = self._first_misplaced(table, first)
            if stop > first:
                self._add(table, first, stop, table[first].position)
            first = stop if stop == len(table) else self._pass_misplaced(table, stop)

    def _first_misplaced(self, table: BatchTable, first: int) -> int:
        disorder = survey.first_disorder(table, self.next_offset, first)
        beyond = survey.first_beyond(table, self.max_offset, first)
        return min((slot for slot in (disorder, beyond) if slot >= 0), default=len(table))

    def _add(self, table: BatchTable, first: int, stop: int, position: int) -> None:
        """Take the batches [first, stop) of a table; the first of them is at `position` in the file."""
        if self._builder is not None:
            self._builder.add(table, first, stop, position)
        slot = survey.first_of_later_epoch(table, self.epochs[-1][0] if self.epochs else -1, first)
        while 0 <= slot < stop:
            self.epochs.append((table[slot].leader_epoch, table[slot].base_offset))
            slot = survey.first_of_later_epoch(table, self.epochs[-1][0], slot)
        if not self.has_producers:
            self.has_producers = 0 <= survey.first_with_producer(table, first) < stop
        last = table[stop - 1]
        shift = position - table[first].position
        before = table[stop - 2].last_offset + 1 if stop - first > 1 else self.next_offset
        self._last = last.position + shift, before
        self.next_offset = last.last_offset + 1
        end = last.position + shift + last.size_bytes
        if self.runs and self.runs[-1].stop == position:
            position = self.runs.pop().start
        self.runs.append(Run(position, end, self.next_offset))

    # --- intact batches in the wrong place ------------------------------------------------------

    def _pass_misplaced(self, table: BatchTable, slot: int) -> int:
        """Skip the batches at `slot` that cannot follow what came before; return the slot where to continue.

        Or skip the one before them: if a single batch has too high an offset, all after it seem to go back.
        """
        if self._last_jumped(table, slot):
            self._take_back_last(header_offset_of(table[slot]))
            return slot
        batch = table[slot]
        resume = survey.first_in_order(table, self.next_offset, slot + 1)
        if batch.last_offset > self.max_offset:
            reason, resume = TOO_FAR, slot + 1
        else:
            reason = GOES_BACK
        if not 0 <= resume < len(table):
            self._lose(batch.position, table.end, self._last_of_misplaced(table, slot), reason, is_misplaced=True)
            return len(table)
        last_offset = header_offset_of(table[resume]) - 1
        self._lose(batch.position, table[resume].position, last_offset, reason, is_misplaced=True)
        return resume

    def _last_of_misplaced(self, table: BatchTable, slot: int) -> int:
        """The last offset that the batches from `slot` on would have in their place, if they are the last ones of the
        file; -1 if that is not known."""
        if table.end < self.size_bytes or (self.damages and self.damages[-1].stop == table[slot].position):
            return -1
        batches = [table[n] for n in range(slot, len(table))]
        if any(batch.magic != 2 for batch in batches):
            return -1
        last = self.next_offset + sum(batch.last_offset - batch.base_offset + 1 for batch in batches) - 1
        return last if last < min(self.end_offset, self.max_offset + 1) else -1

    def _last_jumped(self, table: BatchTable, slot: int) -> bool:
        """Whether the last batch taken is out of order, and not the one at `slot`.

        It is if the one at `slot` follows the batch before it: by its offset, or so that what comes next agrees.
        """
        if self._last is None or not self.runs or table[slot].last_offset > self.max_offset:
            return False
        position, before = self._last
        last = scan(self.window, position, max_batches=1)
        begin = header_offset_of(table[slot])
        if not last or not before <= begin <= table[slot].last_offset:
            return False
        count = last[0].last_offset - header_offset_of(last[0]) + 1
        if begin == before + count:
            return True
        following = slot + 1 < len(table) and header_offset_of(table[slot + 1])
        return following is not False and table[slot].last_offset < following < self.next_offset

    def _take_back_last(self, begin: int) -> None:
        assert self._last is not None
        position, before = self._last
        run = self.runs.pop()
        if position > run.start:
            self.runs.append(Run(run.start, position, before))
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < before]
        self.next_offset = before
        self._last = None
        if self._builder is not None:
            self._builder = None        # it already has the batch, and cannot remove it
        self._lose(position, run.stop, begin - 1, JUMPS_AHEAD, is_misplaced=True)

    # --- bytes that are not batches ---------------------------------------------------------------

    def _pass_damage(self, table: BatchTable) -> int:
        """Skip what ended the table's scan; return the position where to continue."""
        position = table.end
        if table.stop == Status.BAD_MAGIC and (end := self._take_as_v2(position)):
            return end
        resume = self._next_batch(table)
        if resume < self.size_bytes:
            following = scan(self.window, resume, max_batches=1, decompress=self._decompress)[0]
            last_offset = max(first_offset_of(following) - 1, self.next_offset)
        else:
            last_offset = self._last_offset_at_end(table)
        self._lose(position, resume, last_offset, words(table.stop))
        return resume

    def _last_offset_at_end(self, table: BatchTable) -> int:
        """The last offset that may be in the damage between the table and the end of the file: by the header of a
        single batch, else by the segment that follows; -1 if nothing says it."""
        if table.stop in (Status.BAD_CRC, Status.SHORT) and not self._dialect.is_tagged:
            last = last_offset_of_final(memoryview(self.window)[table.end :])
            if last is not None and self.next_offset <= last < min(self.end_offset, self.max_offset + 1):
                return last
        return -1 if self.end_offset == names.MAX_OFFSET else self.end_offset - 1

    def _take_as_v2(self, position: int) -> int:
        """Take a batch that is v2 except for a magic above 2; return the position after it, 0 if it is not one."""
        if self._dialect.is_tagged:
            return 0
        end = self._claimed_end(position)
        raw = bytearray(memoryview(self.window)[position:end])
        if len(raw) < V2_HEADER_SIZE or not 2 < raw[MAGIC_POS] < 0x80:
            return 0
        raw[MAGIC_POS] = 2
        table = scan(Window(raw), check_crc=True, max_batches=1)
        if len(table) != 1 or table.end != len(raw) or self._first_misplaced(table, 0) != 1:
            return 0
        self._add(table, 0, 1, position)
        self._last = None       # (no scan can read it as it is in the file)
        self.foreign_magics.append(position)
        return end

    def _next_batch(self, table: BatchTable) -> int:
        """Find the next intact batch with a possible offset after the table's end; otherwise return the file's end."""
        if table.stop in _SIZED:
            # First try its own size field: a record may contain complete batches of another log.
            end = self._claimed_end(table.end)
            if end == self.size_bytes or self._is_batch(end):
                return end
        found = self._finder.behind(table, self.next_offset)
        while found >= 0 and not self._is_batch(found):
            found = self._finder.find(found + 1, self.next_offset) if self._probe_bytes >= 0 else -1
        return found if found >= 0 else self.size_bytes

    def _claimed_end(self, position: int) -> int:
        """Return where the batch at `position` ends by its size field; `position` itself if that is impossible."""
        field = memoryview(self.window)[position + SIZE_POS : position + LOG_OVERHEAD]
        size_bytes = int.from_bytes(field, "big", signed=True) + LOG_OVERHEAD
        return position + size_bytes if LOG_OVERHEAD < size_bytes <= self.size_bytes - position else position

    def _is_batch(self, position: int) -> bool:
        """Whether an intact batch with a possible offset begins there."""
        if self._probe_bytes < 0:
            return False
        table = scan(self.window, position, check_crc=True, max_batches=1)
        end_offset = min(self.end_offset, self.max_offset + 1)
        if table and self.next_offset <= header_offset_of(table[0]) and table[0].last_offset < end_offset:
            return True
        self._probe_bytes -= self._claimed_end(position) - position
        return False

    def _lose(self, start: int, stop: int, last_offset: int, reason: str, *, is_misplaced: bool = False) -> None:
        self._end_indexes()
        first_offset = self.next_offset
        if self.damages and self.damages[-1].stop == start:
            before = self.damages.pop()
            start, first_offset, reason = before.start, before.first_offset, before.reason
            is_misplaced = is_misplaced and before.is_misplaced
        self.damages.append(Damage(start, stop, first_offset, last_offset, reason, is_misplaced))

    def _end_indexes(self) -> None:
        if self._builder is not None:
            self._builder.finish()
            self._indexes = take_entries(self._builder)
            self._builder = None
