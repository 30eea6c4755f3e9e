"""What tells the next opening how much to check: the mark of a log that changes, and its recovery point.

Everything before the recovery point is on the disk. It moves at each roll, and each time a fixed number of bytes has
been synced. After a roll with fewer bytes, it is written together with other changes of the log dir.
"""
from collections.abc import Mapping
from pathlib import Path

from seglog.errors import StorageError
from seglog.logger import Logger
from seglog.segment.published_end import End
from seglog.state.partition_hold import NO_FILES, PartitionHold

_LOG = Logger(__name__)

# After a writer died, the bytes after the recovery point are checked and written to the disk again: that must take only
# a fraction of a second, however large segments are.
MAX_BEHIND_BYTES = 64 << 20


class RecoveryPoint:
    """`offset`, and `due_position`: a sync up to that place in the active segment moves it (`move_to`). `is_changed`:
    the log was, since opening.

    Changed with the lock of the log, or alone with its files.
    """

    def __init__(self, hold: PartitionHold) -> None:
        self._hold = hold
        self.offset = 0
        self.is_changed = False
        self._position = 0          # in the active segment: where it was last moved, or should have been
        self._behind_bytes = 0      # of sealed segments, after the point that is surely in the checkpoint file
        self.due_position = MAX_BEHIND_BYTES

    def go_on_at(self, position: int) -> None:
        """There is a new active segment, with `position` bytes."""
        self._position = position
        self.due_position = position + MAX_BEHIND_BYTES - self._behind_bytes

    def before_change(self, files: Mapping[Path, bytes] = NO_FILES) -> None:
        """Mark the directory, so that the next opening does not take it for clean. Cheap from the second call on.

        `files` in it get new contents then, durably.
        """
        if not self.is_changed:
            self._note()
            self._hold.before_first_write(files)
            self.is_changed = True
        elif files:
            self._hold.before_first_write(files)

    def loaded_again(self) -> None:
        """The log was loaded from the disk: the next `before_change` notes how far it was checked."""
        self.is_changed = False

    def _note(self) -> None:
        """Before the mark says that the log changes."""
        hold = self._hold
        if self.offset == (hold.recovery_point or 0):
            return
        # While the mark still describes what was recovered. For a clean log there is no mark.
        if hold.clean and self.offset > (hold.recovery_point or 0):
            hold.advance(self.offset)
        else:
            hold.put(recovery_point=self.offset)

    def put(self, offset: int) -> None:
        """Write the point: the next opening checks the log from `offset` on."""
        self._hold.put(recovery_point=offset)
        self.offset = offset
        self._behind_bytes = 0
        self.go_on_at(self._position)

    def sealed(self, size_bytes: int) -> None:
        """The active segment was sealed with `size_bytes`."""
        self._behind_bytes += size_bytes - self._position

    def after_roll(self, offset: int) -> None:
        """Move the point to the new segment; write it at once if much was rolled since it was last written."""
        if self._behind_bytes >= MAX_BEHIND_BYTES:
            self.put(offset)
        else:
            if self._hold.advance(offset):
                self._behind_bytes = 0
                self.go_on_at(self._position)
            self.offset = offset

    def move_to(self, end: End) -> None:
        """Move the point after a sync. If that fails, the next opening only has more to check."""
        self.go_on_at(end.position)
        try:
            self.put(end.next_offset)
        except StorageError as error:
            _LOG.warning("%s: the recovery point stays at offset %d: %s", self._hold.path, self.offset, error)
