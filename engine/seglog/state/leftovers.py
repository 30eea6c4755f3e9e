"""The files of a partition directory, and what an interrupted compaction, split or deletion left there.

The first three passes of Kafka's LogLoader (3.x), and the orphans of the fourth:

    .deleted                    removed; our clean mark, which has this ending for brokers, stays
    .cleaned                    removed: its content still exists elsewhere
    .swap                       whole, and replaces the segments that it was made from: those with a base offset from
                                the smallest .log.swap up to the end of the largest are removed, then .swap is renamed.
                                A .swap at or above the smallest .cleaned is half of a split: removed (KAFKA-6264)
    an index without its .log   removed
    .tmp                        ours, left by write_atomically: removed. (Kafka leaves its own .tmp, and so do we)

`survey` reads names, and the end of .swap segments; it changes nothing, so that a dry run sees the log as it would be.
`Leftovers.apply` makes the changes: whenever a crash comes, surveying again gives the same result.
"""
import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from seglog._kernels.mapping import file_size
from seglog._kernels.segment_names import sorted_names
from seglog.errors import NotALogError
from seglog.format import names
from seglog.format.dialect import KAFKA, Dialect
from seglog.fs.aside import SCRATCH_SUFFIX
from seglog.fs.files import FileSystem
from seglog.fs.refusals import refusals, storage_error
from seglog.named_tuple import NamedTuple
from seglog.segment.segment import Segment
from seglog.state.clean_marks import CLEAN_MARK

# KafkaMetadataLog handles its snapshots itself (LogLoader.SNAPSHOT_DELETE_SUFFIX); state.log_dir_state the mark.
_KEPT = (".checkpoint.deleted", CLEAN_MARK)
# What write_atomically may have left, besides segment files.
_SCRATCH_NAMES = (names.LEADER_EPOCH_CHECKPOINT + SCRATCH_SUFFIX, names.PARTITION_METADATA + SCRATCH_SUFFIX)

# The names of the regular files in a directory that was just listed; if None, it is listed when they are needed.
Listed = list[str] | None


class File:
    """A file of a segment, with its current name, which differs from its final one until it is swapped in."""

    __slots__ = ("_size_bytes", "directory", "location", "name")

    def __init__(self, directory: Path, name: str, location: str) -> None:
        """`location`: the path as text, for building a Path takes longer than reading an index entry."""
        self.directory = directory
        self.name = name
        self.location = location
        self._size_bytes = -1

    @property
    def path(self) -> Path:
        return self.directory / self.name

    @property
    def size_bytes(self) -> int:
        """The size when it was first read. Raises StorageError."""
        if self._size_bytes < 0:
            try:
                self._size_bytes = file_size(self.location)
            except OSError as error:
                raise storage_error(error, "stat", self.location) from error
        return self._size_bytes


class FoundSegment:
    """The files that share a base offset, a .log among them. None of them has been examined.

    `suffixes`: those of the existing files, the log's first. `renamed`: the current names of those that still have
    another name, by suffix.
    """

    __slots__ = ("_files", "_renamed", "base_offset", "directory", "suffixes")

    def __init__(
        self, directory: Path, base_offset: int, suffixes: tuple[str, ...], renamed: Mapping[str, str] | None = None
    ) -> None:
        self.base_offset = base_offset
        self.suffixes = suffixes
        self.directory = directory
        self._renamed = renamed
        self._files: dict[str, File] | None = None

    @property
    def path(self) -> Path:
        """The path of the .log once leftovers are swapped in."""
        return self.directory / names.file_name(self.base_offset, self.suffixes[0])

    def take_names(self) -> None:
        """Use the final names: leftovers were swapped in."""
        if self._renamed:
            self._renamed = self._files = None

    @property
    def by_suffix(self) -> Mapping[str, File]:
        """All its files, the .log first."""
        if self._files is None:
            renamed, files = self._renamed or {}, {}
            before, stem = f"{self.directory}{os.sep}", names.file_name(self.base_offset, "")
            for suffix in self.suffixes:
                name = renamed.get(suffix) or stem + suffix
                files[suffix] = File(self.directory, name, before + name)
            self._files = files
        return self._files

    @property
    def log(self) -> File:
        return self.by_suffix[self.suffixes[0]]

    @property
    def indexes(self) -> dict[str, File]:
        """The other files, by suffix."""
        return {suffix: file for suffix, file in self.by_suffix.items() if suffix != self.suffixes[0]}


class Leftovers(NamedTuple):
    """The segments of a directory, by base offset, and the files that must be removed or renamed first."""

    directory: Path
    segments: tuple[FoundSegment, ...]
    lacking: Mapping[str, Set[int]]                 # by the suffix of an index: the segments without it
    snapshots: tuple[int, ...] = ()                 # the offsets of producer snapshots
    removed: tuple[str, ...] = ()                   # deleted, half of a split, scratch files
    cleaned: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()                  # replaced by files that are swapped in
    swapped: tuple[tuple[str, str], ...] = ()       # (name with .swap, name without)
    orphans: tuple[str, ...] = ()                   # indexes without their .log
    cursors: tuple[str, ...] = ()                   # files of cursors, which stay: state.reader_cursor

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.removed or self.cleaned or self.replaced or self.swapped or self.orphans)

    def apply(self, fs: FileSystem) -> None:
        """Make the changes, durably. Half splits are removed before the .cleaned that marks them, replaced files before
        the swap."""
        for step in (self.removed, self.cleaned, self.replaced):
            for name in step:
                fs.unlink(self.directory / name)
            if step:
                fs.sync_directory(self.directory)
        for source, target in self.swapped:
            fs.replace(self.directory / source, self.directory / target)
        for name in self.orphans:
            fs.unlink(self.directory / name)
        if self.swapped or self.orphans:
            fs.sync_directory(self.directory)


def survey(directory: Path, dialect: Dialect = KAFKA, listed: Listed = None) -> Leftovers:
    """Sort the files of a partition directory; those of another dialect are ignored. `listed`: its `file_names`, if
    it was just listed.

    Raises NotALogError if it is not a directory, StorageError if it cannot be listed.
    """
    plain, others = _sorted_out(file_names(directory) if listed is None else listed, dialect)
    removed = [name for name in others if name.endswith(names.DELETED_SUFFIX) and not name.endswith(_KEPT)]
    removed += [name for name in others if name in _SCRATCH_NAMES]
    cleaned: list[tuple[str, names.SegmentFile]] = []
    swaps: list[tuple[str, names.SegmentFile]] = []
    for name in others:
        parsed = names.parse_file_name(name)
        if parsed is None or parsed.suffix not in (*dialect.suffixes, names.SNAPSHOT_SUFFIX):
            continue
        match parsed.state:
            case names.CLEANED_SUFFIX:
                cleaned.append((name, parsed))
            case names.SWAP_SUFFIX:
                swaps.append((name, parsed))
            case names.TMP_SUFFIX:
                removed.append(name)
            case _:
                pass    # deleted, and listed already; or a backup
    if cleaned:
        smallest = min(parsed.offset for _, parsed in cleaned)
        removed += [name for name, parsed in swaps if parsed.offset >= smallest]
        swaps = [(name, parsed) for name, parsed in swaps if parsed.offset < smallest]
    replaced = sorted(_replaced(directory, dialect, swaps, plain), key=str) if swaps else []
    for gone in replaced:
        plain[gone.suffix].discard(gone.offset)
    swaps = [(name, names.SegmentFile(parsed.offset, parsed.suffix)) for name, parsed in sorted(swaps)]
    snapshots = plain[names.SNAPSHOT_SUFFIX].union(p.offset for _, p in swaps if p.suffix == names.SNAPSHOT_SUFFIX)
    segments, lacking, orphans = _arrange(directory, dialect, plain, swaps)
    return Leftovers(
        directory, segments, lacking, tuple(sorted(snapshots)), tuple(removed),
        tuple(name for name, _ in cleaned), tuple(map(str, replaced)),
        tuple((name, str(parsed)) for name, parsed in swaps), orphans,
        tuple(name for name in others if name.startswith(names.CURSOR_PREFIX)),
    )


def file_names(directory: Path) -> list[str]:
    """The names of the regular files in a partition directory. No file is examined: a long log has hundreds of
    thousands. Raises what `survey` raises."""
    if os.path.isfile(directory):
        raise NotALogError("a file, not a partition directory", file=directory)
    with refusals("list", directory), os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.is_file()]


def _sorted_out(listed: list[str], dialect: Dialect) -> tuple[dict[str, set[int]], list[str]]:
    """The offsets of segment files by suffix, and the names of all others."""
    suffixes = (*dialect.suffixes, names.SNAPSHOT_SUFFIX)
    offsets, others = sorted_names(listed, suffixes)
    plain = dict(zip(suffixes, offsets, strict=True))
    return plain, sorted(others)


def _replaced(
    directory: Path, dialect: Dialect, swaps: list[tuple[str, names.SegmentFile]], plain: Mapping[str, set[int]]
) -> Iterator[names.SegmentFile]:
    """The files of the segments that the .swap ones were made from: those that begin within the offsets of the .swap
    ones."""
    logs = [(name, parsed.offset) for name, parsed in swaps if parsed.suffix == dialect.log]
    if not logs:
        return      # all .log files are in place, only indexes are left
    begin = min(offset for _, offset in logs)
    end = max(_next_offset(directory / name, offset) for name, offset in logs)
    for suffix, offsets in plain.items():
        for offset in offsets:
            if begin <= offset < end:
                yield names.SegmentFile(offset, suffix)


def _next_offset(path: Path, base_offset: int) -> int:
    """One past the last offset of a .log.swap, from its headers: it was whole before it got that name."""
    segment = Segment(path)
    try:
        tables = segment.tables(check_crc=False, on_lost=lambda _: None)
        return max((table[-1].last_offset + 1 for table in tables), default=base_offset)
    finally:
        segment.close()


def _arrange(
    directory: Path, dialect: Dialect, plain: Mapping[str, set[int]], swaps: list[tuple[str, names.SegmentFile]]
) -> tuple[tuple[FoundSegment, ...], dict[str, set[int]], tuple[str, ...]]:
    """The segments, which of them lack which index, and the names of orphans. Files that are swapped in replace
    existing ones.
    """
    renamed: dict[int, dict[str, str]] = {}
    there = dict(plain)
    for name, parsed in swaps:
        renamed.setdefault(parsed.offset, {})[parsed.suffix] = name
        there[parsed.suffix] = there[parsed.suffix] | {parsed.offset}
    logs = there[dialect.log]
    kinds = [suffix for suffix in dialect.indexes if there[suffix]]
    lacking = {suffix: logs - there[suffix] for suffix in dialect.indexes}
    # Nearly all segments have the same files, and share one list of suffixes; only exceptions get their own.
    common = [suffix for suffix in kinds if 2 * len(lacking[suffix]) < len(logs)]
    unlike: dict[int, set[str]] = {}
    for suffix in kinds:
        for offset in lacking[suffix] if suffix in common else there[suffix] & logs:
            unlike.setdefault(offset, set()).add(suffix)
    usual = (dialect.log, *common)
    segments = []
    for offset in sorted(logs):
        suffixes = usual
        if offset in unlike:
            own = unlike[offset].symmetric_difference(common)
            suffixes = (dialect.log, *(suffix for suffix in kinds if suffix in own))
        segments.append(FoundSegment(directory, offset, suffixes, renamed.get(offset)))
    orphans = (names.file_name(offset, suffix) for suffix in kinds for offset in there[suffix] - logs)
    return tuple(segments), lacking, tuple(sorted(orphans))
