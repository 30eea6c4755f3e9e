"""Publish finished partitions, take them back, or make an end of it.

Before the first one comes into the target the journal says which are about to, so that whoever comes after a crash
knows what is ours. Each step may be done again: what is done already is passed over.
"""
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.fs.lock import LOG_DIR_LOCK, SHARED, holder, lock_log_dir
from seglog.spark.journal import COMMITTED, FINALIZING, PUBLISHING, ROLLING_BACK, Journal
from seglog.spark.manifest import removable
from seglog.spark.options import ConversionOptions
from seglog.spark.target import target_of
from seglog.spark.workplace import Workplace
from seglog.stores.open_store import AnyPath, open_store
from seglog.stores.store import WORKPLACE_SUFFIX, LocalStore, RenamingStore, Store


def publish(workplace: Workplace, journal: Journal, partitions: Iterable[str]) -> Journal:
    """Let each of `partitions`, which were assembled, be in the target; tell the log dir of it."""
    store = workplace.store
    partitions = list(partitions)
    if journal.state == PUBLISHING:     # the last one of a run that died there may not have been told of
        partitions = list(dict.fromkeys([*journal.published, *partitions]))
    published = tuple(sorted({*journal.published, *partitions}))
    target = target_of(workplace)
    target.check_names(partitions)
    journal = journal.now(store, PUBLISHING, published)
    target.publish(partitions)
    return journal.now(store, COMMITTED)


def rollback_topics(
    target: AnyPath, *, store_options: Mapping[str, str] | None = None, fs: FileSystem | None = None
) -> list[str]:
    """Undo the conversion into the log dir `target`, finished or not; the partitions that were taken out of it.

    Nothing is left of the conversion then; an object store has the version of before. May be called again where it did
    not come to its end. Raises InvalidArgumentError where there is none, or where a partition has changed since it was
    published: its records would be lost. LogLockedError, StorageError.
    """
    store, path = open_store(target, store_options or {}, fs or OsFileSystem(), removable=removable)
    found = _workplace(store, path)
    goal = target_of(found)
    with goal.held():
        journal = _journal(store, path)
        if journal is None:
            return []
        if journal.state == FINALIZING:
            raise InvalidArgumentError(
                "the conversion was finalized", file=found.path, hint="end that with --finalize"
            )
        goal = target_of(_workplace(store, path, journal))
        if journal.state != ROLLING_BACK:
            goal.check_unchanged(journal.published)
            journal = journal.now(store, ROLLING_BACK)
        taken = goal.take_back(journal.published)
    goal.forget(journal.published)
    _remove(goal.workplace)
    return taken


def finalize_topics(
    target: AnyPath, *, store_options: Mapping[str, str] | None = None, fs: FileSystem | None = None
) -> list[str]:
    """Keep what was published in the log dir `target`, and remove the workplace; the published partitions.

    In an object store the versions that they replaced are removed, too. There is no way back then but by the source,
    which nobody has changed. Raises InvalidArgumentError where there is no committed conversion, LogLockedError,
    StorageError.
    """
    store, path = open_store(target, store_options or {}, fs or OsFileSystem(), removable=removable)
    with target_of(_workplace(store, path)).held():
        journal = _journal(store, path)
        if journal is None:
            return []
        if journal.state not in (COMMITTED, FINALIZING):
            raise InvalidArgumentError(
                f"the conversion is {journal.state}, not committed", file=path, hint="run it to its end first"
            )
        journal = journal.now(store, FINALIZING)
        workplace = _workplace(store, path, journal)
        target_of(workplace).settle()
        _remove(workplace)
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


def _workplace(store: Store, target: str, journal: Journal | None = None) -> Workplace:
    """That of the conversion into `target`; the source is not opened, for nobody needs it any more."""
    if journal is None:
        return Workplace(store, store, "", target, ConversionOptions())
    options = ConversionOptions.of_dict(journal.options)
    return Workplace(store, store, journal.source, journal.target, options, prefix=journal.prefix)


def _remove(workplace: Workplace) -> None:
    """The workplace, the journal last: until then a second call goes on."""
    store = workplace.store
    for name in store.directories(workplace.path):
        store.remove_tree(workplace.within(name))
    store.remove_tree(workplace.path)
    if isinstance(store, RenamingStore):
        store.sync(os.path.dirname(workplace.path))


# --- who else is there -----------------------------------------------------------------------------


@contextmanager
def source_locked(store: Store, source: str) -> Iterator[None]:
    """No broker or writer in the log dir of the source, nor one that begins. Raises LogLockedError.

    A remote store has no locks: there a source that changes is found by the sizes and times of its files.
    """
    if not isinstance(store, LocalStore):
        yield
        return
    who = holder(source)
    if who is not None:
        raise LogLockedError(
            f"locked by {who}: a source that changes cannot be converted", file=f"{source}/{LOG_DIR_LOCK}"
        )
    # No lock file is made: the source stays as it is.
    if not os.access(f"{source}/{LOG_DIR_LOCK}", os.R_OK | os.W_OK):
        yield
        return
    with lock_log_dir(store.fs, source, SHARED):
        yield
