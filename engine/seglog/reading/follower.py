"""`seglog.follow(path)`: a partition that another process, or this one, writes, read while it grows.

    .seglog.live ── trusted? ─┬─ yes ── the segments of its epoch, up to the end that it states
                              └─ no ─── the .log files as they are, up to the last whole batch with a good checksum

It is trusted as long as a seglog writer holds the partition's lock and wrote the file since the system started. Each
look is one small read; only if the epoch or the active segment has changed are the files listed, and then the epoch is
read again. Files are identified by inode, so a reader never mistakes one for another of the same name.

Nothing here writes or locks.
"""
import errno
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from seglog._kernels.record_batch import Record
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.status import Status
from seglog.config import LogConfig
from seglog.errors import (
    CorruptIndexError,
    LogClosedError,
    NotALogError,
    OffsetOutOfRangeError,
    SeglogError,
    StorageError,
)
from seglog.format import names
from seglog.format.dialect import dialect_of
from seglog.format.live_ends import FILE_BYTES, FILE_NAME, LiveEnds, latest_of
from seglog.fs.file_watch import FILE_WATCHES, AnyBell, WatchedFile
from seglog.fs.live_file import BOOT_ID, LiveFile
from seglog.fs.lock import writer_of
from seglog.fs.mapping import Mapping as FileMapping
from seglog.fs.refusals import hint_of_log_dir, refusals
from seglog.reading.damage import OnLost
from seglog.reading.extent import Extent
from seglog.reading.following import Followable, FollowedLog
from seglog.reading.listing import log_files, settled_log_files
from seglog.reading.lookup import out_of_range
from seglog.reading.open_readers import FOLLOWERS
from seglog.reading.partition import Partition
from seglog.reading.times import Time
from seglog.segment.batches import SCAN_BATCHES, SCAN_BYTES
from seglog.segment.index_file import minute_index_path
from seglog.segment.positions import BatchPosition, TimestampOffset
from seglog.segment.published_end import End, PublishedEnd
from seglog.segment.segment import Segment

# How long a silent writer is believed to be alive before its lock is checked.
_ALIVE_S = 1.0
# Segments are being changed: how often to look whether that is over, and after how long to give up.
_CHANGE_LOOK_S, _CHANGE_S = 0.002, 60.0
# Without inotify; with it, to notice a writer that died.
_POLL_S, _IDLE_S = 0.02, 1.0
# Address space for the segment that grows, so that it is seldom mapped again.
_RESERVE_BYTES = 64 << 20


What = TypeVar("What")
Answer = TypeVar("Answer")


class _Picture(Extent):
    """The segments of one epoch of a writer (`is_told`), or as found in the directory. Only its end moves.

    `epoch`: without a writer, the epoch of the last one.
    """

    __slots__ = ("active", "epoch", "is_told")

    def __init__(
        self, segments: list[Segment], log_start_offset: int, epoch: int, is_told: bool, active: PublishedEnd
    ) -> None:
        super().__init__(segments, log_start_offset)
        self.epoch = epoch
        self.is_told = is_told
        self.active = active


class Follower(Partition, Followable):
    """What `seglog.follow` returns: a `Partition` whose calls each see the current state, and `follow`.

    `durable`: whether it shows only records that are on the disk. Threads may share it; in a forked child, open another
    one.
    """

    def __init__(
        self, path: str | Path, *, durable: bool = False, config: Mapping[str, object] | LogConfig | None = None
    ) -> None:
        super().__init__(path, config=config)
        self.durable = durable
        self._turn = threading.Lock()       # guards all below, and the change of the extent
        self._file = LiveFile(self.path / FILE_NAME)
        self._raw: bytes | None = None
        self._ends: LiveEnds | None = None
        self._alive_at = 0.0                # when the writer was last found alive, or gone
        self._is_alive = False
        self._known: dict[tuple[Path, int], Segment] = {}       # sealed segments of the picture
        self._growing: tuple[Path, int, Segment] | None = None
        self._picture_now: _Picture | None = None
        self._bells: tuple[AnyBell, ...] = ()
        self._is_open = True
        try:
            self._look()
        except BaseException:
            self.close()
            raise
        FOLLOWERS.opened(self)

    def __repr__(self) -> str:
        extent = self._shown.extent
        if extent is None or not self._is_open:
            return f"<Follower {self.path.name}: closed>"
        return f"<Follower {self.path.name}: from offset {extent.log_start_offset}>"

    def _reopening(self) -> tuple[Callable[..., Partition], tuple[object, ...]]:
        return _followed, (str(self.path.absolute()), self.durable, self.config)

    def close(self) -> None:
        self._is_open = False
        FOLLOWERS.closed(self)
        super().close()
        for bell in self._bells:
            bell.ring()

    def refresh(self) -> None:
        """Not needed: each call sees the current state. Raises what a call would raise."""
        self._current()

    # --- looking ---------------------------------------------------------------------------------

    def _current(self) -> Extent:
        return self._look()

    def _read_epoch(self) -> int | None:
        return self._look().epoch or None

    def _look(self) -> _Picture:
        """The current picture; while segments are being changed, the one before."""
        with self._turn:
            found = self._looked()
        assert found is not None
        return found

    def _looked(self, *, between_changes: bool = False) -> _Picture | None:
        """As `_look`, with the lock. `between_changes`: None while segments are being changed."""
        deadline = time.monotonic() + _CHANGE_S
        while True:
            if not self._is_open:
                raise LogClosedError("the log was closed", file=self.path)
            before = self._picture_now
            ends = self._live()
            if ends is not None and ends.epoch & 1:
                if between_changes or before is not None:
                    return None if between_changes else before
                found = None
            else:
                found = self._scanned(before) if ends is None else self._told(ends, before)
            if found is not None:
                self._picture_now = self._shown.extent = found
                if not self._is_open:       # closed meanwhile
                    self._shown.extent = None
                return found
            if time.monotonic() > deadline:
                raise NotALogError(
                    f"its segments have been changing for {_CHANGE_S:g} s", file=self.path,
                    hint="check what the process that writes the log is doing",
                )
            time.sleep(_CHANGE_LOOK_S)

    def _read_ends(self) -> LiveEnds | None:
        """What the live file says; None if it says nothing valid since the system started, or is closed."""
        with refusals("read", self._file.path):
            raw = self._file.read(FILE_BYTES)
        if raw != self._raw:
            ends = latest_of(raw, self._file.path)
            if ends is None and raw:        # perhaps both slots were just being written
                time.sleep(_CHANGE_LOOK_S)
                raw = self._file.read(FILE_BYTES)
                ends = latest_of(raw, self._file.path)
            if ends is not None and self._ends is not None and ends.sequence != self._ends.sequence:
                self._is_alive, self._alive_at = True, time.monotonic()
            self._raw, self._ends = raw, ends
        ends = self._ends
        return ends if ends is not None and ends.is_open and ends.boot_id == BOOT_ID else None

    def _live(self) -> LiveEnds | None:
        """The same, but None also if its writer is gone."""
        ends = self._read_ends()
        if ends is None:
            return None
        now = time.monotonic()
        if now - self._alive_at > _ALIVE_S or not self._alive_at:
            self._is_alive, self._alive_at = writer_of(self.path) is not None, now
        return ends if self._is_alive else None

    def _told(self, ends: LiveEnds, before: _Picture | None) -> _Picture | None:
        """The picture that the writer's live file describes, or None if the file changed meanwhile."""
        end = End(*(ends.durable if ends.shows_durable or self.durable else ends.written))
        if (
            before is not None and before.is_told and before.epoch == ends.epoch
            and before.segments[-1].base_offset == ends.base_offset and before.log_start_offset == ends.log_start_offset
        ):
            if before.active.at != end:
                before.active.at = end
            return before
        with refusals("list", self.path):
            files = {
                path: inode for path, inode in log_files(self.path).items()
                if names.parse_base_offset(path.name) <= ends.base_offset
            }
        again = self._read_ends()
        if again is None or again.epoch != ends.epoch or not files:
            return None
        if names.parse_base_offset(list(files)[-1].name) != ends.base_offset:
            return None
        return self._made(files, end, ends.log_start_offset, ends.epoch, is_told=True)

    def _scanned(self, before: _Picture | None) -> _Picture | None:
        """The picture from the .log files themselves, or None if a writer has opened the log meanwhile."""
        with refusals("list", self.path):
            files = settled_log_files(self.path)
        if not files:
            raise NotALogError(
                "no segment file (<20 digits>.log) in the directory", file=self.path, hint=hint_of_log_dir(self.path)
            )
        start = self._checkpointed_start(names.parse_base_offset(next(iter(files)).name))
        path, inode = list(files.items())[-1]
        growing = self._growing
        same = growing is not None and growing[:2] == (path, inode) and before is not None
        end = before.active.at if same and before is not None else None
        try:
            end = self._scanned_end(path, end)
        except StorageError as error:
            if error.errno != errno.ENOENT or path.is_symlink():
                raise
            return None     # a writer has removed it since it was listed
        if self._live() is not None:
            return None
        epoch = 0 if self._ends is None else self._ends.epoch
        if (
            same and before is not None and not before.is_told and before.epoch == epoch
            and before.log_start_offset == start and [segment.path for segment in before.segments] == list(files)
            and end.position >= before.active.at.position
        ):
            if end != before.active.at:
                before.active.at = end
                self._last_stable_offset = self._producers = None
            return before
        self._last_stable_offset = self._producers = None
        return self._made(files, end, start, epoch, is_told=False)

    def _scanned_end(self, path: Path, known: End | None) -> End:
        """The end of the whole batches in a .log. `known`: an earlier end, where the search begins."""
        # The index before the log: it may lead to a batch that was appended just now.
        end = _indexed_end(path, self) if known is None else known
        with FileMapping(path) as whole:
            if end.position > len(whole):       # it was truncated
                end = End(0, names.parse_base_offset(path.name), 0, 0, 0)
            window = dialect_of(path).window(whole)
            position, next_offset = end.position, end.next_offset
            while position < len(whole):
                table = scan(
                    window, position, check_crc=True, max_batches=SCAN_BATCHES, max_bytes=SCAN_BYTES,
                    min_offset=next_offset, decompress=self._decompress,
                )
                if len(table):
                    next_offset, position = table[-1].last_offset + 1, table.end
                if table.stop not in (Status.OK, Status.LIMIT):
                    break
        return end._replace(position=position, next_offset=next_offset)

    def _made(
        self, files: Mapping[Path, int], end: End, log_start_offset: int, epoch: int, *, is_told: bool
    ) -> _Picture:
        *sealed, (path, inode) = files.items()
        known, self._known = self._known, {}
        segments = []
        for place in sealed:
            segment = known.pop(place, None) or Segment(
                place[0], is_last=False, decompress=self._decompress, by_minute=True, last_opened=self._last_opened,
                inode=place[1],
            )
            self._known[place] = segment
            segments.append(segment)
        for gone in known.values():     # readers in one have its files; it is not opened again
            gone._retire()
            gone._let_go()
        active = PublishedEnd(end)
        growing = Segment(
            path, decompress=self._decompress, published=active, owned=is_told, reserve_bytes=_RESERVE_BYTES,
            by_minute=minute_index_path(path).exists(), last_opened=self._last_opened, inode=inode,
        )
        self._growing = path, inode, growing
        return _Picture([*segments, growing], log_start_offset, epoch, is_told, active)

    # --- reading ---------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        picture = self._look()
        ends = self._ends
        if picture.is_told and ends is not None:
            return max(min(ends.last_stable_offset, picture.log_end_offset), picture.log_start_offset)
        return super().last_stable_offset

    def __getitem__(self, offset: int) -> Record:
        return self._asked(super().__getitem__, offset)

    def find_offset(self, offset: int) -> tuple[Segment, BatchPosition] | None:
        return self._asked(super().find_offset, offset)

    def offset_for_time(self, when: Time) -> TimestampOffset | None:
        return self._asked(super().offset_for_time, when)

    def _offset_for_ms(self, target: int) -> TimestampOffset | None:
        return self._asked(super()._offset_for_ms, target)

    def _find_tail(self, asked: tuple[int, bool]) -> tuple[Extent, int, int]:
        return self._asked(super()._find_tail, asked)

    def _asked(self, ask: Callable[[What], Answer], what: What) -> Answer:
        """An answer from one picture, however often segments are changed meanwhile."""
        while True:
            picture = self._look()
            try:
                answer = ask(what)
            except OffsetOutOfRangeError:
                if self._settled() is picture:
                    raise
            else:
                if self._is_still(picture):
                    return answer

    def _is_still(self, picture: Extent) -> bool:
        """Whether the log still holds what was just read: no segment was truncated, exchanged or removed since."""
        return isinstance(picture, _Picture) and _PictureSource(self).is_still(picture, picture.epoch)

    def _settled(self) -> _Picture:
        """The picture once no segments are being changed: never the one from before a change that just ended."""
        deadline = time.monotonic() + _CHANGE_S
        while True:
            with self._turn:
                found = self._looked(between_changes=True)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                return self._look()
            time.sleep(_CHANGE_LOOK_S)

    def _walk(
        self, extent: Extent, first: int, stop: int | None, check_crc: bool, on_lost: OnLost | None
    ) -> Iterator[tuple[Segment, BatchTable]]:
        """As `LogReader._walk`, over segments that may be truncated, exchanged or removed meanwhile.

        Truncated records are gone, and records appended in their place came later: the walk ends where the truncation
        left the log.
        """
        epoch = extent.epoch if isinstance(extent, _Picture) else 0
        while True:
            try:
                for segment, table in super()._walk(extent, first, stop, check_crc, on_lost):
                    if not self._is_still(extent):
                        break
                    yield segment, table
                    if len(table):
                        first = max(first, table[-1].last_offset + 1)
                else:
                    return
            except OffsetOutOfRangeError:
                if self._settled() is extent:
                    raise
            extent = self._settled()
            truncation = _PictureSource(self).truncation_since(epoch)
            if truncation is not None:
                stop = truncation if stop is None else min(stop, truncation)
            if first < extent.log_start_offset:
                raise out_of_range(extent, first, self.path)
            if first >= (extent.log_end_offset if stop is None else min(stop, extent.log_end_offset)):
                return

    def _if_gone(self, offset: int, error: OffsetOutOfRangeError | StorageError) -> SeglogError:
        if isinstance(error, StorageError) and error.errno != errno.ENOENT:
            return error
        return out_of_range(self._look(), offset, self.path)

    # --- following -------------------------------------------------------------------------------

    @property
    def _source(self) -> FollowedLog:
        return _PictureSource(self)


class _PictureSource:
    """What `follow` needs of a log that another process writes."""

    def __init__(self, log: Follower) -> None:
        self._log = log

    # Never: `moment` returns the previous picture while another process changes segments.
    is_changing = False

    def reload(self) -> None:
        """Nothing: changes are another process's."""

    def moment(self) -> tuple[Extent, int]:
        """The extent of the log now, and the epoch of its last truncation."""
        picture = self._log._look()
        return picture, picture.epoch

    def truncation_since(self, epoch: int) -> int | None:
        """The lowest log end offset after a truncation since that epoch, or None if there was none."""
        ends = self._log._ends
        return None if ends is None else ends.truncation_since(epoch)

    def is_still(self, extent: Extent, epoch: int) -> bool:
        """Whether what was read in the extent, of that epoch, was in the log when it was read."""
        with self._log._turn:
            ends = self._log._live()
            if not self._log._is_open or not isinstance(extent, _Picture) or extent.is_told != (ends is not None):
                return False
            # epoch + 1: a change has begun, but the earlier maps do not see it.
            return ends is None or ends.epoch in (epoch, epoch + 1)

    def has_moved(self, extent: Extent) -> bool:
        """Whether the extent is another one once no segments are being changed. Raises LogClosedError."""
        return self._log._settled() is not extent

    def waiter(self, bell: AnyBell) -> "_Watching":
        """Return what waits for the next append, and rings the bell."""
        return _Watching(self._log, bell)


class _Watching:
    """A following.Waiter: watches the live file while its writer lives, otherwise the directory. Watching the directory
    reports each append to a .log, which would slow the writer down."""

    def __init__(self, log: Follower, bell: AnyBell) -> None:
        self._log = log
        self._bell = bell
        self._watched: WatchedFile | None = None
        # Made once: each waiting task compares them by identity.
        self._live = log.path / FILE_NAME, False
        self._directory = log.path, True
        self._place: tuple[Path, bool] | None = None
        with log._turn:
            log._bells = (*log._bells, bell)

    def arm(self) -> bool:
        picture = self._log._picture_now
        place = self._live if picture is not None and picture.is_told else self._directory
        if place is self._place:
            return False
        self._drop()
        self._place = place
        self._watched = FILE_WATCHES.watch(place[0], self._bell, is_directory=place[1])
        return True

    @property
    def patience_s(self) -> float:
        return _IDLE_S if self._watched is not None else _POLL_S

    def cancel(self) -> None:
        self._drop()
        log = self._log
        with log._turn:
            log._bells = tuple(bell for bell in log._bells if bell is not self._bell)

    def _drop(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.cancel()


def _indexed_end(path: Path, log: Follower) -> End:
    """Where a whole batch begins, near the end of a .log, and how many entries its indexes have."""
    segment = Segment(path, decompress=log._decompress, by_minute=True)
    try:
        position = segment.position_near(2**63 - 1)
        counts = []
        for kind in ("offset_index", "time_index", "minute_index"):
            try:
                index = getattr(segment, kind)
            except CorruptIndexError:
                index = None
            counts.append(0 if index is None else len(index))
    finally:
        segment.close()
    return End(position, segment.base_offset, *counts)


def _followed(path: str, durable: bool, config: LogConfig) -> Follower:
    """What unpickling a follower calls."""
    return Follower(path, durable=durable, config=config)


def follow(
    path: str | Path, *, durable: bool = False, config: Mapping[str, object] | LogConfig | None = None
) -> Follower:
    """Open a partition directory to read it while another process appends to it; no lock, nothing is written.

    It has every method of `Partition`, each of which sees the current state, and `follow`. Readers see the same whole
    batches as readers in the writer's process: durable ones with fsync="batch", otherwise all written ones; with
    `durable=True`, only durable ones whatever the writer's `fsync`. Without a writer, or beside a Kafka broker, they
    see everything up to the last whole batch with a good checksum. If the writer dies and restarts, reading continues.

    Raises what `open_partition` raises, and UnsupportedVersionError if a newer seglog writes it.
    """
    return Follower(path, durable=durable, config=config)
