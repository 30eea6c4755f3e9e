"""The writer's side of `.seglog.live`: how far readers in other processes may read. docs/formats/live_ends.md

    an append, or a sync ── announce ── the thread of reading.notices ── publish      at most every few milliseconds
    a truncation, an exchange, a removal ── begin ── the change ── end                   in the thread that makes it

Appends never wait for this file, and its errors do not fail the log: if it cannot be written it is removed, and readers
scan the .log itself. The epoch and the truncations are kept in any case: readers in the same process use them, too.
"""
import os
import threading
from pathlib import Path

from seglog.errors import UnsupportedVersionError
from seglog.format.live_ends import FILE_BYTES, FILE_NAME, LiveEnds, latest_of, slot_position
from seglog.fs.live_file import BOOT_ID, LiveFile
from seglog.logger import Logger
from seglog.reading.extent import Shown
from seglog.segment.published_end import End, PublishedEnd

_LOG = Logger(__name__)

_NOWHERE = (0, 0, 0, 0, 0)


class Growth:
    """How far the active segment goes: a new object after each roll and truncation.

    written         its batches, and the aborted transactions among them
    published       where readers stop: the same end, or its durable part if `shows_durable`
    durable         what is on the disk
    """

    __slots__ = ("_begun_position", "base_offset", "durable", "published", "written")

    def __init__(self, base_offset: int, end: End, *, shows_durable: bool) -> None:
        self.base_offset = base_offset
        self.written = PublishedEnd(end)
        self.published = PublishedEnd(end) if shows_durable else self.written
        self.durable = end
        self._begun_position = end.position     # where this process began to append to it

    @property
    def appended_bytes(self) -> int:
        """Bytes appended by this process."""
        return self.written.at.position - self._begun_position

    def sealed(self, end: End) -> None:
        """This is the segment's last end, and it is on the disk."""
        self.published.at = self.written.at = self.durable = end


class LiveWriter:
    """Writes the live file. Threads may share it; the caller of `grow` holds the log's lock."""

    growth: Growth

    def __init__(self, path: Path, shows_durable: bool) -> None:
        self._file = LiveFile(f"{path}{os.sep}{FILE_NAME}")
        self._lock = threading.Lock()       # guards all below
        self._bytes_before = 0              # appended to earlier segments
        self._is_new = True                 # the file holds nothing of seglog's yet
        self._is_off = False                # closed, the file is another process's, or it cannot be written
        self._end_before: int | None = None     # before the change in progress, or None if unknown
        self._ends = LiveEnds(
            BOOT_ID, is_open=True, shows_durable=shows_durable, epoch=0, log_start_offset=0, last_stable_offset=0,
            base_offset=0, written=_NOWHERE, durable=_NOWHERE,
        )

    def grow(self, growth: Growth) -> None:
        """Tell that there is a new active segment, or the same one after a truncation."""
        if hasattr(self, "growth"):
            self._bytes_before += self.growth.appended_bytes
        self.growth = growth

    @property
    def appended_bytes(self) -> int:
        """Bytes appended since the log was opened."""
        return self._bytes_before + self.growth.appended_bytes

    @property
    def epoch(self) -> int:
        """Odd while segments are truncated, exchanged or removed."""
        return self._ends.epoch

    @property
    def ends(self) -> LiveEnds:
        """What readers are told, also where the file cannot be written."""
        return self._ends

    def truncation_since(self, epoch: int) -> int | None:
        return self._ends.truncation_since(epoch)

    def take_up(self) -> None:
        """Before a recovery: continue from the last writer's state; its readers wait until `end`."""
        with self._lock:
            before = _told_in(self._file)
            if before is not None:
                self._is_new = False
                if before.boot_id == BOOT_ID:
                    self._end_before = End(*before.written).next_offset
                self._ends = before._replace(
                    boot_id=BOOT_ID, is_open=True, shows_durable=self._ends.shows_durable,
                    epoch=before.epoch | 1,
                )
                if before.is_open:
                    self._write()

    def begin(self) -> None:
        """Before segments are truncated, exchanged or removed: new readers wait for `end`. Idempotent."""
        with self._lock:
            if not self._ends.epoch & 1:
                self._end_before = self.growth.written.at.next_offset
                self._ends = self._ends._replace(epoch=self._ends.epoch + 1)
                self._write()

    def end(
        self, shown: Shown, last_stable_offset: int, truncated_to: int | None = None, *, is_whole: bool = False
    ) -> None:
        """After the change. `truncated_to`: all records from this offset on were removed. `is_whole`: record no
        truncation if no reader can have seen a record there, because readers that commit later would be refused."""
        with self._lock:
            ends = self._ends
            epoch = (ends.epoch | 1) + 1
            before, self._end_before = self._end_before, None
            if truncated_to is not None and not (is_whole and before is not None and before <= truncated_to):
                ends = ends.with_truncation(epoch, truncated_to)
            self._publish(shown, last_stable_offset, ends, epoch)

    def publish(self, shown: Shown, last_stable_offset: int) -> None:
        """Publish how far readers may read now, unless segments are being changed: then `end` does."""
        with self._lock:
            if not self._ends.epoch & 1:
                self._publish(shown, last_stable_offset, self._ends, self._ends.epoch)

    def close(self) -> None:
        """Publish that the writer has closed the log."""
        with self._lock:
            self._ends = self._ends._replace(is_open=False)
            self._write()
            self._is_off = True

    def let_go(self) -> None:
        """In a forked child: the file is the parent's."""
        self._lock = threading.Lock()
        self._is_off = True

    def _publish(self, shown: Shown, last_stable_offset: int, before: LiveEnds, epoch: int) -> None:
        """Publish what changed since `before`."""
        extent, growth = shown.extent, self.growth
        if extent is None:
            self._ends = before._replace(epoch=epoch)
            return
        # Read before `written`, so that the durable end is never past the written one.
        durable = growth.published.at if before.shows_durable else growth.durable
        ends = before._replace(
            epoch=epoch, log_start_offset=extent.log_start_offset, last_stable_offset=last_stable_offset,
            base_offset=growth.base_offset, written=growth.written.at, durable=durable,
        )
        if ends != before:
            self._ends = ends
            self._write()

    def _write(self) -> None:
        self._ends = self._ends._replace(sequence=self._ends.sequence + 1)
        if self._is_off:
            return
        sequence = self._ends.sequence
        try:
            if self._is_new:        # overwrite whatever is there
                self._file.write(bytes(FILE_BYTES))
                self._is_new = False
            self._file.write(self._ends.to_slot(sequence), slot_position(sequence))
        except OSError as error:
            self._is_off = True
            self._file.remove()
            _LOG.warning("cannot write %s, so readers in other processes scan the log: %s", self._file.path, error)


def told_ends(directory: Path) -> LiveEnds | None:
    """The contents of a directory's file, by any writer and of any age; None if there is none that we can read."""
    return _told_in(LiveFile(directory / FILE_NAME))


def _told_in(file: LiveFile) -> LiveEnds | None:
    try:
        return latest_of(file.read(FILE_BYTES), file.path)
    except (OSError, UnsupportedVersionError):
        return None
