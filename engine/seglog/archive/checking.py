"""`seglog backup check`: whether everything that the snapshots name is there, and with `read_data`, is what it was."""
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from seglog.backups.manifest import STORE_FILE, Snapshot, SnapshotLedger, SnapshotPartition
from seglog.backups.pieces import ZSTD_SUFFIX, Piece, PieceStore, is_digest
from seglog.backups.repository import Repository
from seglog.errors import CorruptBackupError, SeglogError, UnsupportedVersionError
from seglog.stores.side_by_side import side_by_side
from seglog.stores.store import StoredFile

Progress = Callable[[int, int], None]

_AT_A_TIME = 4


@dataclass(frozen=True, slots=True)
class BackupFinding:
    """A file of the store that is damaged or gone, and the snapshots that cannot be restored as a whole without it."""

    file: str
    what: str
    snapshots: tuple[str, ...]


@dataclass(slots=True)
class BackupCheck:
    """What `check` found. `unused`: objects that no snapshot names; `prune` removes them. `read_bytes`: of objects that
    were compared with their names."""

    snapshots: int = 0
    objects: int = 0
    object_bytes: int = 0
    unused: int = 0
    unused_bytes: int = 0
    read_bytes: int = 0
    findings: list[BackupFinding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings


class Usage:
    """What the snapshots of a store name, and which of its files are damaged.

    users: {digest: the snapshots that name the piece}.

    `may_be_removed`: pass over a snapshot that is removed meanwhile; otherwise InvalidArgumentError is raised.
    gone: ids in the store's register whose snapshots are not there.
    """

    def __init__(self, repository: Repository, pieces: PieceStore, *, may_be_removed: bool = False) -> None:
        self.snapshots: list[Snapshot] = []
        self.sizes: dict[str, int] = {}
        self.users: defaultdict[str, set[str]] = defaultdict(set)
        self.damaged: list[tuple[str, str, str]] = []       # file, what, snapshot
        trees: dict[tuple[Piece, ...], SnapshotPartition | SnapshotLedger] = {}
        self.gone: list[str] = []
        listed, registered = repository.listed_ids(), set[str]()
        try:
            registered = repository.registered_ids()
        except (CorruptBackupError, UnsupportedVersionError) as error:
            self.damaged.append((error.file or repository.path, error.what, ""))
        for snapshot_id in sorted(listed | registered):
            may_be_gone = may_be_removed or snapshot_id not in listed
            try:
                snapshot = (repository.find_snapshot if may_be_gone else repository.read_snapshot)(snapshot_id)
            except (CorruptBackupError, UnsupportedVersionError) as error:
                self.damaged.append((repository.snapshot_path(snapshot_id), error.what, snapshot_id))
                continue
            if snapshot is None:
                self.gone.append(snapshot_id)
                continue
            self.snapshots.append(snapshot)
            for file_of in snapshot.files:
                self._use(file_of.pieces, snapshot_id)
            for part in snapshot.parts:
                self._use(part.pieces, snapshot_id)
                trees[part.pieces] = part

        def read(part: SnapshotPartition | SnapshotLedger) -> list[Piece] | SeglogError:
            try:
                return [piece for one in repository.files(part, pieces) for piece in one.pieces]
            except (CorruptBackupError, UnsupportedVersionError) as error:
                return error

        found: dict[tuple[Piece, ...], list[Piece]] = {}
        for part, read_pieces in zip(trees.values(), side_by_side(read, trees.values(), _AT_A_TIME), strict=True):
            if isinstance(read_pieces, SeglogError):
                file = read_pieces.file or pieces.path_of(part.pieces[0].digest)
                self.damaged.append((file, read_pieces.what, ""))
            else:
                found[part.pieces] = read_pieces
        for snapshot in self.snapshots:
            for part in snapshot.parts:
                self._use(found.get(part.pieces, []), snapshot.id)

    def _use(self, pieces: "tuple[Piece, ...] | list[Piece]", snapshot_id: str) -> None:
        for piece in pieces:
            self.sizes[piece.digest] = piece.size_bytes
            self.users[piece.digest].add(snapshot_id)


def check_backups(
    repository: Repository, *, read_data: bool = False, progress: Progress | None = None
) -> BackupCheck:
    """Raises InvalidArgumentError if there are no backups, StorageError."""
    done = BackupCheck()
    store_file = f"{repository.path}/{STORE_FILE}"
    compression = "none"
    try:
        compression = repository.compression
    except (CorruptBackupError, UnsupportedVersionError) as error:
        done.findings.append(BackupFinding(store_file, error.what, ()))
    pieces = PieceStore(repository.store, repository.path, compression)
    usage = Usage(repository, pieces, may_be_removed=True)
    done.snapshots = len(usage.snapshots)
    found: dict[str, list[StoredFile]] = defaultdict(list)
    for file in object_files(repository):
        done.objects += 1
        done.object_bytes += file.size_bytes
        digest = file.name.removesuffix(ZSTD_SUFFIX)
        found[digest].append(file)
        if digest not in usage.users:
            done.unused += 1
            done.unused_bytes += file.size_bytes
    # A listing may lack what was put just now.
    missing = [digest for digest in usage.sizes if digest not in found]
    for digest, at_last in zip(missing, side_by_side(pieces.find, missing, _AT_A_TIME), strict=True):
        if at_last is not None:
            found[digest].append(at_last)
    bad: dict[str, tuple[str, str]] = {}
    for digest, size_bytes in usage.sizes.items():
        files = found.get(digest, [])
        if not files:
            bad[digest] = (pieces.path_of(digest), "the object is gone")
        for file in files:
            if digest == file.name and file.size_bytes != size_bytes:
                bad[digest] = (pieces.path_of(digest), f"{file.size_bytes} bytes instead of {size_bytes}")
    if read_data:
        _read_all(repository, [file for files in found.values() for file in files], done, bad, progress)
    for path, what, snapshot_id in usage.damaged:
        digest = path.rpartition("/")[2].removesuffix(ZSTD_SUFFIX)
        users = {snapshot_id} if snapshot_id else usage.users.get(digest, set())
        if digest not in bad:
            done.findings.append(BackupFinding(path, what, tuple(sorted(users))))
    for digest, (path, what) in sorted(bad.items()):
        done.findings.append(BackupFinding(path, what, tuple(sorted(usage.users.get(digest, ())))))
    if done.findings:
        done.findings = _remaining(repository, done.findings)
    return done


def _remaining(repository: Repository, findings: list[BackupFinding]) -> list[BackupFinding]:
    """The findings without those about what `forget` and `prune` have removed meanwhile."""
    left, found = repository.ids_now(), []
    for finding in findings:
        users = tuple(snapshot_id for snapshot_id in finding.snapshots if snapshot_id in left)
        if users or repository.store.file(finding.file) is not None:
            found.append(replace(finding, snapshots=users))
    return found


def _read_all(
    repository: Repository, files: list[StoredFile], done: BackupCheck, bad: dict[str, tuple[str, str]],
    progress: Progress | None,
) -> None:
    pieces = PieceStore(repository.store, repository.path, "none")

    def read(file: StoredFile) -> tuple[StoredFile, str]:
        try:
            pieces.check(file.name)
        except CorruptBackupError as error:
            return file, error.what
        return file, ""

    total = sum(file.size_bytes for file in files)
    for file, what in side_by_side(read, files, _AT_A_TIME):
        done.read_bytes += file.size_bytes
        if progress is not None:
            progress(done.read_bytes, total)
        digest = file.name.removesuffix(ZSTD_SUFFIX)
        if what and digest not in bad:
            bad[digest] = (pieces.path_of(digest, file.name[len(digest) :]), what)


def object_files(repository: Repository) -> Iterator[StoredFile]:
    """Every object of the store."""
    directories = list(object_directories(repository))
    for directory, files in zip(directories, repository.store.each(repository.store.files, directories), strict=True):
        for file in files:
            if is_digest(file.name.removesuffix(ZSTD_SUFFIX)) and file.name[:2] == directory[-2:]:
                yield file


def object_directories(repository: Repository) -> Iterator[str]:
    if not repository.has_objects:
        return
    for name in repository.store.directories(f"{repository.path}/objects"):
        if len(name) == 2:
            yield f"{repository.path}/objects/{name}"
