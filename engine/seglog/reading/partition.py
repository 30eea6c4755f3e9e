"""A partition directory, opened to be read: what a broker left on disk, without the broker.

Reads the segments in order of their base offsets, from the log start offset in the log dir's checkpoint (or the first
segment, if it has none) to the end of the data as it was at opening. Takes no lock and writes nothing, so a live broker
may hold the directory.
"""
import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from seglog.config import LogConfig
from seglog.errors import (
    CorruptCheckpointError,
    CorruptSnapshotError,
    NotALogError,
    OffsetOutOfRangeError,
    SeglogError,
    StorageError,
)
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.fs.refusals import hint_of_log_dir, refusals
from seglog.reading.arguments import checked_path
from seglog.reading.extent import Extent
from seglog.reading.listing import settled_log_files
from seglog.reading.reader import LogReader
from seglog.segment.batches import UNREADABLE
from seglog.segment.segment import Segment
from seglog.state.checkpoints import read_offset_checkpoint
from seglog.state.directory_dialect import directory_dialect
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.producer_snapshot import ProducerEntry, ProducerSnapshot
from seglog.state.producer_state import ProducerState


class Partition(LogReader):
    """A partition that is open for reading, from `seglog.open_partition(path)`. Use it as a context manager, or close
    it.

    `path`, `topic`, `partition`, `config`: its directory, the names that the directory's name consists of, and the
    settings that it is read with. `only`: the name of a .log; only that segment is read. `logs`: its .log files, if
    they were just listed. `format_counters`: how many batches it converted for clients of another format. Threads and
    forked children may share it: it holds maps, no locks.
    """

    def __init__(
        self, path: str | Path, *, config: Mapping[str, object] | LogConfig | None = None, only: str | None = None,
        logs: Sequence[Path] | None = None,
    ) -> None:
        super().__init__()
        self.path = checked_path(path)
        if self.path.name in ("", ".."):     # the name gives the topic, and the log dir is the directory above
            self.path = self.path.resolve()
        self.config = config if isinstance(config, LogConfig) else LogConfig.of(config or {})
        parsed = names.parse_partition_dir(self.path.name)
        self.topic = parsed.topic if parsed else self.path.name
        self.partition = parsed.partition if parsed else -1
        self.only = only
        self._decompress = decompressor(self.config.max_decompressed_message_bytes)
        if self.path.is_file():
            raise NotALogError("a file, not a partition directory", file=self.path)
        inodes: Mapping[Path, int] = {}
        self._listed_epoch = LogReader._read_epoch(self)
        if logs is None:
            with refusals("list", self.path):
                inodes = settled_log_files(self.path)
            logs = list(inodes)
        if only is not None and all(log.name != only for log in logs):
            raise NotALogError(f"no segment {only} in the directory", file=self.path)
        if not logs:
            raise NotALogError(
                "no segment file (<20 digits>.log) in the directory", file=self.path, hint=hint_of_log_dir(self.path)
            )
        self._dialect, self._foreign_files = directory_dialect(self.path, logs)
        self._last_stable_offset: int | None = None
        self._producers: tuple[ProducerEntry, ...] | None = None
        self._sealed: dict[tuple[Path, int | None], Segment] = {}
        self._shown.extent = self._picture(logs, inodes)

    def __repr__(self) -> str:
        extent = self._shown.extent
        if extent is None:
            return f"<Partition {self.path.name}: closed>"
        # (The end may have to be searched for.)
        count = len(extent.segments)
        segments = f"{count} segment{'' if count == 1 else 's'}"
        return f"<Partition {self.path.name}: from offset {extent.log_start_offset}, {segments}>"

    def _reopening(self) -> tuple[Callable[..., "Partition"], tuple[object, ...]]:
        # In another process, or later: the directory as it is then.
        return reopened, (str(self.path.absolute()), self.config, self.only)

    def refresh(self) -> None:
        """See the segments, the start and the end as they are now. Running reads continue with the previous state.

        Sealed segments whose files are unchanged stay open, with what is known about them. Raises what opening raises,
        and LogClosedError.
        """
        self._current()
        epoch = LogReader._read_epoch(self)
        with refusals("list", self.path):
            inodes = settled_log_files(self.path)
        if not inodes or (self.only is not None and all(log.name != self.only for log in inodes)):
            raise NotALogError("its segment files are gone", file=self.path)
        extent = self._picture(list(inodes), inodes)
        self._current()             # it may have been closed meanwhile
        self._shown.extent, self._listed_epoch = extent, epoch
        self._last_stable_offset = self._producers = None

    def _read_epoch(self) -> int | None:
        return self._listed_epoch

    def _picture(self, logs: Sequence[Path], inodes: Mapping[Path, int]) -> Extent:
        """The extent of these .log files, the last of which may grow."""
        segments = []
        for log in logs:
            if self.only is None or log.name == self.only:
                place = log, inodes.get(log)
                known = self._sealed.get(place) if log is not logs[-1] else None
                segments.append(known or Segment(
                    log, is_last=log is logs[-1], decompress=self._decompress, by_minute=True,
                    last_opened=self._last_opened, inode=inodes.get(log),
                ))
        self._sealed = {
            (segment.path, inodes[segment.path]): segment for segment in segments
            if not segment.is_last and segment.path in inodes
        }
        return Extent(segments, self._checkpointed_start(segments[0].base_offset))

    def close(self) -> None:
        """Close the files. Idempotent; records and batches that were read before stay readable."""
        extent, self._shown.extent = self._shown.extent, None
        for segment in extent.segments if extent else ():
            segment.close()

    # --- extent ------------------------------------------------------------------------------

    def _checkpointed_start(self, first: int) -> int:
        """The log start offset in the log dir's checkpoint (KIP-107), but at least the first segment's base."""
        try:
            starts = read_offset_checkpoint(self.path.parent / names.LOG_START_OFFSET_CHECKPOINT)
        except (FileNotFoundError, CorruptCheckpointError):
            return first
        return max(first, starts.get((self.topic, self.partition), first))

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction that is still open; the log end offset if none is.

        Found as a broker does when it loads the log: from the last producer snapshot and the batches after it. Read
        once for each opening.
        """
        if self._last_stable_offset is None:
            still_open = [e.current_txn_first_offset for e in self.producers if e.current_txn_first_offset >= 0]
            self._last_stable_offset = min(still_open, default=self.log_end_offset)
        return self._last_stable_offset

    def _stable_offset(self, skips_damage: bool) -> int:
        try:
            return self.last_stable_offset
        except UNREADABLE:
            if not skips_damage:
                raise
        # A transaction whose marker is lost counts as open: its records may have been aborted.
        entries, start = self._last_snapshot()
        state = ProducerState(entries)
        for _, table in self.tables(start, on_lost=lambda _: None):
            for batch in table:
                with suppress(*UNREADABLE):
                    state.add(batch)
        still_open = [e.current_txn_first_offset for e in state.entries() if e.current_txn_first_offset >= 0]
        return min(still_open, default=self.log_end_offset)

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """The producers that a broker knows after loading the log, each with its last batch."""
        if self._producers is None:
            entries, start = self._last_snapshot()
            state = ProducerState(entries)
            for _, table in self.tables(start):     # `start` may be below the log start offset
                for batch in table:
                    state.add(batch)
            self._producers = state.entries()
        return self._producers

    def _if_gone(self, offset: int, error: OffsetOutOfRangeError | StorageError) -> SeglogError:
        """As in LogLookup; only a missing file shows that a broker has removed segments."""
        if not isinstance(error, StorageError) or error.errno != errno.ENOENT:
            return error
        try:
            with Partition(self.path, config=self.config) as now:
                if error.file is None or Path(error.file) in (segment.path for segment in now.segments):
                    return error
                start, end = now.log_start_offset, now._current().log_end_offset
        except SeglogError:
            return error        # the directory is gone, or nothing is left in it
        return OffsetOutOfRangeError(
            f"the segment of offset {offset} was removed since the partition was opened; it now holds [{start}, {end})",
            file=self.path, offset=offset, hint="open the partition again",
        )

    def _last_snapshot(self) -> tuple[Iterable[ProducerEntry], int]:
        """The producers of the last whole snapshot within the log, and the offset it was taken at."""
        end = self.log_end_offset
        for path in sorted(self.path.glob(f"*{names.SNAPSHOT_SUFFIX}"), reverse=True):
            name = names.parse_file_name(path.name)
            try:
                if name is not None and name.offset <= end:
                    return ProducerSnapshot.read(path).producers, name.offset
            except (CorruptSnapshotError, FileNotFoundError):
                continue
        return (), self.segments[0].base_offset

    @property
    def leader_epochs(self) -> LeaderEpochs | None:
        """The leader-epoch-checkpoint; None if there is none. Raises CorruptCheckpointError."""
        path = self.path / names.LEADER_EPOCH_CHECKPOINT
        return LeaderEpochs.read(path) if path.exists() else None


def reopened(path: str, config: LogConfig, only: str | None = None) -> Partition:
    """What unpickling a log or partition returns: a reader of its directory."""
    return Partition(path, config=config, only=only)


def open_partition(
    path: str | Path, *, config: Mapping[str, object] | LogConfig | None = None
) -> Partition:
    """Open a partition directory such as `kafka-logs/orders-0` to read it, without a broker and without a lock.

    It shows the state at its opening: later appends, truncations and deletions are not seen before `refresh()`.
    `seglog.follow` sees them at once.

    Raises NotALogError if it holds no segment, StorageError if it does not exist or cannot be read, InvalidConfigError
    for an unknown key.
    """
    return Partition(path, config=config)
