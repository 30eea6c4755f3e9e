"""Publishes finished partitions, takes them back, or makes the conversion permanent.

Before the first partition is published, the journal lists all that will be, so that after a crash the next run knows
which are ours. Each step can be repeated: work that is already done is skipped.
"""
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.lock import LOG_DIR_LOCK, SHARED, LockMode, holder, lock_log_dir
from seglog.logger import Logger
from seglog.spark.journal import COMMITTED, FINALIZING, JOURNAL_FILE, PUBLISHING, ROLLING_BACK, Journal
from seglog.spark.manifest import removable
from seglog.spark.options import ConversionOptions
from seglog.spark.target import Target, target_of
from seglog.spark.workplace import Workplace
from seglog.stores.open_store import AnyPath, open_store
from seglog.stores.store import WORKPLACE_SUFFIX, LocalStore, RenamingStore, Store

_LOG = Logger(__name__)


@dataclass(frozen=True, slots=True)
class Finalized:
    """The result of `finalize_topics`. `partitions` are in the target; `failed` ones are not: {partition: reason}.

    `was_final`: an earlier call has done it. Then `partitions` are those in the target that have a proof.
    """

    partitions: list[str]
    failed: dict[str, str]
    was_final: bool = False


def publish(
    workplace: Workplace, journal: Journal, partitions: Iterable[str], failed: Mapping[str, str],
    then: str = COMMITTED, *, is_final: bool = False,
) -> Journal:
    """Publish the assembled `partitions` in the target, and update the log dir's files. `failed`: {partition: reason}
    for those that were not assembled. `then` is the journal's state afterwards. `is_final`: they can then no longer be
    taken back; `forget_steps` removes what that leaves.
    """
    store = workplace.store
    partitions = list(partitions)
    published = tuple(sorted({*journal.published, *partitions}))
    target = target_of(workplace)
    target.check_names(partitions)
    journal = replace(journal, failed=dict(failed)).now(store, PUBLISHING, published)
    target.publish(partitions)
    return (journal.made_final(partitions) if is_final else journal).now(store, then)


def forget_steps(workplace: Workplace, partitions: Iterable[str]) -> None:
    """Remove what the workplace has of partitions that are final, and the versions that they replaced."""
    partitions = list(partitions)
    target_of(workplace).settle(partitions)
    _forget_files(workplace, partitions)


def rollback_topics(
    target: AnyPath, *, partitions: Iterable[str] = (), store_options: Mapping[str, str] | None = None,
    fs: FileSystem | None = None,
) -> list[str]:
    """Undo the conversion into the log dir `target`, finished or not. Returns the partitions that were taken out of it.

    Nothing is left of the conversion then: a target directory that it made is gone, unless something else is in it by
    now, and an object store has the previous version again. With `partitions`
    ("orders-3") only these are taken out and forgotten: the next run converts them again, unless it is told which
    partitions to convert. If it did not complete, call it again. Partitions that the conversion has made final
    (`finalize_each`) stay, and a warning is logged that names them. Raises InvalidArgumentError if there is no
    conversion, if one of `partitions` is final, or if a partition has changed since it was published, because its new
    records would be lost; LogLockedError, StorageError.
    """
    chosen = list(partitions)
    store, path = open_store(target, store_options or {}, checked_fs(fs), removable=removable)
    _check_under_way(store, path)
    found = _workplace(store, path)
    goal = target_of(found)
    # (A call that was interrupted may have removed the target.)
    with nullcontext() if goal.is_missing() else goal.held():
        journal = _journal(store, path)
        if journal is None:
            return []
        if journal.state == FINALIZING:
            raise InvalidArgumentError(
                "the conversion is being finalized", file=found.path, hint="complete that with --finalize"
            )
        goal = target_of(_workplace(store, path, journal))
        is_part = bool(chosen) and journal.state != ROLLING_BACK
        if not is_part:
            chosen = list(journal.published)
        final = [name for name in chosen if name in journal.final]
        if final:
            raise InvalidArgumentError(
                f"made final by --finalize-each, which cannot be undone: {', '.join(final)}", file=found.path,
                hint="leave them out: without --partition, everything else is undone",
            )
        unknown = [name for name in chosen if name not in journal.published]
        if unknown:
            raise InvalidArgumentError(
                f"not published by this conversion: {', '.join(unknown)}", file=found.path,
                hint="name partitions as their directories are named, such as orders-3",
            )
        # Also when a rollback goes on: since it stopped, somebody may have put a partition where one was taken out.
        goal.check_ours(chosen)
        goal.check_unchanged(chosen)
        if not is_part:
            journal = journal.now(store, ROLLING_BACK)
        taken = goal.take_back(chosen)
    if not goal.is_missing():
        goal.forget(chosen)
    if is_part:
        _forget_partitions(goal, journal, chosen)
    else:
        goal.discard(None)
        if journal.made_target and not journal.final:
            goal.unmake()
        remove_workplace(goal.workplace)
    if journal.final and not is_part:
        _LOG.warning("these partitions are final and stay in %s: %s", path, ", ".join(journal.final))
    return taken


def _forget_partitions(goal: Target, journal: Journal, partitions: list[str]) -> None:
    """Forget partitions that were taken back; the rest stays. The journal is changed last, so that a second call can
    complete the work. The outcomes go first: without one, no second call takes a newer partition for this one."""
    for partition in partitions:
        goal.workplace.store.remove_file(goal.workplace.within("outcome", partition))
    goal.discard(partitions)
    _forget_files(goal.workplace, partitions)
    left = tuple(name for name in journal.published if name not in partitions)
    journal.now(goal.workplace.store, journal.state, left)


def _forget_files(workplace: Workplace, partitions: Iterable[str]) -> None:
    store = workplace.store
    for partition in partitions:
        store.remove_tree(workplace.within("done", partition))
        for directory in ("outcome", "survey", "plan"):
            store.remove_file(workplace.within(directory, partition))


def finalize_topics(
    target: AnyPath, *, store_options: Mapping[str, str] | None = None, fs: FileSystem | None = None
) -> Finalized:
    """Keep what was published in the log dir `target`, and remove the workplace. The result also names the partitions
    that failed: another conversion of the same source adds those, and leaves the others alone.

    In an object store the replaced versions are removed, too. After that the conversion cannot be undone; the source is
    unchanged. A second call changes nothing. Raises InvalidArgumentError if there is no committed conversion,
    LogLockedError, StorageError.
    """
    store, path = open_store(target, store_options or {}, checked_fs(fs), removable=removable)
    goal = target_of(_workplace(store, path))
    if not _is_under_way(store, path) and (converted := goal.converted()):
        return Finalized(converted, {}, was_final=True)
    _check_under_way(store, path)
    with goal.held():
        journal = _journal(store, path)
        if journal is None:
            converted = goal.converted()
            return Finalized(converted, {}, was_final=bool(converted))
        if journal.state not in (COMMITTED, FINALIZING):
            raise InvalidArgumentError(
                f"the conversion is {journal.state}, not committed", file=path, hint="complete it first"
            )
        journal = journal.now(store, FINALIZING)
        workplace = _workplace(store, path, journal)
        target_of(workplace).settle()
        remove_workplace(workplace)
        return Finalized(sorted({*journal.published, *journal.final}), journal.failed)


def _journal(store: Store, target: str) -> Journal | None:
    """The journal of the conversion into `target`, or None if a run died before it wrote the journal or after it
    removed it: nothing was published that could be taken back, and the rest of the workplace is now removed.
    """
    _check_under_way(store, target)
    journal = Journal.read(store, target)
    if journal is None:
        store.remove_tree(f"{target}{WORKPLACE_SUFFIX}")
    return journal


def _check_under_way(store: Store, target: str) -> None:
    """Raise InvalidArgumentError if the target has no workplace: before its lock is taken, which leaves a file there.
    """
    if not _is_under_way(store, target):
        raise InvalidArgumentError(
            "no conversion into this target is under way", file=target, hint="name the target of the conversion"
        )


def _is_under_way(store: Store, target: str) -> bool:
    """Whether the target has a workplace. Raises InvalidArgumentError if that is a link."""
    workplace = f"{target}{WORKPLACE_SUFFIX}"
    store.check_workplace(workplace)
    return store.exists(workplace)


def _workplace(store: Store, target: str, journal: Journal | None = None) -> Workplace:
    """The workplace of the conversion into `target`; the source is not opened, since it is no longer needed."""
    if journal is None:
        return Workplace(store, store, "", target, ConversionOptions())
    options = ConversionOptions.of_dict(journal.options)
    return Workplace(store, store, journal.source, journal.target, options, prefix=journal.prefix)


def remove_workplace(workplace: Workplace) -> None:
    """Remove the workplace, the journal last: until then, a second call continues."""
    store = workplace.store
    for name in store.directories(workplace.path):
        store.remove_tree(workplace.within(name))
    for file in store.files(workplace.path):
        if file.name != JOURNAL_FILE:
            store.remove_file(workplace.within(file.name))
    store.remove_tree(workplace.path)
    if isinstance(store, RenamingStore):
        store.sync(os.path.dirname(workplace.path))


# --- locks -----------------------------------------------------------------------------------------


@contextmanager
def source_locked(store: Store, source: str, mode: LockMode = SHARED) -> Iterator[None]:
    """Keep brokers and writers out of the source's log dir. Raises LogLockedError if one uses it. `mode`: EXCLUSIVE if
    the source must be removed.

    A remote store has no locks: there a changing source is detected by the sizes and times of its files.
    """
    if not isinstance(store, LocalStore):
        yield
        return
    who = holder(source)
    if who is not None:
        raise LogLockedError(
            f"locked by {who}: a changing source cannot be converted", file=f"{source}/{LOG_DIR_LOCK}", hint=who.hint
        )
    # No lock file is created if the source stays unchanged.
    if mode is SHARED and not os.access(f"{source}/{LOG_DIR_LOCK}", os.R_OK | os.W_OK):
        yield
        return
    with lock_log_dir(store.fs, source, mode):
        yield
