"""Opening the end of a log. If no space is left to recover it, the opening makes room and tries again.

If an opening fails, it leaves the mark with which the next one writes again what this one read.
"""
import contextlib
from collections.abc import Callable

from seglog._kernels.shield import shielded
from seglog.errors import StorageError
from seglog.fs.refusals import is_out_of_space
from seglog.loading.loader import Loaded, LoadPlan, plan_partition
from seglog.log.tail import LogTail
from seglog.reading.notices import NOTICES
from seglog.state.leftovers import Listed


def open_tail(tail: LogTail, make_room: Callable[[LoadPlan], bool], listed: Listed) -> Loaded:
    """Recover if needed, then open the last segment for appending.

    `make_room`: called if no space is left for that. It returns whether it removed files. `listed`: see `survey`.
    """
    hold = tail.partition
    unsynced_from = hold.unsynced_from
    tail.live.take_up()
    while True:
        try:
            loaded = _opened(tail, unsynced_from, listed)
            tail.announcements = NOTICES.started()
            tail.announce_truncation(loaded.cursors, is_whole=not loaded.lost)
            return loaded
        except StorageError as error:
            # A sync may have failed: our mark makes the next opening write again what this one read.
            if not hold.clean:
                unsynced_from = hold.recovery_point or 0
                with contextlib.suppress(StorageError):
                    shielded(hold.before_first_write)
            if not is_out_of_space(error):
                raise
            if not make_room(plan_partition(hold, tail.config, hold.clean, hold.unordered, unsynced_from)):
                raise
            listed = None


def _opened(tail: LogTail, unsynced_from: int | None, listed: Listed) -> Loaded:
    hold = tail.partition
    loaded = tail.load(clean=hold.clean, unordered=hold.unordered, unsynced_from=unsynced_from, listed=listed)
    if hold.dirty:
        try:
            shielded(tail.recovery_point.before_change)
        except StorageError:
            for segment in tail.current().segments:
                segment.close()
            tail.active.close()
            tail.shown.extent = None
            raise
    return loaded
