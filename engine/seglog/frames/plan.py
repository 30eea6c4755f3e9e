"""Plans which partitions a scan reads, and in which pieces: by segments, the offset index and the indexes by time."""
import glob
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from seglog._kernels.segment_scan import scan
from seglog.backups.snapshot_store import SnapshotStore
from seglog.errors import CorruptIndexError, InvalidArgumentError, NotALogError, SeglogError
from seglog.format import names
from seglog.format.live_ends import FILE_NAME
from seglog.frames.limits import Limits, Spans, spans_by_stats, spans_by_times
from seglog.frames.options import OFFSET_MAX, ReadOptions
from seglog.frames.part import ScanPart
from seglog.frames.stored import StoredPartition, is_stored, stored_partitions, stored_parts
from seglog.fs.lock import writer_of
from seglog.fs.refusals import missing, refusals
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import is_read_committed
from seglog.reading.follower import Follower
from seglog.reading.gaps import GapFinder
from seglog.reading.open_logs import open_logs
from seglog.reading.partition import Partition
from seglog.reading.reader import LogReader
from seglog.segment.column_stats import column_stats_of
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import time_ranges_of
from seglog.state.checked_aborts import checked_aborts
from seglog.stores.open_store import is_local, scheme_of

Source = str | os.PathLike[str] | LogReader
# Pieces have at least this many bytes, unless the whole part has fewer.
MIN_PART_BYTES = 64 << 20


class PartitionSource(NamedTuple):
    """A partition to read. `log`: the open log, if the caller passed one; it is left open."""

    topic: str
    partition: int
    path: Path
    log: LogReader | None


def places_of(
    sources: Iterable[Source], store_options: Mapping[str, str]
) -> list[PartitionSource | StoredPartition]:
    """As `partitions_of`, but also for URLs of stores, and for paths in backups."""
    sources = list(sources)
    remote = [os.fspath(source) for source in sources if not isinstance(source, LogReader) and is_stored(source)]
    local = partitions_of(source for source in sources if isinstance(source, LogReader) or not is_stored(source))
    stored = {there.path: there for url in remote for there in stored_partitions(url, store_options)}
    return sorted([*local, *stored.values()], key=lambda here: (here.topic, here.partition, str(here.path)))


def partitions_of(sources: Iterable[Source]) -> list[PartitionSource]:
    """The partitions that paths, patterns and open logs name, by topic and number; each one once.

    A path is a partition directory (orders-0), or a log dir, which stands for all its partitions. Raises NotALogError
    if one names no partition, InvalidArgumentError, StorageError.
    """
    found: dict[Path, PartitionSource] = {}
    for source in sources:
        if isinstance(source, LogReader):
            path = source.path
            here = _partition(path)
            if here is None:
                raise InvalidArgumentError("not the name of a partition directory", file=path, hint="such as orders-0")
            found[path.resolve()] = here._replace(log=source)
        else:
            for here in _in_path(source):
                found.setdefault(here.path.resolve(), here)
    return sorted(found.values(), key=lambda here: (here.topic, here.partition, str(here.path)))


def _in_path(source: str | os.PathLike[str]) -> list[PartitionSource]:
    text = os.fspath(source)
    if not isinstance(text, str):
        raise InvalidArgumentError(f"a path must be text, not {text!r}")
    if not is_local(text):
        raise InvalidArgumentError(
            "expected a mounted path, not the URL of a store", file=text,
            hint="mount the store, or read it with seglog.scan",
        )
    if scheme_of(text):
        text = unquote(urlsplit(text).path)
    paths = [text] if os.path.lexists(text) else sorted(glob.glob(text))
    if not paths:
        if not glob.has_magic(text):
            raise missing(text)
        raise NotALogError("nothing matches this pattern", file=text)
    found = []
    for path in map(Path, paths):
        here = _partition(path.resolve() if path.name in ("", "..") else path)
        if here is not None:
            found.append(here)
        elif path.is_dir():
            with refusals("list", path):
                below = [_partition(entry) for entry in path.iterdir()]
                found += [
                    here for here in below if here is not None and names.has_segments(here.path)
                ]
    if not found:
        raise NotALogError(
            "found no partition directory (<topic>-<number>, with .log files)", file=text,
            hint='name one such as "data/orders-0", a pattern such as "data/orders-*", or the log dir',
        )
    return found


def _partition(path: Path) -> PartitionSource | None:
    parsed = names.parse_partition_dir(path.name)
    if parsed is None or parsed.mark or not path.is_dir():
        return None
    return PartitionSource(parsed.topic, parsed.partition, path, None)


def parts_of(
    sources: Iterable[PartitionSource | StoredPartition], options: ReadOptions, limits: Limits,
    min_bytes: int = MIN_PART_BYTES,
) -> Iterator[ScanPart]:
    """The pieces of these partitions, in order, as the files are now."""
    if min_bytes < 1:
        raise InvalidArgumentError(f"min_bytes must be at least 1, not {min_bytes}")
    for source in sources:
        if not limits.has_place(source.topic, source.partition):
            continue
        if isinstance(source, StoredPartition):
            yield from stored_parts(source, options, limits)
            continue
        with _log_of(source) as log:
            yield from _Planned(source, log, options, limits).parts(min_bytes)


def end_of(source: PartitionSource | StoredPartition) -> int | None:
    """The log end offset of a partition; None on a store, where finding it would fetch most of the last segment. (A
    backup tells it.)"""
    if isinstance(source, StoredPartition):
        return source.store.next_offset(source.path) if isinstance(source.store, SnapshotStore) else None
    with _log_of(source) as log:
        return log.log_end_offset


@contextmanager
def _log_of(source: PartitionSource) -> Iterator[LogReader]:
    """The open log of this partition, or one that is closed at the end."""
    with ExitStack() as stack:
        yield source.log or _open_here(source.path) or stack.enter_context(opened(source.path))


def _open_here(path: Path) -> LogReader | None:
    """The log, if this process has it open: it knows its own end first."""
    where = path.resolve()
    return next((log for log in open_logs() if log.path.resolve() == where), None)


def opened(path: Path) -> Partition:
    """Open the partition as it is now: if another process appends to it, up to the published end."""
    is_written = (path / FILE_NAME).exists() and writer_of(path) is not None
    return Follower(path) if is_written else Partition(path)


class _Planned:
    def __init__(self, source: PartitionSource, log: LogReader, options: ReadOptions, limits: Limits) -> None:
        self._source = source
        self._log = log
        self._options = options
        self._limits = limits
        self._skips = options.on_corrupt == "skip"

    def parts(self, min_bytes: int) -> Iterator[ScanPart]:
        """The pieces. Each knows the gaps in the log between the piece before it and itself; the last one knows those
        behind it, too.
        """
        held: ScanPart | None = None
        gaps: list[LostRange] = []
        for found in self._parts(min_bytes):
            if isinstance(found, LostRange):
                gaps.append(found)
                continue
            if held is not None:
                yield held
            held, gaps = (replace(found, gaps=tuple(gaps)) if gaps else found), []
        if held is not None:
            yield replace(held, gaps=held.gaps + tuple(gaps)) if gaps else held

    def _parts(self, min_bytes: int) -> Iterator[ScanPart | LostRange]:
        log, limits = self._log, self._limits
        extent = log._current()
        segments = list(extent.segments)
        start, stop = max(limits.from_offset, log.log_start_offset), limits.to_offset
        aborted = None
        if is_read_committed(limits.isolation):
            stop = min(stop, log._stable_offset(self._skips))
            aborted = checked_aborts(segments, stop)
        if self._options.since_ms >= 0 and not self._skips:
            found = log._offset_for_ms(self._options.since_ms)
            if found is None:
                return
            start = max(start, found.offset)
        finder = GapFinder(log.path, log.config, extent)
        for slot, segment in enumerate(segments):
            base = segment.base_offset
            if slot and base > start:
                gap = finder.between(segments[slot - 1], segment, start, stop)
                if gap is not None:
                    yield gap
            following = segments[slot + 1].base_offset if slot + 1 < len(segments) else None
            if base >= stop:
                return
            if following is not None and following <= start:
                continue
            if following is None and segment.published is not None:
                stop = min(stop, segment.published.at.next_offset)
            part = ScanPart(
                self._source.topic, self._source.partition, str(segment.path), base, (), max(start, base),
                stop if following is None else min(stop, following), self._options,
                is_last=following is None and segment.published is None,
                end_offset=OFFSET_MAX if following is None else following, inode=segment.inode,
            )
            if part.start_offset < part.stop_offset:
                for piece in self._split(segment, part, min_bytes):
                    yield piece if aborted is None else replace(
                        piece, aborted=tuple(aborted.between(piece.start_offset, piece.stop_offset))
                    )

    def _split(self, segment: Segment, part: ScanPart, min_bytes: int) -> Iterator[ScanPart]:
        """The part in pieces of at least about `min_bytes`; the last one may have up to twice as many."""
        spans = self._spans(segment, part)
        if not spans:
            return
        rest = replace(part, spans=spans)
        while rest.size_bytes >= 2 * min_bytes:
            cut = _cut_behind(segment, rest, min_bytes)
            if cut is None:
                break
            offset, position = cut
            yield replace(rest, spans=_before(rest.spans, position), stop_offset=min(offset, rest.stop_offset))
            rest = replace(rest, spans=_behind(rest.spans, position), start_offset=max(offset, rest.start_offset))
        yield rest

    def _spans(self, segment: Segment, part: ScanPart) -> Spans:
        """The spans of the .log that may contain the requested records."""
        if self._skips:     # indexes would lead past damage, which must be reported
            return ((0, segment.size_bytes),)
        if segment.published is None and (self._options.has_times or self._limits.has_keys):
            stats = column_stats_of(segment.path)
            if stats is not None:
                return spans_by_stats(stats, part, self._limits)
        if self._options.has_times and not part.is_last and segment.published is None:
            ranges = time_ranges_of(segment.path, segment.window)
            if ranges is not None:
                return spans_by_times(ranges, part)
        begin = 0
        if part.start_offset > part.base_offset:
            _, found = segment.locate(part.start_offset)
            if found is None:
                return ()
            begin = found.position
        end = segment.end_position
        if part.stop_offset < part.end_offset and not _reaches(segment, part.stop_offset):
            _, found = segment.locate(part.stop_offset - 1)
            if found is not None:
                end = min(end, found.position + found.size_bytes)
        return ((begin, end),) if begin < end else ()


def _reaches(segment: Segment, stop: int) -> bool:
    """Whether the segment is still growing and ends there."""
    return segment.published is not None and segment.published.at.next_offset == stop


def _cut_behind(segment: Segment, part: ScanPart, min_bytes: int) -> tuple[int, int] | None:
    """(offset, position) of a batch about `min_bytes` after the part's start, by the offset index.

    None if the index has no such batch with at least `min_bytes` after it.
    """
    try:
        index = segment.offset_index
    except CorruptIndexError:
        return None
    if index is None:
        return None
    target = _position_at(part.spans, min_bytes)
    last = _position_at(part.spans, part.size_bytes - min_bytes)
    slot = bisect_left(range(len(index)), target, key=lambda slot: index[slot][1])
    if slot == len(index) or not target <= index[slot][1] <= last:
        return None
    position = segment.position_near(index[slot][0])
    if not target <= position <= last:
        return None         # a misleading entry
    try:
        return scan(segment.window, position, max_batches=1, decompress=segment.decompress)[0].base_offset, position
    except (SeglogError, IndexError):
        return None


def _position_at(spans: Spans, size: int) -> int:
    """The position after the first `size` bytes of the spans."""
    for position, end in spans:
        if size < end - position:
            return position + size
        size -= end - position
    return spans[-1][1]


def _before(spans: Spans, at: int) -> Spans:
    return tuple((position, min(end, at)) for position, end in spans if position < at)


def _behind(spans: Spans, at: int) -> Spans:
    return tuple((max(position, at), end) for position, end in spans if end > at)
