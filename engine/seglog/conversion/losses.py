"""What a log loses when converted to format v0 or v1: counted before anything is written, and needs permission.

Below v2 there are no headers, no producers and no transactions, below v1 no timestamps. Transactions need a separate
decision: without markers, every reader takes records of an aborted or still open transaction for committed, so the user
must say whether to keep them.
"""
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

from seglog._kernels.batch_filter import BatchFilter
from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.batch_survey import first_transactional, first_with_producer, tally
from seglog._kernels.columns import chunks
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.tagged_packer import TaggedPacker
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.conversion.arenas import POOL
from seglog.errors import InvalidArgumentError, UnsupportedForMessageFormatError
from seglog.format import names
from seglog.format.batch_layout import MESSAGE_ATTRIBUTES_POS
from seglog.format.compression import Codec, Decompress
from seglog.format.conversion_profile import TO_TAGGED, Profile, slices, version_words
from seglog.loading.replay import producers_before
from seglog.reading.partition import Partition
from seglog.segment.aborted_transactions import AbortedFilter
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction
from seglog.state.producer_snapshot import ProducerEntry
from seglog.state.producer_state import ProducerState

# The position of a message's attributes, and the type of a commit: docs/formats/tagged_message.md.
_COMMIT = 10

LossKind = Literal["headers", "timestamps", "control", "producers"]
"""What a format may be unable to store, as `allow_lossy` names it."""

LOSS_KINDS: tuple[LossKind, ...] = get_args(LossKind)


def loss_kinds(words: Iterable[str]) -> tuple[LossKind, ...]:
    """Return the kinds of an `allow_lossy`, each once. Raises InvalidArgumentError for other words, and for a bool
    or a str."""
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise InvalidArgumentError(
            f"allow_lossy must list what may be lost, not be {words!r}", hint=f"list some of {', '.join(LOSS_KINDS)}"
        )
    asked = list(words)
    for word in asked:
        if word not in LOSS_KINDS:
            raise InvalidArgumentError(
                f"unknown kind of loss {word!r}", hint=f"expected one of {', '.join(LOSS_KINDS)}"
            )
    return tuple(kind for kind in LOSS_KINDS if kind in asked)


@dataclass(frozen=True, slots=True)
class Losses:
    """How much of each kind the target cannot store."""

    headers: int = 0                # of records that are converted
    timestamps: int = 0             # records with a timestamp, to v0
    control_batches: int = 0        # transaction markers and other control records
    producer_batches: int = 0       # data batches with a producer id and a sequence
    aborted_records: int = 0        # of aborted transactions
    open_records: int = 0           # of transactions without an end
    erased_records: int = 0         # with the keys to erase (Profile.erased)

    @property
    def kinds(self) -> tuple[LossKind, ...]:
        """Return what would be lost, as `allow_lossy` takes it. Aborted and open records are not in it: see `aborted`
        of `seglog.convert`."""
        return tuple(kind for kind, _, _ in self.counted)

    @property
    def counted(self) -> tuple[tuple[LossKind, int, str], ...]:
        """Return (kind, count, what is lost, for people) of each of `kinds`."""
        rows: tuple[tuple[LossKind, int, str], ...] = (
            ("headers", self.headers, "headers"),
            ("timestamps", self.timestamps, "timestamps of records"),
            ("control", self.control_batches, "control batches, such as transaction markers"),
            ("producers", self.producer_batches, "producer ids and sequences of batches"),
        )
        return tuple(row for row in rows if row[1])

    @property
    def undecided_records(self) -> int:
        """Return the number of records that a reader of committed data does not see in the source."""
        return self.aborted_records + self.open_records

    def left_out(self, profile: Profile) -> tuple[str, ...]:
        """Describe what the target cannot store, and which is therefore in neither side's proof."""
        dropped = self.undecided_records if profile.aborted == "drop" else 0
        return (
            *(f"{count} {what}" for _, count, what in self.counted),
            *((f"{dropped} records of aborted or open transactions",) if dropped else ()),
            *((f"{self.erased_records} records of {len(profile.erased)} erased keys",) if profile.erased else ()),
        )

    def check(self, profile: Profile, source: str | os.PathLike[str], *, allow_lossy: Sequence[LossKind]) -> None:
        """Raise UnsupportedForMessageFormatError if there are losses of kinds that are not in `allow_lossy`,
        InvalidArgumentError if `aborted` is not given but needed.
        """
        undecided = self.undecided_records > 0 and profile.aborted is None
        refused = [(count, what) for kind, count, what in self.counted if kind not in allow_lossy]
        if refused:
            listed = "; ".join(f"{count:,} {what}" for count, what in refused)
            needed = loss_kinds([*allow_lossy, *self.kinds])
            raise UnsupportedForMessageFormatError(
                f"format {version_words(profile.to)} cannot store {listed}", file=source,
                hint=f"allow it with --allow-lossy {','.join(needed)} (allow_lossy={list(needed)})"
                + (f", and pass --aborted drop or keep: there are {self.undecided_words}" if undecided else ""),
            )
        if undecided:
            raise InvalidArgumentError(
                f"{self.undecided_words} would look committed in format {version_words(profile.to)}", file=source,
                hint="pass --aborted drop to leave them out, or --aborted keep to keep them",
            )

    @property
    def undecided_words(self) -> str:
        """Describe how many records of which kind have no marker that commits them."""
        kinds = ((self.aborted_records, "of aborted transactions"), (self.open_records, "of open transactions"))
        return " and ".join(f"{count:,} record{'s' * (count != 1)} {what}" for count, what in kinds if count)


class LossSurvey:
    """Counts the losses of every batch of a log converted to `profile.to`; to v2 nothing is lost and nothing is read.

    `segments`: all of the log's, in order, which are read once here; `producers`: those before the first segment.
    `dropped`: the transactions whose records are left out, in the order of their markers.
    """

    def __init__(
        self, segments: Iterable[Segment], producers: Iterable[ProducerEntry], profile: Profile, decompress: Decompress,
        config: LogConfig,
    ) -> None:
        self._decompress = decompress
        self._profile = profile
        self._headers = self._timestamps = self._control = self._with_producer = 0
        self._aborted_records = self._open_records = 0
        self._end_offset = 0
        loses = profile.to < 2 and not profile.erased
        aborted, still_open = _transactions(segments, producers) if loses else ([], [])
        self._aborted, self._open = AbortedFilter(aborted), AbortedFilter(still_open)
        self.dropped = tuple(sorted([*aborted, *still_open], key=_marker)) if profile.aborted == "drop" else ()
        self._dropped = AbortedFilter(self.dropped)
        self._eraser = profile.eraser(config, decompress) if profile.erased else None

    @classmethod
    def of_partition(cls, source: Partition, profile: Profile) -> Self:
        """Make the survey of an open partition directory."""
        producers = producers_before(source.path, source.segments[0].base_offset)
        return cls(source.segments, producers, profile, source._decompress, source.config)

    def kept(self, table: BatchTable) -> BatchTable:
        """Return the batches of a table to convert: without those of dropped transactions."""
        return self._dropped.left_out_of(table) if len(table) else table

    def add(self, table: BatchTable) -> None:
        """Count what the batches of a table would lose. Pass the tables in log order."""
        if self._eraser is not None:
            self._add_erased(table, self._eraser)
            return
        magics = {magic for magic, _ in tally(table)}
        if TO_TAGGED in magics and self._profile.to != TO_TAGGED:
            self._add_of_tagged(table)
            return
        if self._profile.to == TO_TAGGED:
            self._add_to_tagged(table)
            return
        if max(magics, default=0) <= self._profile.to:
            self._end_offset = table[-1].last_offset + 1 if len(table) else self._end_offset
            return
        if 2 in magics:
            self._add_of_v2(table)
        for columns in chunks(self.kept(table), POOL, check_crc=False, include_control=False):
            self._headers += len(columns.header_key)
            if len(columns):
                self._end_offset = int(columns.offset[-1]) + 1
            if self._profile.to == 0:
                self._timestamps += len(columns) - columns.timestamp.tolist().count(-1)

    def _add_erased(self, table: BatchTable, eraser: BatchFilter) -> None:
        for first, stop in slices(table):
            eraser.add(table, first, stop)
            made = scan(self._profile.dialect.window(eraser.take()), decompress=self._decompress)
            if len(made):
                self._end_offset = made[-1].last_offset + 1

    def _add_to_tagged(self, table: BatchTable) -> None:
        """Count what cannot become a tag: headers, leader changes, producers; of transactions all but markers."""
        if len(table):
            self._end_offset = table[-1].last_offset + 1
        if not any(magic == 2 for magic, _ in tally(table)):
            return
        self._add_of_v2(table)
        self._control -= sum(batch.is_control and batch.is_transactional for batch in table)
        kept = self.kept(table)
        packer = TaggedPacker(codec=Codec.NONE, decompress=self._decompress, check_crc=False)
        for first, stop in slices(kept):
            packer.add(kept, first, stop)
            packer.take()
        self._headers += packer.headers_left_out

    def _add_of_tagged(self, table: BatchTable) -> None:
        """Count control messages other than commits and aborts, or below v2 all of them, and unknown tags."""
        self._end_offset = table[-1].last_offset + 1
        if self._profile.to == 2:
            self._control += sum(batch.is_control and _type_of(batch) < _COMMIT for batch in table)
            return
        self._control += sum(batch.is_control for batch in table)
        packer = BatchPacker(codec=Codec.NONE, decompress=self._decompress, check_crc=False)
        for first, stop in slices(table):
            packer.add(table, first, stop)
            packer.finish()
            for columns in chunks(scan(Window(packer.take())), POOL, check_crc=False, include_control=False):
                self._headers += len(columns.header_key)
                if self._profile.to == 0:
                    self._timestamps += len(columns) - columns.timestamp.tolist().count(-1)

    def _add_of_v2(self, table: BatchTable) -> None:
        slot = first_with_producer(table)
        while slot >= 0:
            self._with_producer += not table[slot].is_control
            slot = first_with_producer(table, slot + 1)
        self._control += sum(batch.is_control for batch in table)
        self._aborted_records += _records(table) - _records(self._aborted.left_out_of(table))
        self._open_records += _records(table) - _records(self._open.left_out_of(table))

    @property
    def end_offset(self) -> int:
        """Return one past the last converted record counted so far; 0 if there is none."""
        return self._end_offset

    def losses(self) -> Losses:
        """Return the counts so far."""
        return Losses(
            headers=self._headers, timestamps=self._timestamps, control_batches=self._control,
            producer_batches=self._with_producer, aborted_records=self._aborted_records,
            open_records=self._open_records,
            erased_records=0 if self._eraser is None else self._eraser.superseded,
        )


def _type_of(message: RecordBatch) -> int:
    """Return the type of a tagged control message: the low four bits of its attributes."""
    return message.raw()[MESSAGE_ATTRIBUTES_POS] & 0x0F


def _records(table: BatchTable) -> int:
    """Count data records of v2 batches."""
    return sum(batch.count for batch in table if batch.magic == 2 and not batch.is_control)


def _marker(transaction: AbortedTransaction) -> int:
    return transaction.last_offset


def _transactions(
    segments: Iterable[Segment], producers: Iterable[ProducerEntry]
) -> tuple[list[AbortedTransaction], list[AbortedTransaction]]:
    """Compute the aborted transactions of a log, and those without an end, from its batches."""
    state = ProducerState(producers)
    aborted = [t for table in _transactional_tables(segments) for t in state.add_table(table)]
    still_open = [
        AbortedTransaction(p.producer_id, p.current_txn_first_offset, names.MAX_OFFSET, p.current_txn_first_offset)
        for p in state.entries()
        if p.current_txn_first_offset >= 0
    ]
    return aborted, still_open


def _transactional_tables(segments: Iterable[Segment]) -> Iterator[BatchTable]:
    for segment in segments:
        for table in segment.tables(check_crc=False):
            if first_transactional(table) >= 0:
                yield table
