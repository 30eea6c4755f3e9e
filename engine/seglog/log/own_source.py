"""What `follow` needs of a log in the process that writes it."""
import time

from seglog.fs.file_watch import AnyBell
from seglog.log.tail import LogTail
from seglog.reading.extent import Extent
from seglog.reading.following import CHANGE_LOOK_S
from seglog.reading.notices import Listening
from seglog.reading.reader import LogReader


class OwnSource:
    """The source of a log in the process that writes it: its notice thread rings the bell."""

    patience_s = 60.0

    def __init__(self, log: LogReader, tail: LogTail) -> None:
        self._log = log
        self._tail = tail
        self._listening: Listening | None = None

    def moment(self) -> tuple[Extent, int]:
        live = self._tail.live
        while True:
            epoch = live.epoch
            extent = self._log._current()
            if epoch == live.epoch and (not epoch & 1 or self._tail.failure is not None):
                return extent, epoch
            self.reload()
            time.sleep(CHANGE_LOOK_S)

    def reload(self) -> None:
        if self._tail.is_torn:      # the interrupted thread may never return
            self._tail.reload()

    @property
    def is_changing(self) -> bool:
        return bool(self._tail.live.epoch & 1) and self._tail.failure is None and self._log._shown.extent is not None

    def truncation_since(self, epoch: int) -> int | None:
        return self._tail.live.truncation_since(epoch)

    def is_still(self, extent: Extent, epoch: int) -> bool:
        # epoch + 1: a change has begun, but the earlier maps do not see it.
        return self._log._shown.extent is not None and self._tail.live.epoch in (epoch, epoch + 1)

    def has_moved(self, extent: Extent) -> bool:
        return self.moment()[0] is not extent

    def waiter(self, bell: AnyBell) -> "OwnSource":
        self._log._current()
        self._listening = self._tail.listeners.add(bell.ring, self._tail)
        return self

    def arm(self) -> bool:
        return False

    def cancel(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
