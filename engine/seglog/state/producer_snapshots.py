"""The `<20 digits>.snapshot` files of one partition: written at each roll and close, loaded when the log is opened.

The disk half of Kafka's ProducerStateManager. `seglog.state.producer_snapshot` has the format,
`seglog.state.producer_state` the state that is built from it. Each file is written atomically and durably.
"""
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from seglog._kernels.segment_scan import BatchTable
from seglog.errors import CorruptSnapshotError
from seglog.format import names
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.state.producer_state import ProducerState
from seglog.state.snapshot_writer import SnapshotWriter

# Writing a snapshot of this many takes less time than a thread and a second sync of the directory.
WRITTEN_AT_ONCE = 1000


class ProducerSnapshots:
    """The snapshot files of `directory`, which is listed once. The caller holds the partition's lock.

    They include those that are being written in the background (`begin`): calls that remove or need a snapshot wait for
    these first.
    """

    def __init__(
        self, fs: FileSystem, directory: Path, offsets: Iterable[int] | None = None, *, are_kept: bool = True
    ) -> None:
        """`offsets`: of the existing files, if the directory was just listed. `are_kept=False`: the log's records have
        no producers, and no snapshot is written."""
        self._are_kept = are_kept
        self._fs = fs
        self._directory = directory
        self._writer = SnapshotWriter(fs)
        self._offsets = sorted(_listed(directory) if offsets is None else offsets)
        self._last = self._offsets[-1] if self._offsets else 0

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets, exclusive, up to which there are snapshots; in rising order."""
        return tuple(self._offsets)

    def take(self, state: ProducerState, end_offset: int, *, sync_names: bool = True) -> Path | None:
        """Write the state as of `end_offset`. None if that is not past the last snapshot, or the log start.

        `sync_names=False`: the caller syncs the directory. Raises StorageError; then there is no new snapshot.
        """
        self.settle()
        if end_offset <= self._last or not self._are_kept:
            return None
        path = self._path(end_offset)
        write_atomically(self._fs, path, state.to_snapshot(), sync_names=sync_names)
        self._offsets.append(end_offset)
        self._last = end_offset
        return path

    def begin(self, state: ProducerState, end_offset: int) -> None:
        """As `take` if there are few producers, but the caller syncs the directory; for many, write in the background.

        A log that rolls too quickly for that leaves snapshots out. Call `settle` before a change that relies on a
        snapshot, such as removing records of which only the snapshot tells. Raises StorageError, also of an earlier
        one.
        """
        if end_offset <= self._last or not self._are_kept:
            return
        if len(state) <= WRITTEN_AT_ONCE:
            self.take(state, end_offset, sync_names=False)
            return
        left_out = self._writer.put(self._path(end_offset), state.frozen())
        if left_out is not None:
            self._offsets.remove(names.parse_base_offset(left_out.name))
        self._offsets.append(end_offset)
        self._last = end_offset

    def settle(self) -> None:
        """Return when every snapshot that was begun is on the disk. Raises StorageError if one could not be written."""
        self._writer.settle()

    @property
    def is_busy(self) -> bool:
        """Whether one is being written: `settle` would wait for it."""
        return self._writer.is_busy

    def wait(self) -> None:
        """Return when none is being written, even if one failed. May be called without the lock, before `settle`."""
        self._writer.wait()

    def load(
        self, log_start_offset: int, log_end_offset: int, now_ms: int, expiration_ms: int
    ) -> tuple[ProducerState, int]:
        """The state of the newest readable snapshot in (start, end], and the offset from which to replay.

        Snapshots outside the log and damaged ones are deleted, durably: otherwise the log may later grow past the
        offset of a snapshot of truncated records. Expired producers are left out. Without a snapshot, replay
        from the log start. (ProducerStateManager.truncateAndReload, loadFromSnapshot)
        """
        self._delete([o for o in self._offsets if not log_start_offset < o <= log_end_offset])
        state = None
        self._last = log_start_offset
        for offset in reversed(self.offsets):
            path = self._path(offset)
            try:
                state = ProducerState.from_snapshot(read_file(path), file=path)
            except CorruptSnapshotError:
                self._delete([offset])
                continue
            self._last = offset
            break
        if state is None:
            state = ProducerState()
        state.remove_expired(now_ms, expiration_ms)
        return state, self._last

    def delete_before(self, offset: int) -> None:
        """Delete the snapshots below the log's first segment (ProducerStateManager.deleteSnapshotsBefore)."""
        self._delete([o for o in self._offsets if o < offset])

    def delete(self, offset: int) -> None:
        """Delete the snapshot at the base offset of a removed segment, if there is one."""
        self._delete([o for o in self._offsets if o == offset])

    def remove_strays(self, segment_base_offsets: Sequence[int]) -> None:
        """Delete the snapshots that belong to no segment, except the newest one after the last segment's.

        That one was written when the log was closed. (ProducerStateManager.removeStraySnapshots)
        """
        bases = set(segment_base_offsets)
        strays = [o for o in self._offsets if o not in bases]
        if strays and bases and strays[-1] > max(bases):
            strays.pop()
        self._delete(strays)

    def _delete(self, offsets: list[int]) -> None:
        if not offsets:
            return
        self.settle()
        for offset in offsets:
            self._fs.unlink(self._path(offset))
        gone = set(offsets)
        self._offsets = [o for o in self._offsets if o not in gone]
        self._fs.sync_directory(self._directory)

    def _path(self, offset: int) -> Path:
        return self._directory / names.file_name(offset, names.SNAPSHOT_SUFFIX)


def _listed(directory: Path) -> Iterator[int]:
    for name in os.listdir(directory):
        if name.endswith(names.SNAPSHOT_SUFFIX) and (found := names.parse_file_name(name)) is not None:
            yield found.offset


def rebuild(
    snapshots: ProducerSnapshots,
    segment_base_offsets: Sequence[int],
    tables_from: Callable[[int], Iterable[BatchTable]],
    *,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
    expiration_ms: int,
    clean: bool = False,
) -> ProducerState:
    """The producer state of a log that was opened or cut: its newest snapshot, and a replay of what follows.

    Writes a snapshot at the end and, if the replay passes them, at the last two segments, so that the next replay is
    short. `tables_from(offset)` returns the batches from the one that holds `offset` on, no table from two segments. A
    log that was closed cleanly without a snapshot was last written by a Kafka without snapshots, and has no producers.
    (UnifiedLog.rebuildProducerState)
    """
    due = sorted({*segment_base_offsets[-2:], log_end_offset})
    if clean and not snapshots.offsets:
        state = ProducerState()
    else:
        state, offset = snapshots.load(log_start_offset, log_end_offset, now_ms, expiration_ms)
        for table in tables_from(offset) if offset < log_end_offset else ():
            while due and len(table) and due[0] <= table[0].base_offset:
                snapshots.take(state, due.pop(0))
            state.add_table(table)
    for offset in due:
        snapshots.take(state, offset)
    return state
