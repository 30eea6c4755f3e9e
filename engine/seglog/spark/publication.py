"""Publish finished partitions, take them back, or make an end of it.

One rename gives a partition its name in the target. Before the first one the journal says which are about to get
theirs, so that whoever comes after a crash knows what is ours. Each step may be done again: what has its name already
is passed over.
"""
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.format import names
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.lock import LOG_DIR_LOCK, SHARED, holder, lock_log_dir
from seglog.spark.journal import COMMITTED, FINALIZING, PUBLISHING, ROLLING_BACK, Journal
from seglog.spark.options import ConversionOptions
from seglog.spark.store import WORKPLACE_SUFFIX, LocalStore, Store
from seglog.spark.workplace import Workplace
from seglog.upkeep.target_log_dir import carry_offsets, forget_offsets, tell_log_dir

AnyPath = str | os.PathLike[str]


def publish(fs: FileSystem, workplace: Workplace, journal: Journal, partitions: Iterable[str]) -> Journal:
    """Give each of `partitions`, which were assembled, its name in the target; tell the log dir of it."""
    store, source, log_dir = workplace.store, Path(workplace.source), Path(workplace.target)
    partitions = list(partitions)
    for partition in partitions:
        staged, target = workplace.within("staged", partition), f"{workplace.target}/{partition}"
        if store.exists(staged) and store.exists(target):
            raise InvalidArgumentError(
                "the target has got a partition of this name meanwhile", file=target, hint="move it away, and run again"
            )
    if journal.state == PUBLISHING:     # the last one of a run that died there may not have been told of
        partitions = [*journal.published, *partitions]
    published = tuple(sorted({*journal.published, *partitions}))
    journal = journal.now(store, PUBLISHING, published)
    for partition in partitions:
        staged, outcome = workplace.within("staged", partition), workplace.outcome(partition)
        if store.exists(staged) and outcome is not None:
            carry_offsets(fs, source, log_dir, partition, outcome.end_offset)
            store.rename(staged, f"{workplace.target}/{partition}")
        tell_log_dir(fs, log_dir, partition)
    return journal.now(store, COMMITTED)


def rollback_topics(target: AnyPath, *, fs: FileSystem | None = None) -> list[str]:
    """Undo the conversion into the log dir `target`, finished or not; the partitions that were taken out of it.

    Nothing is left of the conversion then. May be called again where it did not come to its end. Raises
    InvalidArgumentError where there is none, or where a partition has changed since it was published: its
    records would be lost. LogLockedError, StorageError.
    """
    fs = fs or OsFileSystem()
    store = LocalStore(fs)
    path = os.path.abspath(target)
    with lock_log_dir(fs, path):
        journal = _journal(store, path)
        if journal is None:
            return []
        workplace = _workplace(store, journal)
        if journal.state == FINALIZING:
            raise InvalidArgumentError(
                "the conversion was finalized", file=workplace.path, hint="end that with --finalize"
            )
        if journal.state != ROLLING_BACK:
            for partition in journal.published:
                _check_unchanged(workplace, partition)
            journal = journal.now(store, ROLLING_BACK)
        taken = []
        store.make_directory(workplace.within("staged"))
        for partition in journal.published:
            published = f"{path}/{partition}"
            if store.exists(published):
                store.rename(published, workplace.within("staged", partition))
                taken.append(partition)
    for partition in journal.published:
        forget_offsets(fs, Path(path), partition)
    _remove(workplace)
    return taken


def finalize_topics(target: AnyPath, *, fs: FileSystem | None = None) -> list[str]:
    """Keep what was published in the log dir `target`, and remove the workplace; the published partitions.

    There is no way back then but by the source, which nobody has changed. Raises InvalidArgumentError where there is no
    committed conversion, LogLockedError, StorageError.
    """
    fs = fs or OsFileSystem()
    store = LocalStore(fs)
    path = os.path.abspath(target)
    with lock_log_dir(fs, path):
        journal = _journal(store, path)
        if journal is None:
            return []
        if journal.state not in (COMMITTED, FINALIZING):
            raise InvalidArgumentError(
                f"the conversion is {journal.state}, not committed", file=path, hint="run it to its end first"
            )
        journal = journal.now(store, FINALIZING)
        _remove(_workplace(store, journal))
        return list(journal.published)


def _journal(store: Store, target: str) -> Journal | None:
    """The journal of the conversion into `target`. None: whoever was here died before the first word or after the last;
    then nothing is published that could be taken back, and the rest of the workplace is gone now.
    """
    journal = Journal.read(store, target)
    workplace = f"{target}{WORKPLACE_SUFFIX}"
    if journal is None:
        if not store.exists(workplace):
            raise InvalidArgumentError(
                "no conversion into this target is under way", file=target, hint="name the target of the conversion"
            )
        store.remove_tree(workplace)
    return journal


def _workplace(store: Store, journal: Journal) -> Workplace:
    return Workplace(store, journal.source, journal.target, ConversionOptions.of_dict(journal.options))


def _check_unchanged(workplace: Workplace, partition: str) -> None:
    """Raises InvalidArgumentError where somebody appended to, or removed from, a published partition."""
    path = f"{workplace.target}/{partition}"
    outcome = workplace.outcome(partition)
    if outcome is None or not workplace.store.exists(path):
        return
    logs = {f.name: f.size_bytes for f in workplace.store.files(path) if f.name.endswith(names.LOG_SUFFIX)}
    if logs != outcome.logs:
        raise InvalidArgumentError(
            "the partition has changed since it was published: a rollback would lose that", file=path,
            hint="keep it with --finalize, or remove it by hand",
        )


def _remove(workplace: Workplace) -> None:
    """The workplace, the journal last: until then a second call goes on."""
    store = workplace.store
    for name in store.directories(workplace.path):
        store.remove_tree(workplace.within(name))
    store.remove_tree(workplace.path)
    store.sync(os.path.dirname(workplace.path))


# --- who else is there -----------------------------------------------------------------------------


@contextmanager
def source_locked(fs: FileSystem, source: str) -> Iterator[None]:
    """No broker or writer in the log dir of the source, nor one that begins. Raises LogLockedError."""
    who = holder(source)
    if who is not None:
        raise LogLockedError(
            f"locked by {who}: a source that changes cannot be converted", file=f"{source}/{LOG_DIR_LOCK}"
        )
    # No lock file is made: the source stays as it is.
    if not os.access(f"{source}/{LOG_DIR_LOCK}", os.R_OK | os.W_OK):
        yield
        return
    with lock_log_dir(fs, source, SHARED):
        yield
