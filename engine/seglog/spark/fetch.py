"""Copies converted topics from a store to this machine: the current version of each partition, as a log dir."""
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from seglog.conversion.log_dir import choose_partitions, is_topics_name
from seglog.conversion.proof import PROOF_FILE
from seglog.errors import InvalidArgumentError
from seglog.format import names
from seglog.format.foreign_names import Shape, has_shape, judged
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.lock import lock_log_dir
from seglog.fs.staging import Staging, remove_leftovers
from seglog.spark.manifest import TopicsManifest, read_files
from seglog.state.carried_offsets import LogDirOffsets, make_log_dir_with, put_offsets, tell_log_dir
from seglog.stores.open_store import AnyPath, open_store
from seglog.stores.remote_store import RemoteStore


@dataclass(frozen=True, slots=True)
class Fetched:
    """A partition on this machine: how many `files`, and their `size_bytes`. `is_new`: this call fetched it, or would.
    `version`: in an object store, else empty."""

    partition: str
    version: str
    files: int
    size_bytes: int
    is_new: bool


def fetch_topics(
    source: AnyPath,
    log_dir: AnyPath,
    *,
    topics: Iterable[str] = (),
    store_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Callable[[str, int], None] | None = None,
    fs: FileSystem | None = None,
) -> Iterator[Fetched]:
    """Copy the partitions of the log dir `source`, in a remote store, into the log dir `log_dir`, created if missing.

    In an object store the manifest says which version of each partition is current; without a manifest, `source` is an
    ordinary log dir. A partition is fetched completely or not at all; one that an earlier call has fetched in the same
    version is skipped. `topics` are patterns such as "orders*". `dry_run`: only say what would come. `progress` is
    called with (partition, bytes) for each fetched file.

    Raises InvalidArgumentError for a local source, and if the log dir has a different partition with the same name;
    NotALogError if the source has no partitions, LogLockedError, StorageError, ProofMismatchError.
    """
    fs = checked_fs(fs)
    store, path = open_store(source, store_options or {}, fs)
    if not isinstance(store, RemoteStore):
        raise InvalidArgumentError(
            "the source is already on this machine", file=path, hint="name a URL, such as s3://BUCKET/PREFIX"
        )
    store.check(path)
    found = _places(store, path)
    chosen = choose_partitions(found, topics, path)
    target = Path(log_dir).absolute()
    # Each of several versions has its own one, but they stand for one broker.
    first = found[chosen[0]].rpartition("/")[0]
    if not dry_run:
        make_log_dir_with(fs, target, store.read(f"{first}/{names.META_PROPERTIES}"))
    offsets: dict[str, LogDirOffsets] = {}
    for partition in chosen:
        place = found[partition]
        home = place.rpartition("/")[0]
        if home not in offsets:
            offsets[home] = _offsets(store, home)
        version = "" if home == path else home.rpartition("/")[2]
        yield _fetch(store, fs, target, place, version, offsets[home], dry_run, progress)


def _places(store: RemoteStore, path: str) -> dict[str, str]:
    """{partition: its current directory}."""
    manifest = TopicsManifest.read(store, path)
    if manifest.partitions:
        return {name: f"{path}/{prefix}/{name}" for name, prefix in manifest.partitions.items()}
    return {
        name: f"{path}/{name}" for name in store.directories(path)
        if is_topics_name(name) and has_shape(name, Shape.PARTITION)
    }


def _offsets(store: RemoteStore, home: str) -> LogDirOffsets:
    return LogDirOffsets(home, lambda checkpoint: store.read(f"{home}/{checkpoint}"))


def _fetch(
    store: RemoteStore, fs: FileSystem, log_dir: Path, place: str, version: str, offsets: LogDirOffsets,
    dry_run: bool, progress: Callable[[str, int], None] | None,
) -> Fetched:
    partition = place.rpartition("/")[2]
    target = log_dir / partition
    if version:
        files = read_files(store, place)
    else:
        files = {judged(file.name, Shape.FILE, place): file.size_bytes for file in store.files(place)}
    fetched = Fetched(partition, version, len(files), sum(files.values()), is_new=not target.exists())
    if not fetched.is_new:
        _check_same(store, place, target, files)
        return fetched
    if dry_run:
        return fetched
    known = offsets.of(partition)
    put_offsets(fs, log_dir, {partition: known})
    with lock_log_dir(fs, log_dir):
        remove_leftovers(fs, log_dir)
        with Staging.of_partition(fs, target) as staging:
            def copy(name: str) -> int:
                return _copy(store, f"{place}/{name}", staging, name, files[name])

            for size_bytes in store.each(copy, files):
                if progress is not None:
                    progress(partition, size_bytes)
            staging.publish()
    # A store that was filled by hand has no recovery points: a broker then checks the logs itself.
    if names.RECOVERY_POINT_CHECKPOINT in known:
        tell_log_dir(fs, log_dir, partition)
    return fetched


def _copy(store: RemoteStore, path: str, staging: Staging, name: str, size_bytes: int) -> int:
    with staging.create(name) as file:
        store.copy_to(path, size_bytes, file)
        file.sync()
    return size_bytes


def _check_same(store: RemoteStore, place: str, target: Path, files: Mapping[str, int]) -> None:
    """Raises InvalidArgumentError if the partition on this machine is a different one."""
    here = {entry.name: entry.stat().st_size for entry in target.iterdir()}
    proof = target / PROOF_FILE
    is_same = all(here.get(name) == size for name, size in files.items()) and (
        PROOF_FILE not in files or store.read(f"{place}/{PROOF_FILE}") == proof.read_bytes()
    )
    if not is_same:
        raise InvalidArgumentError(
            "the log dir has a different partition with this name", file=target, hint="choose another, or move it away"
        )
