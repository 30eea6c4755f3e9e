"""A description of rows and how to read them, shared by all interfaces for tables."""
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from inspect import GEN_RUNNING, getgeneratorstate
from itertools import chain
from typing import Any, Self

from seglog._kernels.arena import ArenaPool
from seglog._kernels.arrow_stream import export_stream
from seglog._kernels.topic_rows import TopicRows
from seglog.frames.ahead import in_order
from seglog.frames.bounds import Bounds, both, larger, smaller
from seglog.frames.libraries import library
from seglog.frames.limits import Limits
from seglog.frames.options import OFFSET_MAX, ReadOptions, checked_columns
from seglog.frames.part import POOL, ScanPart
from seglog.frames.plan import MIN_PART_BYTES, PartitionSource, Source, parts_of, places_of
from seglog.frames.stored import StoredPartition
from seglog.frames.typed.decoding import Decoding
from seglog.frames.typed.typed_rows import TypedRows
from seglog.reading.reader import LogReader
from seglog.segment.positions import LostRange

# If there is less to read than this, threads cost more than they gain.
_THREADS_FROM_BYTES = 8 << 20
_THREADS_MAX = 4


class RowScan:
    """A description of rows. Each use reads the files as they are at that time.

    Threads may share it; each use has its own readers. It can be pickled, unless it was given an open log.
    """

    def __init__(
        self, sources: tuple[Source, ...], options: ReadOptions, limits: Limits, threads: int | None = None,
        store_options: Mapping[str, str] | None = None, decoding: Decoding | None = None,
    ) -> None:
        self._sources = sources
        self._options = options
        self._limits = limits
        self._threads = threads
        self._store_options = dict(store_options or {})
        self._decoding = decoding
        self._lost: list[LostRange] = []
        self._undecodable: Counter[str] = Counter()

    def __repr__(self) -> str:
        shown = ", ".join(str(source.path if isinstance(source, LogReader) else source) for source in self._sources)
        return f"<{type(self).__name__} of {shown}: {', '.join(self.columns)}>"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return self._options.columns

    @property
    def lost(self) -> tuple[LostRange, ...]:
        """What all uses of this scan have skipped so far, with on_corrupt="skip"; and with either, the offsets that no
        segment holds, although nothing says that the topic is compacted."""
        return tuple(self._lost)

    @property
    def undecodable(self) -> Mapping[str, int]:
        """How many keys and values all uses of this scan could not decode so far, by column, with
        on_undecodable="null" or "raw". Parts that were read elsewhere do not count."""
        return dict(self._undecodable)

    # --- narrowing -------------------------------------------------------------------------------

    def select(self, columns: Sequence[str]) -> Self:
        """The same scan with other columns. Raises InvalidArgumentError."""
        options = replace(self._options, columns=checked_columns(columns, False))
        return self._with(options, self._limits)

    def _narrowed(self, bounds: Bounds) -> Self:
        """The same scan without the rows outside the bounds, for a library that pushes a filter down.

        Bounds of keys only prune, by column statistics: rows with other keys may be included.
        """
        if self._options.is_internal or "key" in self._typed_columns:
            # Statistics are of the bytes, not of what they say.
            bounds = replace(bounds, smallest_key=None, largest_key=None)
        options, limits = self._options, self._limits
        return self._with(
            replace(
                options, since_ms=max(options.since_ms, bounds.since_ms),
                until_ms=min(options.until_ms, bounds.until_ms),
            ),
            replace(
                limits, from_offset=max(limits.from_offset, bounds.from_offset),
                to_offset=min(limits.to_offset, bounds.to_offset),
                partitions=both(limits.partitions, bounds.partitions), topics=both(limits.topics, bounds.topics),
                smallest_key=larger(limits.smallest_key, bounds.smallest_key),
                largest_key=smaller(limits.largest_key, bounds.largest_key),
            ),
        )

    def _with_views(self) -> Self:
        """The same with bytes and text as Arrow's views, for a library that would make views of them itself. JSON is
        plain text then: Arrow's type for it is an extension, which such a library does not treat as text."""
        options = self._options
        return self._with(
            replace(
                options, binary_view=True, key_text=options.key_text and "utf8",
                value_text=options.value_text and "utf8",
            ),
            self._limits,
        )

    @property
    def _key_is_text(self) -> bool:
        """Whether keys are decoded to text."""
        return self._options.key_text is not None

    @property
    def _typed_columns(self) -> frozenset[str]:
        """The columns that have a schema."""
        return frozenset() if self._decoding is None else frozenset(self._decoding.typed)

    @property
    def _value_is_text(self) -> bool:
        """Whether values are decoded to text."""
        return self._options.value_text is not None

    def _committed_unless_chosen(self) -> Self:
        """The same rows read as committed, unless an isolation was chosen."""
        if self._limits.is_isolation_chosen:
            return self
        return self._with(self._options, replace(self._limits, isolation="read_committed"))

    def _with(self, options: ReadOptions, limits: Limits) -> Self:
        scan = type(self)(self._sources, options, limits, self._threads, self._store_options, self._decoding)
        # Shared by all scans derived from this one.
        scan._lost, scan._undecodable = self._lost, self._undecodable
        return scan

    def _reading(self) -> ReadOptions:
        """The options, with the decoders of typed columns. Raises what finding their schemas raises."""
        if not any(name in self.columns for name in self._typed_columns):
            return self._options
        assert self._decoding is not None
        decoders = self._decoding.decoders(lambda: places_of_scan(self))
        return replace(self._options, decoders=decoders)

    # --- rows ------------------------------------------------------------------------------------

    def parts(self, min_bytes: int = MIN_PART_BYTES) -> list[ScanPart]:
        """The pieces to read, as the files are now: by topic, partition and offset, cut between batches.

        A segment of at least twice `min_bytes` is cut where its offset index gives the start of a batch. Each piece can
        be pickled, and is read separately: `part.batches()`. Raises NotALogError, StorageError, CorruptRecordError.
        """
        options = self._reading()
        return list(parts_of(places_of(self._sources, self._store_options), options, self._limits, min_bytes))

    def batches(self, pool: ArenaPool = POOL, *, is_mapped: bool = False) -> Iterator[TopicRows | TypedRows]:
        """The rows as record batches, in order; they have __arrow_c_array__. `pool`: KEPT, if all of them are kept.
        `is_mapped`: see ScanPart.work.

        Raises what `parts` raises, and CorruptRecordError at damage, after the rows before it.
        """
        # (Segments are not cut into parts here: the work is split into smaller pieces anyway.)
        parts = parts_of(places_of(self._sources, self._store_options), self._reading(), self._limits, OFFSET_MAX)
        first = list(_up_to(parts, _THREADS_FROM_BYTES))
        is_small = sum(part.size_bytes for part in first) < _THREADS_FROM_BYTES
        threads = self._threads or (1 if is_small else min(os.cpu_count() or 1, _THREADS_MAX))
        work = (piece for part in chain(first, parts) for piece in part.work(
            self._lost, pool, threads=threads, is_mapped=is_mapped,
        ))
        try:
            with closing(in_order(work, threads)) as done:
                for rows, error in done:
                    for one in rows:
                        self._undecodable.update(one.undecodable)
                        yield one
                    if error is not None:
                        raise error
        finally:
            # However this ended, closing removes the local copy of a part of a store. If an interrupt ended the wait
            # for the thread that iterates, that thread holds the last reference.
            if getgeneratorstate(work) != GEN_RUNNING:
                work.close()

    # --- Arrow -----------------------------------------------------------------------------------

    def __arrow_c_schema__(self) -> object:
        return self._reading().arrow_c_schema()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A new stream of the rows each time; nothing is opened before the consumer reads. `requested_schema` is
        ignored, as the interface allows."""
        return export_stream(self, self.batches())

    def to_reader(self) -> Any:
        """A pyarrow.RecordBatchReader over the rows. Raises what `batches` raises."""
        pyarrow = library("pyarrow")
        schema = pyarrow.schema(self)
        return pyarrow.RecordBatchReader.from_batches(schema, (pyarrow.record_batch(rows) for rows in self.batches()))


def places_of_scan(scan: RowScan) -> list[PartitionSource | StoredPartition]:
    """The partitions that a scan reads, by topic and number. Raises NotALogError, StorageError."""
    found = places_of(scan._sources, scan._store_options)
    return [place for place in found if scan._limits.has_place(place.topic, place.partition)]


def parts_in(
    scan: RowScan, place: PartitionSource | StoredPartition, start_offset: int, stop_offset: int = OFFSET_MAX
) -> list[ScanPart]:
    """What a scan reads of one of its places with the offsets [start_offset, stop_offset), a part for each segment.
    Raises what `RowScan.parts` raises."""
    limits = replace(
        scan._limits, from_offset=max(scan._limits.from_offset, start_offset),
        to_offset=min(scan._limits.to_offset, stop_offset),
    )
    return list(parts_of([place], scan._reading(), limits, OFFSET_MAX))


def _up_to(parts: Iterator[ScanPart], size: int) -> Iterator[ScanPart]:
    """The first parts, up to `size` bytes in total."""
    while size > 0 and (part := next(parts, None)) is not None:
        size -= part.size_bytes
        yield part
