"""Mirroring into one log: which batches need only new headers, which must be opened, and how they are written."""
from dataclasses import dataclass, replace

from seglog._kernels.append_result import trusted
from seglog._kernels.batch_mover import first_to_open, kept, moved, moves_unopened, run_of
from seglog._kernels.batch_pieces import BatchPieces
from seglog._kernels.batch_survey import cut, first_larger
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import RecordTooLargeError
from seglog.format.conversion_profile import compressor
from seglog.format.dialect import TAGGED
from seglog.format.names import MAX_OFFSET
from seglog.format.validate import AppendRules
from seglog.log.log import Log
from seglog.segment.batches import first_offset_of

# At most this much is appended at a time: one lock, one write and, with fsync="batch", one sync. A table is half of it.
_RUN_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """What `mirror` did. `next_offset`: where the next call continues in the source.

    batches, size_bytes     of the source
    opened_batches          of them, those whose records had to be parsed: v0 wrappers that get other offsets, batches
                            that may have gaps to be closed, and all that are routed to several targets
    rebuilt_batches         of those, the ones that were built again, and so compressed again
    left_out_batches        without records, as compaction leaves them; with close_gaps or several targets
    keyless_batches         routed whole, round robin
    keyed_batches           routed by the keys of their records
    missing_offsets         not in any segment of the source, although its topic is not compacted: files are missing
    """

    next_offset: int
    batches: int = 0
    size_bytes: int = 0
    opened_batches: int = 0
    rebuilt_batches: int = 0
    left_out_batches: int = 0
    keyless_batches: int = 0
    keyed_batches: int = 0
    missing_offsets: int = 0

    def counting(self, **more: int) -> "Mirrored":
        """The same with the named counts increased."""
        return replace(self, **{name: getattr(self, name) + n for name, n in more.items()})


class MirrorTarget:
    """A log that receives batches of another one. `flush` appends what it was given, in one run.

    `is_steady`: the source's bytes never change. If they may (a broker can truncate its file and write on), they are
    copied first, and the checksums of the copy are checked.
    """

    def __init__(self, log: Log, is_steady: bool) -> None:
        self.log = log
        self._appender = log._appender
        self._is_steady = is_steady
        self.rules = AppendRules.of(log.config.replace(message_format_version=None, compression_type="producer"))
        self.run_bytes = min(_RUN_BYTES, log.config.segment_bytes)
        self.next_offset = log.log_end_offset
        self._compressors = [compressor(log.config, magic) for magic in (0, 1, 2)]
        self._waiting: list[BatchTable] = []
        self._waiting_bytes = 0
        self._are_good = True
        self._recompressed = [0, 0, 0]

    @property
    def log_append_time(self) -> int | None:
        is_stamped = self.rules.is_log_append_time and not self.log._dialect.is_tagged
        return self.log._clock.now_ms() if is_stamped else None

    def move(
        self, table: BatchTable, first: int, stop: int, previous: int, *, close_gaps: bool = False,
        opened_span: int = -1,
    ) -> None:
        """Give batches the next offsets by changing their headers."""
        self._put(*moved(
            table, first, stop, next_offset=self.next_offset, previous=previous, leader_epoch=self.log.leader_epoch,
            log_append_time=self.log_append_time, close_gaps=close_gaps, opened_span=opened_span,
        ), is_good=self._is_steady)

    def keep(self, table: BatchTable, first: int, stop: int) -> None:
        """Let batches keep their offsets."""
        if self._is_steady and not self.rules.is_log_append_time:
            self._put(kept(table, first, stop), table[stop - 1].last_offset + 1, is_good=True)
        else:
            self._put(*moved(table, first, stop, log_append_time=self.log_append_time), is_good=self._is_steady)

    def made(self, batch: RecordBatch, pieces: BatchPieces, piece: int, count: int, why: str) -> BatchTable:
        """Build a batch for the next offsets from records of an opened batch; pass it to `put_made`.

        Raises RecordTooLargeError, whose message begins with `why`: the reason for rebuilding the batch.
        """
        framing = 2 if batch.magic < 0 else batch.magic
        raw = pieces.piece(
            piece, self.next_offset, self._compressors[framing], leader_epoch=self.log.leader_epoch,
            log_append_time=self.log_append_time,
        )
        try:
            if batch.magic < 0:
                return self._accepted(trusted(TAGGED.window(raw)).table)
            return self.rules.check.accept(raw, self.next_offset, count).table
        except RecordTooLargeError as error:
            error.what = f"{why}: {error.what}"
            error.file = str(self.log.path)
            raise

    def _accepted(self, made: BatchTable) -> BatchTable:
        """Check the size of a rebuilt set of tagged messages."""
        limit_bytes = self.log.config.max_message_bytes
        if first_larger(made, limit_bytes) >= 0:
            raise RecordTooLargeError(
                f"a tagged message has {made[0].size_bytes} bytes, more than max.message.bytes = {limit_bytes}")
        return made

    def put_made(self, batch: RecordBatch, made: BatchTable, count: int) -> None:
        self._put(made, self.next_offset + count, is_good=True)
        if batch.codec and batch.magic >= 0:
            self._recompressed[batch.magic] += 1

    def _put(self, batches: BatchTable, next_offset: int, is_good: bool) -> None:
        """`is_good`: the checksums are right, and the bytes do not change."""
        size_bytes = batches.end - batches[0].position
        if self._waiting_bytes and self._waiting_bytes + size_bytes > self.run_bytes:
            self.flush()
        self._waiting.append(batches)
        self._waiting_bytes += size_bytes
        self._are_good &= is_good
        self.next_offset = next_offset

    def flush(self) -> None:
        """Append the waiting batches. If they are refused they keep waiting, and so do not count as appended."""
        if not self._waiting:
            return
        if self._are_good and len(self._waiting) == 1:
            self._appender.append_table(self._waiting[0])
        else:
            self.log.append_batch(b"".join(map(run_of, self._waiting)), assign_offsets=False)
        self._waiting, self._waiting_bytes, self._are_good = [], 0, True
        for magic, count in enumerate(self._recompressed):
            if count:
                self.log.format_counters.append_recompressed_batches[magic].add(count)
        self._recompressed = [0, 0, 0]


class MirrorRun:
    """Mirrors batches into one log, table by table."""

    def __init__(
        self, dst: Log, from_offset: int, preserve_offsets: bool, close_gaps: bool, is_steady: bool
    ) -> None:
        self.done = Mirrored(next_offset=from_offset)
        self._previous = from_offset - 1        # the last offset that was mirrored or skipped
        self._target = MirrorTarget(dst, is_steady)
        self._preserves = preserve_offsets
        self._closes = close_gaps

    def add(self, table: BatchTable) -> None:
        """Raises what `mirror` raises; everything before the batch in question is appended."""
        first = max(table.find_offset(self.done.next_offset), 0)
        if self.done.batches == 0 and not self._preserves and table[first].magic >= 0:
            self._previous = first_offset_of(table[first]) - 1      # opens it if it is a wrapper
        while first < len(table):
            stop = len(table) if self._preserves else first_to_open(table, first, close_gaps=self._closes)
            counts = {}
            if stop == first:
                counts = self._open(table, first)
                stop = first + 1
            else:
                if table.end - table[first].position > self._target.run_bytes:
                    stop = min(stop, max(cut(table, first, self._target.run_bytes, MAX_OFFSET), first + 1))
                if self._preserves:
                    self._target.keep(table, first, stop)
                else:
                    self._target.move(table, first, stop, self._previous, close_gaps=self._closes)
            self._target.flush()
            size_bytes = table[stop - 1].position + table[stop - 1].size_bytes - table[first].position
            self._previous = table[stop - 1].last_offset
            self.done = replace(
                self.done.counting(batches=stop - first, size_bytes=size_bytes, **counts),
                next_offset=self._previous + 1,
            )
            first = stop

    def _open(self, table: BatchTable, slot: int) -> dict[str, int]:
        """Mirror a batch whose header is not enough. Returns the counts for it."""
        batch = table[slot]
        if batch.magic == 2 and batch.count == 0:
            return {"left_out_batches": 1}
        return {"opened_batches": 1, "rebuilt_batches": put_whole(
            self._target, table, slot, BatchPieces(table, slot), self._closes)}


def put_whole(target: MirrorTarget, table: BatchTable, slot: int, pieces: BatchPieces, close_gaps: bool) -> int:
    """Put all records of an opened batch, by its header if that is enough. Returns how many batches were rebuilt."""
    batch = table[slot]
    is_v0_wrapper = batch.magic == 0 and batch.codec != 0
    if batch.magic < 0 and moves_unopened(table, slot):
        target.move(table, slot, slot + 1, -1)
        return 0
    if not is_v0_wrapper and (pieces.is_dense or not close_gaps):
        reach = max(batch.last_offset, pieces.last_offset)      # a tagged set may claim more offsets than it has
        span = reach - batch.base_offset + 1 if batch.magic < 0 else -1
        target.move(table, slot, slot + 1, pieces.first_offset - 1, opened_span=span)
        return 0
    why = (
        "a v0 wrapper that was rebuilt for its new offsets" if is_v0_wrapper
        else "a batch that was rebuilt without its gaps")
    target.put_made(batch, target.made(batch, pieces, 0, pieces.count, why), pieces.count)
    return 1
