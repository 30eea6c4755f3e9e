"""The target log dir of a conversion: how finished partitions are published in it, and taken back.

If the store can rename directories (a disk, HDFS), each partition gets its name by one rename. Object stores cannot:
there one manifest, put at the end, names the current version of each partition.
"""
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.errors import CorruptCheckpointError, InvalidArgumentError, StorageError, UnsupportedVersionError
from seglog.format import names
from seglog.fs.lock import LOG_DIR_LOCK, TURNS_LOCK, lock_log_dir
from seglog.fs.refusals import refusals
from seglog.fs.removal import remove_tree
from seglog.spark.manifest import MANIFEST_FILE, TopicsManifest, files_path, files_to_bytes
from seglog.spark.workplace import Workplace
from seglog.state.carried_offsets import (
    LogDirOffsets,
    forget_offsets,
    make_log_dir_with,
    put_offsets,
    tell_log_dir,
    topic_partition,
)
from seglog.state.checkpoints import format_offset_checkpoint, merged_offsets, parse_offsets_or_none
from seglog.stores.store import LocalStore, RenamingStore, Store

# What `LocalTarget` and the lock leave in a log dir besides partitions.
_MADE = frozenset({*names.OFFSET_CHECKPOINTS, names.CLEAN_SHUTDOWN, names.META_PROPERTIES, LOG_DIR_LOCK, TURNS_LOCK})

Offsets = Mapping[str, int | None]
"""{checkpoint: the offset that it should have for a partition, or None for no line}."""


class Target(ABC):
    """The log dir `workplace.target`. Every method can be repeated after an interruption."""

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace
        self.path = workplace.target

    @abstractmethod
    def make(self) -> None:
        """Create the target, before anything else. Raises InvalidArgumentError if it cannot be used."""

    def is_missing(self) -> bool:
        """Whether there is no directory, so that `make` creates one that `unmake` can remove. Only true on a mounted
        file system."""
        return False

    @abstractmethod
    def unmake(self) -> None:
        """Remove a target that `is_missing` before `make`, unless somebody else has put something there."""

    def held(self) -> AbstractContextManager[object]:
        """Keep brokers and writers out of the target. Raises LogLockedError. A remote store has no locks."""
        return nullcontext()

    def new_prefix(self) -> str:
        """The prefix in the target under which a new conversion collects its result; empty if it does so elsewhere."""
        return ""

    @abstractmethod
    def check_free(self, partitions: Iterable[str]) -> None:
        """Raises InvalidArgumentError if one of them is in the way of a new conversion."""

    @abstractmethod
    def has(self, partition: str) -> bool:
        """Whether the partition is published."""

    @abstractmethod
    def seal(self, partition: str, files: Mapping[str, int]) -> None:
        """Record the complete list of a partition's files, {name: bytes}. Called in a task, before `publish`."""

    @abstractmethod
    def check_names(self, partitions: Iterable[str]) -> None:
        """Raises InvalidArgumentError if another program took the name of one that is about to be published."""

    @abstractmethod
    def publish(self, partitions: list[str]) -> None:
        """Publish these assembled partitions in the target. The journal names them already."""

    @abstractmethod
    def check_unchanged(self, partitions: Iterable[str]) -> None:
        """Raises InvalidArgumentError if one has changed since it was published."""

    @abstractmethod
    def check_ours(self, partitions: Iterable[str]) -> None:
        """Raises InvalidArgumentError if one in the target is not known to be the one that was published."""

    @abstractmethod
    def take_back(self, partitions: Iterable[str]) -> list[str]:
        """Move them from the target back into `staged`. Returns those that were in the target."""

    @abstractmethod
    def discard(self, partitions: Iterable[str] | None) -> None:
        """Remove the staged files of partitions that were taken back; with None, everything that is staged outside the
        workplace and not published."""

    @abstractmethod
    def place(self, partition: str) -> str:
        """The path of a partition that is published."""

    def kept(self, partition: str) -> Proof | None:
        """The proof of a partition in the target; None if it has none, or will get another version."""
        return self._proof_at(self.place(partition)) if self.has(partition) else None

    def _proof_at(self, place: str) -> Proof | None:
        path = f"{place}/{PROOF_FILE}"
        raw = self.workplace.store.read(path)
        try:
            return None if raw is None else Proof.parse(raw, path)
        except (CorruptCheckpointError, UnsupportedVersionError):
            return None

    @abstractmethod
    def places(self) -> dict[str, str]:
        """The partitions in the target, by name, with their paths; empty if it does not exist."""

    def converted(self) -> list[str]:
        """The partitions in the target that a conversion has made: those with a proof."""
        places = self.places()
        proofs = self.workplace.store.each(self._proof_at, places.values())
        return sorted(name for name, proof in zip(places, proofs, strict=True) if proof is not None)

    @abstractmethod
    def forget(self, partitions: Iterable[str]) -> None:
        """Remove partitions that were taken back from the log dir's files. Called when it is no longer `held`."""

    @abstractmethod
    def settle(self, partitions: Iterable[str] | None = None) -> None:
        """Remove everything that only a rollback would need, or what only a rollback of these partitions would."""

    def has_result(self, partition: str, segments: Sequence[str] | None = None) -> bool:
        """Whether the target already has this conversion's result for the source as it is now, from a finalized one.

        `segments`: the source files that the result must contain. An earlier conversion may have left out the last one.
        """
        proof = self.kept(partition)
        if proof is None or proof.made_from != self.workplace.made_from(partition):
            return False
        return segments is None or [segment.source.files[0] for segment in proof.segments] == list(segments)

    def _offsets(self) -> LogDirOffsets:
        source, store = self.workplace.source, self.workplace.source_store
        return LogDirOffsets(source, lambda checkpoint: store.read(f"{source}/{checkpoint}"))

    def _meta_properties(self) -> bytes | None:
        return self.workplace.source_store.read(self.workplace.source_of(names.META_PROPERTIES))


def target_of(workplace: Workplace) -> Target:
    """The target of a workplace, depending on what its store can do."""
    if isinstance(workplace.store, LocalStore):
        return LocalTarget(workplace, workplace.store)
    if isinstance(workplace.store, RenamingStore):
        return RenamedTarget(workplace, workplace.store)
    return ManifestTarget(workplace)


# --- by rename -----------------------------------------------------------------------------------


class RenamedTarget(Target):
    """A log dir in which each partition gets its name by a rename. Files are changed through the store."""

    def __init__(self, workplace: Workplace, store: RenamingStore) -> None:
        super().__init__(workplace)
        self._store = store

    def make(self) -> None:
        self._store.make_directory(self.path)
        path = f"{self.path}/{names.META_PROPERTIES}"
        meta = self._meta_properties()
        if meta is not None and not self._store.directories(self.path) and not self._store.exists(path):
            self._store.write(path, meta)

    def unmake(self) -> None:
        """Does nothing: HDFS keeps the directory."""

    def check_free(self, partitions: Iterable[str]) -> None:
        there = set(self._store.directories(self.path))
        for partition in partitions:
            if partition in there and not self.has_result(partition):
                raise InvalidArgumentError(
                    "the target already has a partition with this name", file=self.place(partition),
                    hint="choose another target, or move it away",
                )

    def discard(self, partitions: Iterable[str] | None) -> None:
        for partition in partitions or ():
            self._store.remove_tree(self.workplace.staged(partition))

    def has(self, partition: str) -> bool:
        return self._store.exists(self.place(partition))

    def seal(self, partition: str, files: Mapping[str, int]) -> None:
        """Does nothing: the directory itself is the list."""

    def check_names(self, partitions: Iterable[str]) -> None:
        for partition in partitions:
            if self._store.exists(self.workplace.staged(partition)) and self.has(partition):
                raise InvalidArgumentError(
                    "a partition with this name has appeared in the target", file=self.place(partition),
                    hint="move it away, and run again",
                )

    def publish(self, partitions: list[str]) -> None:
        offsets = self._offsets()
        ready: dict[str, Offsets] = {}
        for partition, outcome in zip(partitions, self._store.each(self.workplace.outcome, partitions), strict=True):
            if outcome is not None and self._store.exists(self.workplace.staged(partition)):
                ready[partition] = offsets.carried(partition, outcome.end_offset)
        self._announce(ready)
        if ready:
            self._store.move(ready, self.workplace.staged(), self.path)
        self._settled(partitions)

    def check_unchanged(self, partitions: Iterable[str]) -> None:
        for partition in partitions:
            path, outcome = self.place(partition), self.workplace.outcome(partition)
            if outcome is None or not self._store.exists(path):
                continue
            logs = {f.name: f.size_bytes for f in self._store.files(path) if f.name.endswith(names.LOG_SUFFIXES)}
            if logs != outcome.logs:
                raise InvalidArgumentError(
                    "the partition has changed since it was published: a rollback would lose the changes", file=path,
                    hint="keep it with --finalize, or remove it by hand",
                )

    def check_ours(self, partitions: Iterable[str]) -> None:
        for partition in filter(self.has, partitions):
            is_staged = self._store.exists(self.workplace.staged(partition))
            if is_staged or self.workplace.outcome(partition) is None:
                raise InvalidArgumentError(
                    "the partition is not the one that this conversion made: a rollback would remove it",
                    file=self.place(partition), hint="move it away, and run again",
                )

    def take_back(self, partitions: Iterable[str]) -> list[str]:
        taken = [partition for partition in partitions if self.has(partition)]
        if taken:
            self._store.make_directory(self.workplace.staged())
            self._store.move(taken, self.path, self.workplace.staged())
        return taken

    def forget(self, partitions: Iterable[str]) -> None:
        gone = dict.fromkeys(names.OFFSET_CHECKPOINTS)
        merge_checkpoints(self._store, self.path, dict.fromkeys(partitions, gone))

    def settle(self, partitions: Iterable[str] | None = None) -> None:
        """Does nothing: no partition replaced another."""

    def _announce(self, offsets: Mapping[str, Offsets]) -> None:
        """Write the partitions' lines in the log dir's files, before the first rename. Each file is written once, with
        a line for every partition.
        """
        merge_checkpoints(self._store, self.path, offsets)

    def _settled(self, partitions: list[str]) -> None:
        """Called when the partitions have their names."""

    def place(self, partition: str) -> str:
        return f"{self.path}/{partition}"

    def places(self) -> dict[str, str]:
        if not self._store.exists(self.path):
            return {}
        return {
            name: self.place(name) for name in self._store.directories(self.path)
            if (parsed := names.parse_partition_dir(name)) is not None and not parsed.mark
        }


class LocalTarget(RenamedTarget):
    """A log dir on a mounted file system, which a broker or a seglog writer may use: their locks and marks apply."""

    def __init__(self, workplace: Workplace, store: LocalStore) -> None:
        super().__init__(workplace, store)
        self._fs = store.fs

    def make(self) -> None:
        make_log_dir_with(self._fs, Path(self.path), self._meta_properties())
        if _device(self.path) != _device(os.path.dirname(self.path)):
            raise InvalidArgumentError(
                "the target is a separate file system: no partition can be renamed into it", file=self.path,
                hint="name a directory inside it: the workplace is created next to the target",
            )

    def is_missing(self) -> bool:
        return not os.path.lexists(self.path)

    def unmake(self) -> None:
        try:
            with refusals("list", self.path):
                there = set(os.listdir(self.path))
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        if there <= _MADE and not os.path.islink(self.path):
            above, name = os.path.split(self.path)
            remove_tree(self._fs, above, name)
            self._fs.sync_directory(above)

    def held(self) -> AbstractContextManager[object]:
        return lock_log_dir(self._fs, self.path)

    def forget(self, partitions: Iterable[str]) -> None:
        forget_offsets(self._fs, Path(self.path), *partitions)

    def _announce(self, offsets: Mapping[str, Offsets]) -> None:
        put_offsets(self._fs, Path(self.path), offsets)

    def _settled(self, partitions: list[str]) -> None:
        tell_log_dir(self._fs, Path(self.path), *partitions)


def _device(path: str) -> int:
    with refusals("look at", path):
        return os.stat(path).st_dev


# --- by a manifest -------------------------------------------------------------------------------


class ManifestTarget(Target):
    """A log dir in an object store: versions side by side, and the manifest that says which one is current.

    A partition that exists already gets a new version; the former one stays until the conversion is finalized.
    """

    def __init__(self, workplace: Workplace) -> None:
        super().__init__(workplace)
        self._store = workplace.store
        self._manifest: TopicsManifest | None = None

    def make(self) -> None:
        """Does nothing: a prefix exists as soon as it has an object."""

    def unmake(self) -> None:
        """Does nothing: a prefix is gone with its last object."""

    def new_prefix(self) -> str:
        return TopicsManifest.read(self._store, self.path).next_prefix(self._store.directories(self.path))

    def check_free(self, partitions: Iterable[str]) -> None:
        """Nothing is in the way of another version, except objects outside of any version."""
        there = set(self._store.directories(self.path))
        for partition in partitions:
            if partition in there:
                raise InvalidArgumentError(
                    "the target has objects of this partition that no manifest names", file=f"{self.path}/{partition}",
                    hint="choose another target, or move them away",
                )

    def has(self, partition: str) -> bool:
        if self._manifest is None:      # read once in a run: no other program puts one meanwhile
            self._manifest = TopicsManifest.read(self._store, self.path)
        return self._manifest.partitions.get(partition) == self.workplace.prefix

    def seal(self, partition: str, files: Mapping[str, int]) -> None:
        self._store.write(files_path(self.workplace.staged(partition)), files_to_bytes(files))

    def check_names(self, partitions: Iterable[str]) -> None:
        """Does nothing: a version's name is unique."""

    def publish(self, partitions: list[str]) -> None:
        store, workplace = self._store, self.workplace
        now = TopicsManifest.read(store, self.path)
        offsets = self._offsets()
        outcomes = zip(partitions, store.each(workplace.outcome, partitions), strict=True)
        carried = {name: offsets.carried(name, found.end_offset) for name, found in outcomes if found is not None}
        ours = dict.fromkeys(carried, workplace.prefix)
        if all(now.partitions.get(name) == prefix for name, prefix in ours.items()):
            return
        merge_checkpoints(store, workplace.staged(), carried)
        meta = self._meta_properties()
        if meta is not None:
            store.write(workplace.staged(names.META_PROPERTIES), meta)
        before = {name: prefix for name in ours if (prefix := now.partitions.get(name)) not in (None, workplace.prefix)}
        former = TopicsManifest(now.serial, {**before, **self._former()})
        store.write(workplace.within("former.json"), former.to_bytes())
        self._put(now.replaced(ours))

    def check_ours(self, partitions: Iterable[str]) -> None:
        """Does nothing: the prefix of a version tells whose it is."""

    def check_unchanged(self, partitions: Iterable[str]) -> None:
        """Objects do not change, so only another manifest can have changed a partition."""
        now, former = TopicsManifest.read(self._store, self.path), self._former()
        for partition in partitions:
            prefix = now.partitions.get(partition)
            if prefix not in (None, self.workplace.prefix, former.get(partition)):
                raise InvalidArgumentError(
                    f"version {prefix} of the partition has been published since", file=f"{self.path}/{partition}",
                    hint="undo that conversion first",
                )

    def take_back(self, partitions: Iterable[str]) -> list[str]:
        now, former = TopicsManifest.read(self._store, self.path), self._former()
        taken = [name for name in partitions if now.partitions.get(name) == self.workplace.prefix]
        if taken:
            self._put(now.replaced({name: former.get(name) for name in taken}))
        return taken

    def place(self, partition: str) -> str:
        return self.workplace.staged(partition)

    def places(self) -> dict[str, str]:
        now = TopicsManifest.read(self._store, self.path).partitions
        return {name: f"{self.path}/{prefix}/{name}" for name, prefix in now.items()}

    def discard(self, partitions: Iterable[str] | None) -> None:
        if partitions is None and self.workplace.prefix:
            now = TopicsManifest.read(self._store, self.path).partitions
            if self.workplace.prefix in now.values():       # of partitions that are final
                there = self._store.directories(self.workplace.staged())
                partitions = [name for name in there if now.get(name) != self.workplace.prefix]
            else:
                self._store.remove_tree(self.workplace.staged())
        for partition in partitions or ():
            self._remove_version(partition, self.workplace.prefix)

    def forget(self, partitions: Iterable[str]) -> None:
        """Does nothing: their lines were in the files of the removed version."""

    def settle(self, partitions: Iterable[str] | None = None) -> None:
        now, former = TopicsManifest.read(self._store, self.path).partitions, self._former()
        left = set(now.values())
        if partitions is None:
            for prefix in sorted({*former.values()} - left):
                self._store.remove_tree(f"{self.path}/{prefix}")
            partitions = [name for name, prefix in former.items() if prefix in left]
        for partition in partitions:
            replaced = former.get(partition)
            if replaced is not None and replaced != now.get(partition):
                self._remove_version(partition, replaced)

    def _remove_version(self, partition: str, prefix: str) -> None:
        directory = f"{self.path}/{prefix}/{partition}"
        self._store.remove_tree(directory)
        self._store.remove_file(files_path(directory))

    def _former(self) -> Mapping[str, str]:
        """{partition: its prefix before this conversion}."""
        path = self.workplace.within("former.json")
        raw = self._store.read(path)
        return {} if raw is None else TopicsManifest.parse(raw, path).partitions

    def _put(self, manifest: TopicsManifest) -> None:
        """Put the manifest: the step that publishes."""
        path = f"{self.path}/{MANIFEST_FILE}"
        if manifest.partitions:
            self._store.write(path, manifest.to_bytes())
        else:
            self._store.remove_file(path)


# --- a log dir that no broker is in --------------------------------------------------------------


def merge_checkpoints(store: Store, log_dir: str, offsets: Mapping[str, Offsets]) -> None:
    """Set the partitions' lines in the checkpoints of a log dir; the lines of others stay."""
    for checkpoint in names.OFFSET_CHECKPOINTS:
        path = f"{log_dir}/{checkpoint}"
        raw = store.read(path)
        found = {} if raw is None else parse_offsets_or_none(raw, path) or {}
        merged = merged_offsets(found, {
            topic_partition(partition): lines.get(checkpoint) for partition, lines in offsets.items()
        })
        if merged != found:
            store.write(path, format_offset_checkpoint(merged))
