"""What lies in a partition directory, and what an interrupted compaction, split or deletion left there.

Kafka's LogLoader (3.x), its first three passes, and the orphans of the fourth:

    .deleted                    goes; our clean mark, which is named so for brokers, stays
    .cleaned                    goes: its content stands elsewhere yet
    .swap                       whole, and takes the place of what it was made from: segments with a base offset from
                                the smallest .log.swap up to the end of the largest go, then the .swap ending goes.
                                A .swap at or above the smallest .cleaned is half of a split: it goes (KAFKA-6264)
    an index without its .log   goes
    .tmp                        of ours: what write_atomically left. (Kafka lets its own lie, and so do we)

`survey` reads names, and of .swap segments the end; it changes nothing, so that a dry run sees the log as it would
be. `Leftovers.apply` does it: whatever moment a crash picks, surveying again gives the same end.
"""
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from seglog.errors import NotALogError
from seglog.format import names
from seglog.fs.aside import SCRATCH_SUFFIX
from seglog.fs.files import FileSystem
from seglog.fs.refusals import refusals
from seglog.segment.segment import Segment
from seglog.state.clean_marks import CLEAN_MARK

# KafkaMetadataLog sees to its snapshots itself (LogLoader.SNAPSHOT_DELETE_SUFFIX); state.log_dir_state to the mark.
_KEPT = (".checkpoint.deleted", CLEAN_MARK)
# What write_atomically may have left, besides segment files.
_SCRATCH_NAMES = (names.LEADER_EPOCH_CHECKPOINT + SCRATCH_SUFFIX, names.PARTITION_METADATA + SCRATCH_SUFFIX)


@dataclass(frozen=True, slots=True)
class File:
    """A file of a segment, under the name that it has now, which is another one while it is to be swapped in."""

    directory: Path
    name: str
    size_bytes: int

    @property
    def path(self) -> Path:
        return self.directory / self.name

    @property
    def location(self) -> str:
        """The path as text: to put a Path together takes longer than to read an index entry."""
        return f"{self.directory}{os.sep}{self.name}"


@dataclass(slots=True)
class FoundSegment:
    """The files that share a base offset; None, or not among `indexes`, where there is none."""

    base_offset: int
    log: File
    indexes: dict[str, File] = field(default_factory=dict)      # by suffix


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The segments of a directory, by base offset, and the names that have to go or to change before."""

    directory: Path
    segments: tuple[FoundSegment, ...]
    removed: tuple[str, ...] = ()                   # deleted, half of a split, scratch files
    cleaned: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()                  # in the place of which something is swapped in
    swapped: tuple[tuple[str, str], ...] = ()       # (name with .swap, name without)
    orphans: tuple[str, ...] = ()                   # indexes without their .log

    def __bool__(self) -> bool:
        """Is there anything to do?"""
        return bool(self.removed or self.cleaned or self.replaced or self.swapped or self.orphans)

    def apply(self, fs: FileSystem) -> None:
        """Do it, durably. A .cleaned goes after the half splits that it marks; what is replaced, before the swap."""
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


def survey(directory: Path) -> Leftovers:
    """Look at a partition directory. Raises NotALogError where it is none, StorageError where it cannot be listed."""
    found = _list(directory)
    removed = [name for name in found if name.endswith(names.DELETED_SUFFIX) and not name.endswith(_KEPT)]
    removed += [name for name in found if name in _SCRATCH_NAMES]
    plain: dict[str, names.SegmentFile] = {}
    cleaned: list[tuple[str, names.SegmentFile]] = []
    swaps: list[tuple[str, names.SegmentFile]] = []
    for name in found:
        parsed = names.parse_file_name(name)
        if parsed is None:
            continue
        match parsed.state:
            case "":
                plain[name] = parsed
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
    replaced = sorted(_replaced(directory, swaps, plain)) if swaps else []
    for name in replaced:
        del plain[name]
    swaps = [(name, names.SegmentFile(parsed.offset, parsed.suffix)) for name, parsed in sorted(swaps)]
    # Parts of the name that a file will have -> name that it has. What is swapped in takes the place of what is there.
    where = {parsed: name for name, parsed in plain.items()} | {parsed: name for name, parsed in swaps}
    segments, orphans = _arrange(directory, where, found)
    return Leftovers(
        directory, segments, tuple(removed), tuple(name for name, _ in cleaned), tuple(replaced),
        tuple((name, str(parsed)) for name, parsed in swaps), orphans,
    )


def _list(directory: Path) -> dict[str, int]:
    """The regular files of a directory and their sizes, by name."""
    if directory.is_file():
        raise NotALogError("a file, not a partition directory", file=directory)
    with refusals("list", directory), os.scandir(directory) as entries:
        found = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    return dict(sorted(found.items()))


def _replaced(
    directory: Path, swaps: list[tuple[str, names.SegmentFile]], plain: dict[str, names.SegmentFile]
) -> Iterator[str]:
    """The files whose segments the .swap ones were made from: of segments that begin where those have offsets."""
    logs = [(name, parsed.offset) for name, parsed in swaps if parsed.suffix == names.LOG_SUFFIX]
    if not logs:
        return      # all .log are in place, and what is left are indexes
    begin = min(offset for _, offset in logs)
    end = max(_next_offset(directory / name, offset) for name, offset in logs)
    for name, parsed in plain.items():
        if begin <= parsed.offset < end:
            yield name


def _next_offset(path: Path, base_offset: int) -> int:
    """One past the last offset of a .log.swap, by its headers: it was whole before it got that name."""
    segment = Segment(path)
    try:
        tables = segment.tables(check_crc=False, on_lost=lambda _: None)
        return max((table[-1].last_offset + 1 for table in tables), default=base_offset)
    finally:
        segment.close()


def _arrange(
    directory: Path, where: dict[names.SegmentFile, str], sizes: dict[str, int]
) -> tuple[tuple[FoundSegment, ...], tuple[str, ...]]:
    """Segments, and the names of orphans."""
    segments = {
        parsed.offset: FoundSegment(parsed.offset, File(directory, name, sizes[name]))
        for parsed, name in where.items() if parsed.suffix == names.LOG_SUFFIX
    }
    orphans = []
    for parsed, name in where.items():
        if parsed.suffix in names.INDEX_SUFFIXES:
            segment = segments.get(parsed.offset)
            if segment is None:
                orphans.append(str(parsed))
            else:
                segment.indexes[parsed.suffix] = File(directory, name, sizes[name])
    return tuple(segments[base_offset] for base_offset in sorted(segments)), tuple(orphans)
