"""A partition directory as its backup finds it, while a writer or a broker changes it.

    the log as it is now ── copy ── is it still that log? ── yes: this was its moment
                 └───────────────── no: again, without what is copied already

A moment is an end offset up to which every segment was there, unchanged, from the first look until the last. Segments
are told apart by inode, size and time; a seglog writer also tells by its epoch that it truncates or replaces some. The
one that grows is copied up to its last whole batch, which may not be on the source's disk yet: what readers are told
lags by milliseconds, and a record that was acknowledged before a backup begins is in it. If it has damage that whole
batches follow, it is copied byte by byte, as the closed ones are. What the store has of that segment is kept if its
last batch there is still the same, leader epoch included: after a power cut, or a truncation, a broker may have written
other batches at those offsets.
"""
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seglog._kernels.crc import crc32c
from seglog.archive.ends import content_until, is_until
from seglog.archive.last_aborts import with_last_aborts
from seglog.archive.log_dir_lines import Lines, LogDirLines
from seglog.archive.sound_batches import SoundBatches
from seglog.backups.buffers import Buffers
from seglog.backups.manifest import (
    INLINE_BYTES,
    BackedFile,
    Identity,
    LastBatch,
    PartitionBackup,
    in_pieces,
    is_backed_up,
)
from seglog.backups.pieces import PIECE_BYTES, Piece, PieceStore
from seglog.errors import OffsetOutOfRangeError, StorageError
from seglog.format import names
from seglog.fs.mapping import Mapping as FileMapping
from seglog.fs.mapping import RegularFile, read_file, status_of
from seglog.fs.refusals import refusals
from seglog.reading.follower import Follower
from seglog.reading.listing import settled_log_files
from seglog.segment.damage import NO_END
from seglog.segment.index_file import minute_index_path
from seglog.segment.positions import LostRange
from seglog.segment.published_end import End, PublishedEnd
from seglog.segment.recovery import check_behind
from seglog.segment.segment import Segment
from seglog.state.reader_cursor import is_cursor_file

# How often a partition that changes during its copy is copied again. Each time, only new data is read.
LOOKS_MAX = 100
PAUSE_S, PAUSE_S_MAX = 0.005, 1.0
# A second change within this time may leave a file's time as it was: the kernel's clock ticks.
TICK_NS = 20_000_000

Copied = Callable[[int], None]


class ChangedError(Exception):
    """A file is not, or no longer, what the look at the log found."""


@dataclass(slots=True)
class FileCopy:
    """A file to be stored: the pieces that the store has of it, and where the others end. Or `raw`: its bytes.
    `batches`: looks at what is read of a log."""

    name: str
    path: Path
    identity: Identity
    mode: int
    size_bytes: int
    kept: tuple[Piece, ...] = ()
    ends: tuple[int, ...] = ()
    raw: bytes | None = None
    batches: SoundBatches | None = None

    @property
    def start(self) -> int:
        return sum(piece.size_bytes for piece in self.kept)

    def data(self, buffers: Buffers) -> Iterator[bytes | memoryview]:
        """The bytes of the pieces that the store lacks. Raises ChangedError."""
        if self.raw is not None:
            yield from in_pieces(self.raw)
        elif self.ends:
            start = self.start
            with as_changes(self.path), RegularFile(self.path) as whole:
                if whole.inode != self.identity.inode:
                    raise ChangedError(f"{self.path.name} was replaced")
                for end in self.ends:
                    part = buffers.take(end - start)
                    if whole.read_into(start, part) < end - start:
                        raise ChangedError(f"{self.path.name} became shorter")
                    if self.batches is not None:
                        self.batches.add(part)
                    yield part
                    start = end

    def until(self, end: int) -> "FileCopy":
        """A small file without what lies behind the end of the log."""
        assert self.raw is not None
        raw = content_until(self.raw, self.path, end)
        return replace(self, raw=raw, size_bytes=len(raw))

    def stored(self, pieces: tuple[Piece, ...]) -> BackedFile:
        inode, _, mtime_ns = self.identity
        return BackedFile(self.name, self.size_bytes, mtime_ns, inode, self.mode, (*self.kept, *pieces))


class as_changes:
    """In this block, a file that is gone, or became shorter while it was read, is a ChangedError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        gone = (isinstance(error, StorageError) and error.errno in (None, errno.ENOENT)) or isinstance(
            error, FileNotFoundError)
        if gone:
            raise ChangedError(f"{self._path.name}: {error}") from error


class MovingPartition:
    """One partition directory. `lines`: of its log dir. `before`: what the last snapshot of the same directory has of
    it. `reread`: trust neither that nor the times of files; read them, in the pieces that they had.

    damage      what `copy` found damaged: in the segment that grows, with whole batches behind it; or in what it read,
                by the checksums of the batches; empty: nothing
    """

    def __init__(
        self, directory: Path, lines: LogDirLines, before: PartitionBackup | None = None, *, reread: bool = False
    ) -> None:
        self.directory = directory
        self.damage = ""
        self._lines = lines
        self._reread = reread
        self._before = {} if before is None else {file.name: file for file in before.files}
        self._tail = None if before is None else before.tail
        logs = sorted(name for name in self._before if names.is_log_file(name))
        self._grew = logs[-1] if logs else ""
        self._copied: dict[tuple[str, Identity], BackedFile] = {}       # by this run
        self._sound: set[tuple[str, Identity, int]] = set()             # logs whose batches this run has checked

    def copy(self, pieces: PieceStore, copied: Copied = lambda _: None) -> tuple[PartitionBackup, str]:
        """Store what the store lacks. Returns what the partition is as of one moment, and its fingerprint.

        `copied` is called with the numbers of bytes that were read. Raises what `seglog.follow` raises, and
        StorageError, also if the partition changes faster than it can be copied.
        """
        with Follower(self.directory) as log:
            for look in range(LOOKS_MAX):
                try:
                    return self._moment(log, pieces, copied)
                except (ChangedError, OffsetOutOfRangeError) as change:
                    what = str(change)
                time.sleep(min(PAUSE_S * look, PAUSE_S_MAX))
        raise StorageError(
            f"the partition changed each of {LOOKS_MAX} times that it was copied, at last: {what}",
            file=self.directory, hint="run again when less changes, or back up a snapshot of the file system",
        )

    def _moment(self, log: Follower, pieces: PieceStore, copied: Copied) -> tuple[PartitionBackup, str]:
        cursors = self._cursors()       # before the log, so that none is ahead of it
        with refusals("list", self.directory):
            logs = settled_log_files(self.directory)
        if not logs:
            raise ChangedError("its segments are gone")
        for path in logs:
            identity_of(path)
        *sealed, active = logs
        lines = self._lines.of(self.directory.name)
        start = max(lines[0] or 0, names.parse_base_offset(next(iter(logs)).name))
        with as_changes(active):
            end = log._scanned_end(active, None)
        copies = [self._of_log(path, None) for path in sealed]
        behind, self.damage = self._behind(log, active, end)
        position, next_offset = behind.position, behind.next_offset
        if self.damage:
            tail: LastBatch | None = LastBatch(end.position, crc_of(active, end.position, position))
            with as_changes(active):
                if log._scanned_end(active, end) != end:
                    raise ChangedError(f"{active.name} was being written")
        else:
            tail = self._last_batch(log, active, end)
            if tail is None and end.position:
                raise ChangedError(f"{active.name} was replaced")
        grown = self._of_log(active, position, next_offset)
        copies.append(grown)
        copies += self._small_files(active, next_offset)
        if not self.damage:
            self._list_last_aborts(copies, grown, sealed, end)
        copies += [copy.until(next_offset) for copy in cursors]
        files = store_copies(copies, self._copied, pieces, copied)

        checked = self._checked(copies, active, behind)
        picture = log._settled()
        epoch = picture.epoch
        if not picture.is_told:     # a broker truncates files in place, a seglog writer never does
            _wait_for_tick(copies[: len(sealed)])
        self._check_unchanged(logs, copies, tail, position, lines)
        if log._settled().epoch != epoch:
            raise ChangedError("segments were truncated, replaced or removed")
        made = PartitionBackup(
            self.directory.name, start, next_offset, _at_most(lines[1], next_offset),
            _at_most(lines[2], next_offset), tuple(sorted(files, key=lambda file: file.name)), tail,
            minute_index_path(active).exists(),
        )
        is_whole = all(file.size_bytes == copy.identity.size_bytes for file, copy in zip(files, copies, strict=True))
        identities = {file.name: file.identity for file in files}
        # Without a fingerprint, the next run finds this damage again, and names it, too.
        fingerprint = fingerprint_of(identities, lines) if is_whole and not self.damage else ""
        self.damage = self.damage or checked
        return made, fingerprint

    def _checked(self, copies: Iterable[FileCopy], active: Path, end: End) -> str:
        """The first damage in the logs that this run has read, by the checksums of their batches; empty if there is
        none. What the store had already was checked by the run that stored it."""
        for copy in copies:
            if not names.is_log_file(copy.name) or not copy.ends:
                continue
            key = copy.name, copy.identity, copy.size_bytes
            if copy.batches is not None and copy.batches.is_sound:
                self._sound.add(key)
            if key in self._sound:
                continue
            published = PublishedEnd(end) if copy.path == active else None
            lost: list[LostRange] = []
            segment = Segment(copy.path, published=published)
            try:
                with as_changes(copy.path):
                    for _ in segment.tables(self._unchecked_from(copy.name, copy.kept), on_lost=lost.append):
                        if lost:
                            break
            finally:
                segment.close()
            if lost:
                return f"{copy.name}: byte {lost[0].position}: {lost[0].reason}"
        return ""

    def _unchecked_from(self, name: str, kept: tuple[Piece, ...]) -> int:
        """Where the batches begin that no run has checked: those before were checked by the run that stored them."""
        before = self._before.get(name)
        return before.size_bytes if kept and before is not None else 0

    def _check_unchanged(
        self, logs: Mapping[Path, int], copies: Iterable[FileCopy], tail: LastBatch | None, position: int, lines: Lines
    ) -> None:
        """Raise ChangedError unless the log that was copied is still there, however much was appended to it."""
        *sealed, active = logs
        with refusals("list", self.directory):
            now = settled_log_files(self.directory)
        for path, inode in logs.items():
            if now.get(path) != inode:
                raise ChangedError(f"{path.name} was replaced or removed")
        for path, copy in zip(sealed, copies, strict=False):
            if identity_of(path)[0] != copy.identity:
                raise ChangedError(f"{path.name} was changed")
        if tail is not None and crc_of(active, tail.position, position) != tail.crc32c:
            raise ChangedError(f"{active.name} was truncated")
        if self._lines.of(self.directory.name)[0] != lines[0]:
            raise ChangedError("the log start offset moved")

    # --- what is copied --------------------------------------------------------------------------

    def _of_log(self, path: Path, end: int | None, end_offset: int = NO_END) -> FileCopy:
        """A .log, up to `end`: the whole file without. Its batches end below `end_offset`."""
        identity, mode = identity_of(path)
        name = path.name.removesuffix(names.SWAP_SUFFIX)
        size_bytes = identity.size_bytes if end is None else end
        if identity.size_bytes < size_bytes:
            raise ChangedError(f"{path.name} became shorter")
        before = self._before.get(name)
        kept: tuple[Piece, ...] = ()
        if before is not None and not self._reread:
            if end is None and before.identity == identity:
                kept = before.pieces
            elif self._is_prefix(before, path, identity, size_bytes):
                kept = worth_keeping(before.pieces, size_bytes - before.size_bytes)
        start = sum(piece.size_bytes for piece in kept)
        ends = ends_of(start, size_bytes, [] if before is None or kept else before.pieces)
        batches = SoundBatches(path, start, self._unchecked_from(name, kept), size_bytes, end_offset) if ends else None
        return FileCopy(name, path, identity, mode, size_bytes, kept, ends, batches=batches)

    def _is_prefix(self, before: BackedFile, path: Path, identity: Identity, size_bytes: int) -> bool:
        """Whether what the store has of the log that grew is still how the log begins."""
        if before.name != self._grew or self._tail is None or before.inode != identity.inode:
            return False
        return before.size_bytes <= size_bytes and (
            crc_of(path, self._tail.position, before.size_bytes) == self._tail.crc32c
        )

    def _behind(self, log: Follower, active: Path, end: End) -> tuple[End, str]:
        """The end of what is copied of the segment that grows, and what is damaged before it. An unfinished write is
        left out: no whole batch follows it."""
        if identity_of(active)[0].size_bytes <= end.position:
            return end, ""
        base_offset = names.parse_base_offset(active.name)
        with as_changes(active):
            check = check_behind(active, base_offset, end.position, end.next_offset, log.config)
        if not (
            check.has_run_behind_damage or check.foreign_magics or any(lost.is_misplaced for lost in check.damages)
        ):
            return end, ""
        first = min(
            [(lost.start, lost.reason) for lost in check.damages]
            + [(position, "a v2 batch with another magic") for position in check.foreign_magics]
        )
        what = f"{active.name}: byte {first[0]}: {first[1]}"
        if check.has_run_behind_damage:
            what += ", and whole batches follow"
        return end._replace(
            position=check.size_bytes, next_offset=max(end.next_offset, check.next_offset)
        ), what

    def _last_batch(self, log: Follower, path: Path, end: End) -> LastBatch | None:
        if not end.position:
            return None
        segment = Segment(path, decompress=log._decompress, published=PublishedEnd(end))
        try:
            with as_changes(path):
                last = segment.find_offset(end.next_offset - 1)
        finally:
            segment.close()
        if last is None or last.position + last.size_bytes != end.position:
            return None
        return LastBatch(last.position, crc_of(path, last.position, end.position))

    def _small_files(self, active: Path, next_offset: int) -> Iterator[FileCopy]:
        """The files beside the logs, except cursors. None tells of offsets behind the end."""
        with refusals("list", self.directory):
            listed = set(os.listdir(self.directory))
        swapped = {
            name.removesuffix(names.SWAP_SUFFIX) for name in listed
            if name.endswith(names.TRANSACTION_INDEX_SUFFIX + names.SWAP_SUFFIX)
        } if active.name.endswith(names.SWAP_SUFFIX) else set()
        for name in sorted(listed):
            if not is_backed_up(name) or names.is_log_file(name) or is_cursor_file(name):
                continue
            path = self.directory / (name + names.SWAP_SUFFIX if name in swapped else name)
            parsed = names.parse_file_name(name)
            if not is_until(name, next_offset):
                continue
            try:
                identity, mode = identity_of(path)
                raw = read_file(path)
                if identity_of(path)[0] != identity:
                    raise ChangedError(f"{name} was changed")
            except (ChangedError, FileNotFoundError):
                if parsed is not None and parsed.suffix == names.SNAPSHOT_SUFFIX:
                    continue        # a broker keeps only the last ones; the log tells all that it told
                raise ChangedError(f"{name} was changed or removed") from None
            raw = content_until(raw, path.with_name(name), next_offset)
            yield FileCopy(name, path, identity, mode, len(raw), raw=raw)

    def _list_last_aborts(self, copies: list[FileCopy], grown: FileCopy, sealed: Sequence[Path], end: End) -> None:
        """Complete the .txnindex of the segment that grows, or add it."""
        name = names.file_name(names.parse_base_offset(grown.name), names.TRANSACTION_INDEX_SUFFIX)
        found = next((at for at, copy in enumerate(copies) if copy.name == name), None)
        raw = b"" if found is None else copies[found].raw or b""
        begin = self._tail.position if grown.kept and self._tail is not None else 0
        segment = Segment(grown.path, published=PublishedEnd(end))
        try:
            with as_changes(grown.path):
                complete = with_last_aborts(raw, self.directory / name, segment, begin, sealed)
        finally:
            segment.close()
        if found is not None:
            copies[found] = replace(copies[found], raw=complete, size_bytes=len(complete))
        elif complete:
            missing = grown.identity._replace(size_bytes=0)
            copies.append(FileCopy(name, self.directory / name, missing, grown.mode, len(complete), raw=complete))

    def _cursors(self) -> list[FileCopy]:
        with refusals("list", self.directory):
            found = sorted(filter(is_cursor_file, os.listdir(self.directory)))
        copies = []
        for name in found:
            path = self.directory / name
            try:
                identity, mode = identity_of(path)
                raw = read_file(path)
            except (ChangedError, FileNotFoundError):
                continue        # it was removed
            copies.append(FileCopy(name, path, identity, mode, len(raw), raw=raw))
        return copies

    def fingerprint(self) -> str:
        """What `copy` returns for the files as they are now; empty if they are just being changed."""
        found = {}
        with refusals("list", self.directory), os.scandir(self.directory) as entries:
            for entry in entries:
                if is_backed_up(entry.name):
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        return ""       # it was removed since
                    found[entry.name] = Identity(status.st_ino, status.st_size, status.st_mtime_ns)
                elif entry.name.endswith((names.SWAP_SUFFIX, names.CLEANED_SUFFIX)):
                    return ""
        return fingerprint_of(found, self._lines.of(self.directory.name))


def store_copies(
    copies: list[FileCopy], stored: dict[tuple[str, Identity], BackedFile], pieces: PieceStore, copied: Copied
) -> list[BackedFile]:
    """Store the copies. `stored`: the logs that this run has stored by now, to which these are added."""
    made = pieces.put_each(_data(copies, stored, copied, pieces.buffers))
    files = []
    for copy in copies:
        known = stored.get((copy.name, copy.identity))
        if known is not None and known.size_bytes == copy.size_bytes:
            files.append(known)
        elif copy.raw is not None and len(copy.raw) <= INLINE_BYTES:
            files.append(replace(copy.stored(()), inline=copy.raw))
        else:
            count = len(copy.ends) if copy.raw is None else len(in_pieces(copy.raw))
            files.append(copy.stored(tuple(next(made) for _ in range(count))))
            if copy.raw is None:
                stored[copy.name, copy.identity] = files[-1]
    for _ in made:      # there is none; but what was begun comes to its end
        raise AssertionError("more pieces were stored than there are")
    return files


def _data(
    copies: Iterable[FileCopy], stored: Mapping[tuple[str, Identity], BackedFile], copied: Copied, buffers: Buffers
) -> Iterator[bytes | memoryview]:
    """The pieces of all files, in order; of those that are stored by now, none."""
    for copy in copies:
        known = stored.get((copy.name, copy.identity))
        if known is not None and known.size_bytes == copy.size_bytes:
            continue
        if copy.raw is not None and len(copy.raw) <= INLINE_BYTES:
            continue
        for data in copy.data(buffers):
            size_bytes = len(data)
            yield data
            copied(size_bytes)


def identity_of(path: Path) -> tuple[Identity, int]:
    """The identity and the mode of a file. Raises ChangedError if it is gone; StorageError, also if it is none that a
    log could have, which no other look would change."""
    try:
        status = status_of(path)
    except FileNotFoundError as error:
        raise ChangedError(f"{path.name} was removed") from error
    return Identity(status.st_ino, status.st_size, status.st_mtime_ns), stat.S_IMODE(status.st_mode) & 0o666


def _wait_for_tick(copies: Iterable[FileCopy]) -> None:
    """Wait until any change of the files would have given them other times."""
    ago_ns = time.time_ns() - max((copy.identity.mtime_ns for copy in copies), default=0)
    if 0 <= ago_ns < TICK_NS:
        time.sleep((TICK_NS - ago_ns) / 1e9)


def crc_of(path: Path, start: int, stop: int) -> int:
    """The CRC-32C of these bytes of a file. Raises ChangedError if it lacks them."""
    with as_changes(path), FileMapping(path) as whole:
        if len(whole) < stop:
            raise ChangedError(f"{path.name} became shorter")
        return crc32c(memoryview(whole)[start:stop])


def worth_keeping(pieces: tuple[Piece, ...], appended_bytes: int) -> tuple[Piece, ...]:
    """Without the last pieces that are as small as what was appended: they are stored again, together with it.

    So a log that is backed up each second has few pieces, and each byte is stored a few times.
    """
    count = len(pieces)
    while appended_bytes and count and pieces[count - 1].size_bytes <= min(appended_bytes, PIECE_BYTES - 1):
        count -= 1
        appended_bytes += pieces[count].size_bytes
    return pieces[:count]


def ends_of(start: int, size_bytes: int, pieces: Iterable[Piece]) -> tuple[int, ...]:
    """Where the pieces of [start, size_bytes) end: where `pieces` of the same file did, as far as known."""
    ends, position = [], 0
    for piece in pieces:
        position += piece.size_bytes
        if position <= size_bytes:
            ends.append(position)
    at = ends[-1] if ends else start
    while at < size_bytes:
        at = min(at + PIECE_BYTES, size_bytes)
        ends.append(at)
    return tuple(ends)


def fingerprint_of(identities: Mapping[str, Identity], lines: Lines) -> str:
    told = "\n".join(f"{name} {identity}" for name, identity in sorted(identities.items()))
    return hashlib.sha256(f"{lines}\n{told}".encode()).hexdigest()


def _at_most(offset: int | None, end: int) -> int | None:
    return None if offset is None else max(min(offset, end), 0)
