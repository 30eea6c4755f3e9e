"""Up to where a log is on the disk for certain: what lies behind, the next opening checks. And when its log dir hears.

It moves at each roll, and with so many bytes that are on the disk since. A roll that left less behind is written with
other changes of the log dir.
"""
import logging

from seglog.errors import StorageError
from seglog.segment.published import End
from seglog.state.partition_hold import PartitionHold

_LOG = logging.getLogger(__name__)

# What lies behind it is checked when a writer died, and written to the disk again: that shall take a fraction of a
# second, however large segments are.
MAX_BEHIND_BYTES = 64 << 20


class RecoveryPoint:
    """`offset`; and `due_position`: a sync up to that place in the active segment moves it (`move_to`).

    Changed with the lock of the log, or alone with its files.
    """

    def __init__(self, hold: PartitionHold) -> None:
        self._hold = hold
        self.offset = 0
        self._position = 0          # in the active segment: where it was last moved, or tried to
        self._behind_bytes = 0      # of sealed segments, behind what the checkpoint file says for certain
        self.due_position = MAX_BEHIND_BYTES

    def go_on_at(self, position: int) -> None:
        """The active segment is another one, with so many bytes."""
        self._position = position
        self.due_position = position + MAX_BEHIND_BYTES - self._behind_bytes

    def before_first_change(self) -> None:
        """Before the mark of the partition says that it changes."""
        hold = self._hold
        if self.offset == (hold.recovery_point or 0):
            return
        # While the mark still says what it said of what was recovered. Of a clean log it says nothing.
        if hold.clean and self.offset > (hold.recovery_point or 0):
            hold.advance(self.offset)
        else:
            hold.put(recovery_point=self.offset)

    def put(self, offset: int) -> None:
        """The next opening checks the log from there on."""
        self._hold.put(recovery_point=offset)
        self.offset = offset
        self._behind_bytes = 0
        self.go_on_at(self._position)

    def sealed(self, size_bytes: int) -> None:
        """The active segment, which has so many bytes, grows no more."""
        self._behind_bytes += size_bytes - self._position

    def after_roll(self, offset: int) -> None:
        """The next opening checks the log from the new segment on: at once where much was rolled since."""
        if self._behind_bytes >= MAX_BEHIND_BYTES:
            self.put(offset)
        else:
            if self._hold.advance(offset):
                self._behind_bytes = 0
                self.go_on_at(self._position)
            self.offset = offset

    def move_to(self, end: End) -> None:
        """Where it cannot be moved, the next opening has more to do, and nothing is wrong."""
        self.go_on_at(end.position)
        try:
            self.put(end.next_offset)
        except StorageError as error:
            _LOG.warning("%s: the recovery point stays at offset %d: %s", self._hold.path, self.offset, error)
