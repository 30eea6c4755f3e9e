"""Converts a partition in place: builds the result aside, proves it, then exchanges the two names in one step.

The old partition stays as a backup, in a directory of the same file system but outside the log dir, where a broker
would refuse it. One rename exchanges the two directories' names (renameat2, RENAME_EXCHANGE): at every moment a broker
finds either the old partition or the new one, complete. A journal beside the backup says which is which
(exchange_journal): the next run completes or undoes whatever a crash left. `roll_back` works the same way.
"""
import enum
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seglog.conversion.directory import AnyPath, Options, build, keeping_what_is_done, refuse_locked
from seglog.conversion.exchange_journal import SUFFIX, ExchangeJournal, ExchangeState, logs_of
from seglog.conversion.plan import Plan, Progress, Result, make_plan
from seglog.conversion.proof import views
from seglog.conversion.resumption import Resumption
from seglog.errors import InvalidArgumentError, NotALogError, StorageError, UnfinishedChangeError
from seglog.format import names
from seglog.fs.aside import SCRATCH_SUFFIX, make_directories
from seglog.fs.files import FileSystem, OsFileSystem, checked_fs
from seglog.fs.lock import lock_log_dir
from seglog.fs.partition_locks import lock_alone, names_of
from seglog.fs.staging import (
    Staging,
    beside_leftovers,
    can_exchange,
    refuse_other_owner,
    remove_beside_leftovers,
    remove_directory,
    remove_leftovers,
)
from seglog.reading.arguments import checked_path
from seglog.reading.partition import Partition
from seglog.state.carried_offsets import lower_offsets


class RolledBack(enum.Enum):
    """What `roll_back` did; in both cases the partition is now as it was before the conversion."""

    RESTORED = "restored"                       # it was converted: the backup is back in its place
    NOTHING_CONVERTED = "nothing_converted"     # the run was interrupted before the exchange: its files are removed


def plan_in_place(
    src: AnyPath,
    backup: AnyPath,
    options: Options,
    *,
    resumes: bool = False,
    keeps_large: bool = False,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> Plan:
    """Plan to convert the partition directory `src` in place; `plan.run()` carries it out.

    `backup`: a directory, created if it does not exist, which keeps the old partition under its name. First completes
    or undoes what an interrupted run left there. `resumes`: take over the segments that it had converted.
    `keeps_large`: as in directory.run.

    Raises as seglog.convert; InvalidArgumentError for a backup that exists or would be in the log dir, and if the
    partition belongs to another user; StorageError if the file system cannot exchange two names.
    """
    place = _Place(src, backup, checked_fs(fs))
    refuse_locked(place.given)
    with place.locked():
        place.settle(keeps_segments=resumes)
        place.check()
    options = options.as_of(place.partition)
    profile = options.profile()
    with Partition(place.partition, config=options.log_config()) as source:
        return make_plan(
            source, place.partition, options.to, profile, place.fs,
            functools.partial(_run, place, resumes, keeps_large), progress, options.allow_lossy,
            proof_every=options.proof_every,
        )


def is_converted(src: AnyPath, backup: AnyPath, *, fs: FileSystem | None = None) -> bool:
    """Whether the partition was converted in place and has its backup. Completes or undoes an interrupted run."""
    place = _Place(src, backup, checked_fs(fs))
    if not place.journal.exists():
        return False
    with place.locked():
        place.settle(keeps_segments=True)
        journal = ExchangeJournal.read(place.journal)
        found = journal is not None and journal.is_result(place.partition)
        if found:       # what an earlier run had converted was taken over
            remove_beside_leftovers(place.fs, place.backup)
    return found


def has_traces(src: AnyPath, backup: AnyPath) -> bool:
    """Whether a conversion in place of this partition, with this backup, was started and not rolled back."""
    return _Place(src, backup, OsFileSystem()).has_traces()


def roll_back(src: AnyPath, backup: AnyPath, *, fs: FileSystem | None = None) -> RolledBack:
    """Restore the backup of a partition that was converted in place, and remove the result of the conversion.

    If the conversion was interrupted, remove what it left; if an earlier rollback was, complete it.

    Raises InvalidArgumentError if nothing was started with this backup, if the backup was removed since, or if the
    partition was written to since, which would be lost; LogLockedError; StorageError.
    """
    place = _Place(src, backup, checked_fs(fs))
    if not place.has_traces():
        raise InvalidArgumentError(
            "no conversion in place to roll back", file=place.journal,
            hint="if it was not rolled back before: pass --backup the same directory as for the conversion",
        )
    with place.locked():
        remove_leftovers(place.fs, place.partition.parent)
        return place.roll_back()


def _run(place: "_Place", resumes: bool, keeps_large: bool, plan: Plan, progress: Progress | None) -> Result:
    with place.locked():
        place.settle(keeps_segments=resumes)
        place.check()
        remove_leftovers(place.fs, place.partition.parent)
        left_over = beside_leftovers(place.backup)
        with (
            Partition(plan.source, config=plan.config) as source,
            Staging.beside(place.fs, place.backup) as staging,
        ):
            place.check_exchange(staging)
            resumption = Resumption.begin(
                place.fs, staging, plan.made_from(), views(plan.profile, source.segments[0].dialect).target,
                plan.config, left_over=() if plan.profile.erased else left_over,
            )
            remove_beside_leftovers(place.fs, place.backup, but=resumption.directories)
            with keeping_what_is_done(plan, staging, resumption, keeps_large=keeps_large):
                result = build(plan, source, staging, progress, resumption)
            place.exchange(staging)
        remove_beside_leftovers(place.fs, place.backup)
    if plan.target_end_offset < plan.log_end_offset:
        for name in names_of(place.given):
            lower_offsets(place.fs, name.parent, name.name, plan.target_end_offset)
    return result


class _Place:
    """A partition, with the paths of its backup and its journal."""

    def __init__(self, src: AnyPath, backup: AnyPath, fs: FileSystem) -> None:
        # The exchange is on the directory's own name, not that of a link to it; all of its names are locked.
        self.given = Path(os.path.abspath(checked_path(src)))
        self.partition = Path(os.path.realpath(src))
        self._backups = Path(os.path.realpath(backup))
        self.backup = self._backups / self.partition.name
        self.journal = self._backups / f"{self.partition.name}{SUFFIX}"
        self._scratch = self.journal.with_name(self.journal.name + SCRATCH_SUFFIX)
        self._from_journal = os.path.relpath(self.partition, self._backups)
        self.fs = fs
        self._check_names()

    def _check_names(self) -> None:
        log_dir = self.partition.parent
        parsed = names.parse_partition_dir(self.partition.name)
        if parsed is None or parsed.mark:
            raise NotALogError("not a partition directory", file=self.partition, hint="its name is <topic>-<partition>")
        if parsed.topic == names.METADATA_TOPIC:
            raise InvalidArgumentError(
                "the KRaft metadata log needs other files, which a conversion does not copy", file=self.partition,
                hint="leave it as it is: it is already v2",
            )
        if self._backups == log_dir or log_dir in self._backups.parents:
            raise InvalidArgumentError(
                "the backup would be inside the log dir, where a broker refuses it", file=self._backups,
                hint="choose a directory beside the log dir",
            )
        if (self._backups / names.META_PROPERTIES).exists():
            raise InvalidArgumentError(
                "the backup would be in a log dir", file=self._backups, hint="choose a separate directory"
            )

    def check(self) -> None:
        """Check the backup, before any work. Raises InvalidArgumentError."""
        if os.path.lexists(self.backup):
            raise InvalidArgumentError(
                "a backup of this partition already exists", file=self.backup,
                hint="roll back, or remove it once it is not needed",
            )
        refuse_other_owner(self.partition)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep brokers and other writers out of the log dir, and other conversions away from these backups."""
        with lock_alone(self.fs, self.given):
            make_directories(self.fs, self._backups)
            with lock_log_dir(self.fs, self._backups):
                yield

    def check_exchange(self, staging: Staging) -> None:
        """Check, before hours of work, that names can be exchanged here. Raises StorageError if not."""
        try:
            can_exchange(self.fs, staging.path, self.partition.parent)
        except StorageError as error:
            why = error.what.rpartition(": ")[2]        # without the names that were tried
            raise StorageError(
                f"names cannot be exchanged between the log dir and {self._backups}: {why}",
                file=self.partition.parent, errno=error.errno,
                hint="choose a backup directory on the same file system; if that has no RENAME_EXCHANGE, convert into "
                "a new directory",
            ) from error

    # --- exchange and rollback ------------------------------------------------------------------------

    def exchange(self, staging: Staging) -> None:
        """Exchange the names of the staged result and the partition. After an error, both are where they were."""
        journal = ExchangeJournal.of(ExchangeState.EXCHANGING, self._from_journal, staging.path)
        try:
            journal.put(self.fs, self.journal)
            staging.publish()
            self._swap()
            journal.put(self.fs, self.journal, ExchangeState.EXCHANGED)
        except BaseException as error:
            try:
                self.settle()
            except (StorageError, UnfinishedChangeError) as refusal:
                error.add_note(f"left to the next run: {refusal.what}")
            raise

    def has_traces(self) -> bool:
        """Whether a run left a journal here, or parts of one or of a result."""
        return (
            os.path.lexists(self.journal) or os.path.lexists(self._scratch)
            or (self._backups.is_dir() and bool(beside_leftovers(self.backup)))
        )

    def roll_back(self) -> RolledBack:
        before = ExchangeJournal.read(self.journal)
        self.settle()
        journal = ExchangeJournal.read(self.journal)
        if journal is None:
            return self._settled_as(before)
        if not journal.is_result(self.partition) or logs_of(self.partition) != journal.logs:
            raise InvalidArgumentError(
                "the partition was written to after its conversion: these records would be lost", file=self.partition,
                hint="convert it back instead; the backup stays where it is",
            )
        journal.put(self.fs, self.journal, ExchangeState.ROLLING_BACK)
        self._swap()
        remove_directory(self.fs, self.backup)
        self._forget()
        return RolledBack.RESTORED

    def _settled_as(self, journal: ExchangeJournal | None) -> RolledBack:
        """What `settle` has done, which found this journal and removed it."""
        if journal is None:
            return RolledBack.NOTHING_CONVERTED
        if journal.state is ExchangeState.EXCHANGED or journal.is_result(self.partition):
            raise InvalidArgumentError(
                "the backup of this partition was removed: the conversion cannot be undone", file=self.backup,
                hint="the partition stays converted; to change its format, convert it again",
            )
        if journal.state is ExchangeState.ROLLING_BACK:
            return RolledBack.RESTORED
        return RolledBack.NOTHING_CONVERTED

    def settle(self, *, keeps_segments: bool = False) -> None:
        """Complete or undo what a killed run left. Raises UnfinishedChangeError if neither is possible.
        `keeps_segments`: leave the stagings of results that were not finished.

        A link is not a backup: exchanging it with the partition would bring a directory from elsewhere into the log
        dir. Raises InvalidArgumentError for one.
        """
        for path in (self.backup, self.journal):
            if path.is_symlink():
                raise InvalidArgumentError(
                    "a symbolic link is in the place of a directory of this conversion", file=path,
                    hint="find out what created it, and remove it; a backup is a real directory",
                )
        if not keeps_segments:
            remove_beside_leftovers(self.fs, self.backup)
        if os.path.lexists(self._scratch):
            self.fs.unlink(self._scratch)
        journal = ExchangeJournal.read(self.journal)
        if journal is None:
            return
        if journal.partition != self._from_journal:
            other = os.path.normpath(self._backups / journal.partition)
            raise InvalidArgumentError(
                f"this directory has the backups of {other}", file=self.journal, hint="choose another directory"
            )
        if not os.path.lexists(self.backup):
            self._forget()      # not yet created, or removed because it is no longer needed
        elif journal.is_result(self.partition):
            if journal.state is not ExchangeState.EXCHANGED:
                self._sync_names()
                journal.put(self.fs, self.journal, ExchangeState.EXCHANGED)
        elif journal.state is ExchangeState.EXCHANGED:
            return
        elif journal.is_result(self.backup) and self.partition.is_dir():
            # Before the exchange, or after the rollback: it may have been written to since.
            self._sync_names()
            remove_directory(self.fs, self.backup)
            self._forget()
        else:
            raise UnfinishedChangeError(
                f"{self.journal.name} says {journal.state.value!r}, but the result is neither here nor in the backup",
                file=self.partition, hint="look at both directories before you remove the journal",
            )

    def _swap(self) -> None:
        self.fs.exchange(self.backup, self.partition)
        self._sync_names()

    def _sync_names(self) -> None:
        self.fs.sync_directory(self.partition.parent)
        self.fs.sync_directory(self._backups)

    def _forget(self) -> None:
        self.fs.sync_directory(self._backups)       # what it describes is gone before it is
        self.fs.unlink(self.journal)
        self.fs.sync_directory(self._backups)
