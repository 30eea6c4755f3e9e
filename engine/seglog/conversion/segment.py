"""Converts one segment of a partition by itself: its .log and index files, written aside and proven.

Every conversion follows this rule, whether one process converts a whole directory (conversion.directory) or a thousand
tasks do. The result is a function of the source segment and of the options, so doing it twice is harmless. What depends
on earlier segments is added later (conversion.state_fold).
"""
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from seglog._kernels.batch_survey import first_disorder
from seglog._kernels.segment_scan import BatchTable
from seglog.config import LogConfig
from seglog.conversion.arenas import POOL
from seglog.conversion.converted_segment import ConvertedSegment
from seglog.conversion.proof import SegmentProof, digest, views
from seglog.conversion.segment_parts import SegmentParts
from seglog.errors import CorruptIndexError, CorruptRecordError, ProofMismatchError, UnsupportedVersionError
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.format.conversion_profile import SLICE_BYTES, Profile, slices
from seglog.format.dialect import dialect_of
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.segment.aborted_transactions import AbortedFilter
from seglog.segment.indexes import index_bytes
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction
from seglog.state.checked_aborts import agrees_with_log

Worked = Callable[[float], None]
"""Called with the bytes of work since the last call: each source byte counts once for conversion, once for proof."""


def convert_segment(
    fs: FileSystem,
    source: Path,
    directory: Path,
    profile: Profile,
    config: LogConfig,
    *,
    end_offset: int,
    is_last: bool,
    dropped: Sequence[AbortedTransaction] = (),
    worked: Worked = lambda _: None,
    proves: bool = True,
) -> ConvertedSegment:
    """Convert the segment `source` (a .log) into `directory`: one or more segments with their indexes.

    `end_offset`: the base offset of the next segment, names.MAX_OFFSET if there is none; `is_last`: ignore a torn end.
    `dropped`: the transactions of the whole log whose records are left out, in the order of their markers. The files
    are synced and read again; their names are not synced. After an error, what was written is still there.

    `proves` false: only the source is read again, and the target of the proof is what the files must have. The caller
    reads them, and compares.

    Raises CorruptRecordError for a damaged source, ProofMismatchError, StorageError, codec errors.
    """
    job = _SegmentConversion(fs, source, directory, profile, config, dropped, worked, proves)
    with closing(Segment(source, is_last=is_last, decompress=job.decompress)) as segment:
        return job.run(segment, end_offset)


class _SegmentConversion:
    def __init__(
        self,
        fs: FileSystem,
        source: Path,
        directory: Path,
        profile: Profile,
        config: LogConfig,
        dropped: Sequence[AbortedTransaction],
        worked: Worked,
        proves: bool,
    ) -> None:
        self.decompress = decompressor(config.max_decompressed_message_bytes)
        self._fs = fs
        self._source = source
        self._directory = directory
        self._profile = profile
        self._config = config
        self._views = views(profile, dialect_of(source))
        self._dropped = AbortedFilter(dropped)
        self._worked = worked
        self._proves = proves

    def run(self, segment: Segment, end_offset: int) -> ConvertedSegment:
        next_offset, size_bytes = segment.base_offset, 0
        packer = self._profile.packer(self._config, self.decompress)
        with SegmentParts(
            self._fs, self._directory, self._config, base_offset=segment.base_offset,
            mtime_ns=self._source.stat().st_mtime_ns, decompress=self.decompress,
        ) as parts:
            for table in tables_in_order(segment, end_offset):
                kept = self._kept(table)
                for first, stop in slices(kept):
                    packer.add(kept, first, stop)
                    if packer.ready_bytes >= SLICE_BYTES:
                        parts.append(packer.take())
                    last = kept[stop - 1]
                    self._worked(last.position + last.size_bytes - kept[first].position)
                next_offset, size_bytes = table[-1].last_offset + 1, table.end
            packer.finish()
            parts.append(packer.take())
            parts.finish()
        aborted, notes = _transactions_of(segment, next_offset)
        return ConvertedSegment(
            source=self._source.name,
            base_offset=segment.base_offset,
            next_offset=next_offset,
            size_bytes=size_bytes,
            parts=tuple(parts.parts),
            aborted=aborted,
            larger_batches=parts.larger_batches,
            notes=notes,
            proof=self._prove(segment.is_last, [self._directory / part.file for part in parts.parts]),
        )

    def _kept(self, table: BatchTable) -> BatchTable:
        return self._dropped.left_out_of(table) if len(table) else table

    # --- the proof -------------------------------------------------------------------------------

    def _prove(self, is_last: bool, files: list[Path]) -> SegmentProof:
        """Read both sides again. Raises ProofMismatchError."""
        with ExitStack() as closer:

            def opened(path: Path, *, is_last: bool) -> Segment:
                return closer.enter_context(closing(Segment(path, is_last=is_last, decompress=self.decompress)))

            # Also read the source again: two sets of files are compared.
            source = opened(self._source, is_last=is_last)
            before = digest(
                [source], POOL, lambda size_bytes: self._worked(size_bytes / 2),
                replace(self._views.source, kept=self._kept),
            )
            if not self._proves:
                return SegmentProof(before, replace(before, files=tuple(file.name for file in files)))
            targets = [opened(file, is_last=False) for file in files]
            for target in targets:
                check_indexes(target, self._config, _file_beside(target))
            weight = source.size_bytes / max(1, sum(target.size_bytes for target in targets))
            after = digest(targets, POOL, lambda size_bytes: self._worked(weight * size_bytes / 2), self._views.target)
            proof = SegmentProof(before, after)
        proof.check(self._source)
        return proof


def check_indexes(segment: Segment, config: LogConfig, read: Callable[[str], bytes | None]) -> None:
    """Check that the indexes on disk match the .log on disk. `read` reads a file of the segment's directory.

    Raises ProofMismatchError.
    """
    for suffix, entries in index_bytes(segment, config).files(config, segment.dialect):
        name = segment.path.with_suffix(suffix).name
        if read(name) != entries:
            raise ProofMismatchError(
                "the index differs from the one built from its log", file=segment.path.with_name(name)
            )


def _file_beside(segment: Segment) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        path = segment.path.with_name(name)
        with refusals("read", path):
            return read_file(path)

    return read


def tables_in_order(segment: Segment, end_offset: int) -> Iterator[BatchTable]:
    """Yield the segment's tables, with checked checksums, and offsets in order within [base offset, `end_offset`).

    The base offset of a v2 batch is outside its checksum (DefaultRecordBatch.java): only the order verifies it.
    """
    expected = segment.base_offset
    for table in segment.tables():
        slot = first_disorder(table, expected)
        if slot >= 0:
            batch, least = table[slot], expected if slot == 0 else table[slot - 1].last_offset + 1
            raise CorruptRecordError(
                f"a batch has offsets {batch.base_offset} to {batch.last_offset}, expected {least} or above",
                file=segment.path, position=batch.position, offset=least,
            )
        expected = table[-1].last_offset + 1
        if expected > end_offset:
            batch = table[table.find_offset(end_offset)]
            raise CorruptRecordError(
                f"a batch goes up to offset {batch.last_offset}, but the next segment begins at {end_offset}",
                file=segment.path, position=batch.position, offset=end_offset,
            )
        yield table


def _transactions_of(
    segment: Segment, next_offset: int
) -> tuple[tuple[AbortedTransaction, ...] | None, tuple[str, ...]]:
    """Return the lines of the segment's .txnindex, None if they must be computed; and why, if the file exists."""
    name = f"{segment.path.stem}{names.TRANSACTION_INDEX_SUFFIX}"
    try:
        index = segment.transaction_index
    except (CorruptIndexError, UnsupportedVersionError) as e:
        return None, (f"{name} is recomputed: {e.what}",)
    if index is None:
        return None, ()
    lines = tuple(index)
    if any(not segment.base_offset <= line.last_offset < next_offset for line in lines):
        return None, (f"{name} is recomputed: it has a marker outside the segment",)
    if not agrees_with_log(segment):
        return None, (f"{name} is recomputed: it contradicts the log",)
    return lines, ()
