"""What the first append to a log waits for, done for many new logs at once: their marks and their leader epochs are
written together, and the disk is waited for a few times instead of three times a log.
"""
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from seglog.format import names
from seglog.state.clean_marks import PartitionState
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.log_dir_state import LogDirState

if TYPE_CHECKING:
    from seglog.log.tail import LogTail


def begin_together(log_dir: LogDirState, tails: "Sequence[LogTail]") -> None:
    """Begin the appends of logs in this log dir that hold nothing yet. The others begin by themselves, later.

    Nobody appends to these logs before this returns. Raises StorageError; then they are as before.
    """
    new = [tail for tail in tails if tail.is_untouched]
    if not new:
        return
    for tail in new:
        tail.partition.check()
    first = {tail: LeaderEpochs().assign(tail.leader_epoch, 0) for tail in new}
    # Without a sync after each batch the second one would say so, by one more change of the mark.
    is_unordered = not new[0].publishes_synced
    log_dir.make_dirty(
        {tail.path: {tail.path / names.LEADER_EPOCH_CHECKPOINT: epochs.to_bytes()} for tail, epochs in first.items()},
        PartitionState.UNORDERED if is_unordered else PartitionState.DIRTY)
    for tail, epochs in first.items():
        tail.change(partial(tail.began, epochs, is_unordered=is_unordered))
