"""A snapshot of a backup, shown as a readable log dir: `STORE#SNAPSHOT/orders-0` names a partition in it.

    /mnt/backups#latest                       all partitions of the last snapshot
    s3://backups/kafka#20261124T12/orders-*   of the only snapshot whose id begins so

Nothing is restored: a file is put together from its pieces when a part of it is read, and each piece is compared with
its SHA-256. Indexes are not in a backup, so a segment is read from its start.
"""
import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

from seglog.backups.manifest import BackedFile, PartitionBackup, SnapshotPartition
from seglog.backups.pieces import Piece
from seglog.backups.repository import Repository, file_content
from seglog.errors import NotALogError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.named_tuple import NamedTuple
from seglog.state.checkpoints import format_offset_checkpoint
from seglog.stores.open_store import AnyPath, is_local
from seglog.stores.store import ReadableStore, StoredFile

# `latest`, or the beginning of an id: at least its year.
_INSIDE = re.compile(r"(?P<snapshot>latest|\d{4}[0-9TZa-f.-]*)(?:/(?P<path>.*))?")


class PathInBackup(NamedTuple):
    """`STORE#SNAPSHOT/PATH`, taken apart. `path`: of a partition, or a pattern; empty for the whole snapshot."""

    store: str
    snapshot: str
    path: str


def path_in_backup(path: AnyPath) -> PathInBackup | None:
    """What `STORE#SNAPSHOT/PATH` names; None if `path` has another form, or exists on this machine."""
    text = os.fspath(path)
    if not isinstance(text, str):
        return None
    store, separator, inside = text.rpartition("#")
    found = _INSIDE.fullmatch(inside) if separator and store else None
    if found is None or (is_local(text) and os.path.lexists(text)):
        return None
    return PathInBackup(store, found["snapshot"], (found["path"] or "").rstrip("/"))


class SnapshotStore(ReadableStore):
    """The partitions of one snapshot, each a directory below `root`: `STORE#ID`, with an absolute path.

    Raises InvalidArgumentError if there is no such snapshot, CorruptBackupError, StorageError.
    """

    def __init__(self, store: str, snapshot: str, options: Mapping[str, str]) -> None:
        self._repository = Repository(store, options, OsFileSystem())
        self._options = options
        self._snapshot = self._repository.snapshot(snapshot)
        self._pieces = self._repository.pieces()
        self._partitions = {part.name: part for part in self._snapshot.partitions}
        self._opened: dict[str, _Partition] = {}
        # The last piece that was read: the next part of a file mostly lies in it, too.
        self._last: tuple[Piece | None, bytes] = (None, b"")
        self.root = f"{self._repository.path}#{self._snapshot.id}"

    def __reduce__(self) -> tuple[object, ...]:
        # A task of Spark reads the manifest again: it may name many thousand partitions, and there may be many tasks.
        return SnapshotStore, (self._repository.path, self._snapshot.id, self._options)

    def directories(self, path: str) -> list[str]:
        return sorted(self._partitions) if path == self.root else []

    def files(self, path: str) -> list[StoredFile]:
        partition = self._partition(path)
        if partition is None:
            raise NotALogError(
                f"the snapshot {self._snapshot.id} has no partition of this name", file=path,
                hint=f"`seglog backup ls {self._repository.path} --snapshot {self._snapshot.id}` lists them",
            )
        return [StoredFile(name, file.size_bytes, _stamp(file)) for name, file in sorted(partition.files.items())]

    def next_offset(self, path: str) -> int | None:
        """The log end offset of the partition at `path`; None if there is none."""
        part = self._partitions.get(path.removeprefix(f"{self.root}/"))
        return None if part is None else part.next_offset

    def read(self, path: str) -> bytes | None:
        directory, _, name = path.rpartition("/")
        if directory == self.root:
            return self._checkpoint(name)
        file = self._file(path)
        return None if file is None else file_content(file, self._pieces)

    def part(self, path: str, position: int, size_bytes: int) -> bytes:
        file = self._file(path)
        if file is None:
            raise NotALogError("the snapshot has no file of this name", file=path)
        if file.inline is not None:
            return file.inline[position : position + size_bytes]
        ends = list(accumulate(piece.size_bytes for piece in file.pieces))
        end = min(position + size_bytes, file.size_bytes)
        found = []
        for slot in range(bisect_right(ends, position), len(ends)):
            begin = ends[slot] - file.pieces[slot].size_bytes
            if begin >= end:
                break
            found.append(self._piece(file.pieces[slot])[max(position - begin, 0) : end - begin])
        return b"".join(found)

    def _piece(self, piece: Piece) -> bytes:
        last, data = self._last
        if last != piece:
            data = self._pieces.get(piece)
            self._last = (piece, data)      # one assignment: other threads see both or neither
        return data

    def _file(self, path: str) -> BackedFile | None:
        directory, _, name = path.rpartition("/")
        partition = self._partition(directory)
        return None if partition is None else partition.files.get(name)

    def _partition(self, path: str) -> "_Partition | None":
        above, _, name = path.rpartition("/")
        part = self._partitions.get(name)
        if above != self.root or part is None:
            return None
        if name not in self._opened:
            backed = self._repository.partition(part, self._pieces)
            self._opened[name] = _Partition(backed, {file.name: file for file in backed.files})
        return self._opened[name]

    def _checkpoint(self, name: str) -> bytes | None:
        """The lines that the log dir's checkpoint had; None for other files."""
        if name == names.LOG_START_OFFSET_CHECKPOINT:
            offsets = {_topic_partition(part): part.log_start_offset for part in self._partitions.values()}
        elif name == names.CLEANER_CHECKPOINT:
            opened = ((part, self._partition(f"{self.root}/{part.name}")) for part in self._partitions.values())
            offsets = {
                _topic_partition(part): there.backed.cleaner_offset for part, there in opened
                if there is not None and there.backed.cleaner_offset is not None
            }
        else:
            return None
        return format_offset_checkpoint(offsets)


class _Partition(NamedTuple):
    backed: PartitionBackup
    files: Mapping[str, BackedFile]


def _topic_partition(part: SnapshotPartition) -> tuple[str, int]:
    parsed = names.parse_partition_dir(part.name)
    assert parsed is not None       # the manifest's names are judged
    return parsed.topic, parsed.partition


def _stamp(file: BackedFile) -> str:
    return file.pieces[-1].digest if file.pieces else str(file.mtime_ns)
