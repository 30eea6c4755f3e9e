"""The offsets that a group committed: those in effect, and those that wait for their write or their transaction.

    commit           ── pending until it is on the disk ── in effect
    transactional    ── pending until the transaction's marker is on the disk ── in effect, or dropped

Of two commits the one later in the log takes effect, in whatever order they complete.

Every offset, in whichever state, counts to what all groups hold.
"""
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from seglog.coordinators.held import Held, text_bytes
from seglog.named_tuple import NamedTuple

TopicPartition = tuple[str, int]

# What an offset takes besides its metadata.
_OFFSET_BYTES = 384


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset, as in a record of __consumer_offsets. Times in ms; -1: none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = -1

    @property
    def size_bytes(self) -> int:
        """What it counts for."""
        return _OFFSET_BYTES + text_bytes(self.metadata)


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A commit, and the offset of its batch in __consumer_offsets: None while that is not known."""

    commit: CommittedOffset
    log_offset: int | None


class WaitingCommit(NamedTuple):
    """A commit that takes effect once its producer's transaction commits."""

    topic: str
    partition: int
    offset: int
    producer_id: int


class GroupOffsets:
    """The offsets of one group."""

    def __init__(self, held: Held | None = None) -> None:
        """`held`: what all groups hold, which these offsets count to."""
        self._held = Held() if held is None else held
        self._committed: dict[TopicPartition, LoggedCommit] = {}
        self._pending: dict[TopicPartition, CommittedOffset] = {}
        self._transactional: dict[int, dict[TopicPartition, LoggedCommit]] = {}    # by producer id

    @property
    def is_empty(self) -> bool:
        """Whether there are no offsets, and none are pending."""
        return not (self._committed or self._pending or self._transactional)

    def get(self, where: TopicPartition) -> CommittedOffset | None:
        found = self._committed.get(where)
        return None if found is None else found.commit

    def partitions(self) -> list[TopicPartition]:
        return list(self._committed)

    def latest(self) -> dict[TopicPartition, int]:
        """The committed offset of each partition."""
        return {where: logged.commit.offset for where, logged in self._committed.items()}

    def is_unstable(self, where: TopicPartition) -> bool:
        """Whether a commit for the partition is pending, or waits for its transaction to end."""
        return where in self._pending or any(where in commits for commits in self._transactional.values())

    def waiting(self) -> list[WaitingCommit]:
        """The commits that wait for their transactions to end."""
        return sorted(
            WaitingCommit(*where, logged.commit.offset, producer_id)
            for producer_id, commits in self._transactional.items() for where, logged in commits.items()
        )

    # --- commits -----------------------------------------------------------------------------------

    def more_bytes(self, where: TopicPartition, commit: CommittedOffset, producer_id: int | None) -> int:
        """How much more these offsets will hold once this commit is in effect, or waits for its producer's transaction;
        one that was sent again holds no more than the one before it."""
        known: CommittedOffset | LoggedCommit | None
        if producer_id is None:
            known = self._pending.get(where) or self._committed.get(where)
        else:
            known = self._transactional.get(producer_id, {}).get(where)
        if isinstance(known, LoggedCommit):
            known = known.commit
        return commit.size_bytes - (0 if known is None else known.size_bytes)

    def begin(self, commits: Mapping[TopicPartition, CommittedOffset]) -> None:
        for where, commit in commits.items():
            self._drop_pending(where)
            self._pending[where] = commit
            self._held.offsets += commit.size_bytes

    def finish(self, commits: Mapping[TopicPartition, CommittedOffset], log_offset: int | None) -> None:
        """Apply commits that are on the disk. With `log_offset` None, drop them: they could not be written."""
        for where, commit in commits.items():
            if self._pending.get(where) is commit:
                self._drop_pending(where)
            if log_offset is not None:
                self._put(where, LoggedCommit(commit, log_offset))

    def begin_transactional(self, producer_id: int, commits: Mapping[TopicPartition, CommittedOffset]) -> None:
        pending = self._transactional.setdefault(producer_id, {})
        for where, commit in commits.items():
            self._set(pending, where, LoggedCommit(commit, None))

    def finish_transactional(
        self, producer_id: int, commits: Mapping[TopicPartition, CommittedOffset], log_offset: int | None
    ) -> None:
        """Note that commits are on the disk and wait for the transaction's end. With `log_offset` None, drop them: they
        could not be written."""
        pending = self._transactional.get(producer_id, {})
        for where, commit in commits.items():
            found = pending.get(where)
            if found is None or found.commit is not commit:
                continue
            if log_offset is None:
                self._drop(pending, where)
            else:
                pending[where] = LoggedCommit(commit, log_offset)
        if not pending:
            self._transactional.pop(producer_id, None)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for where, logged in self._transactional.pop(producer_id, {}).items():
            self._held.offsets -= logged.commit.size_bytes
            if commit and logged.log_offset is not None:
                self._put(where, logged)

    def producers(self) -> Collection[int]:
        """The producers whose open transactions contain offsets of this group."""
        return self._transactional.keys()

    def _put(self, where: TopicPartition, logged: LoggedCommit) -> None:
        assert logged.log_offset is not None
        known = self._committed.get(where)
        if known is None or known.log_offset is None or known.log_offset <= logged.log_offset:
            self._set(self._committed, where, logged)

    def _set(self, table: dict[TopicPartition, LoggedCommit], where: TopicPartition, logged: LoggedCommit) -> None:
        self._drop(table, where)
        table[where] = logged
        self._held.offsets += logged.commit.size_bytes

    def _drop(self, table: dict[TopicPartition, LoggedCommit], where: TopicPartition) -> bool:
        """Forget a commit. Returns whether there was one."""
        known = table.pop(where, None)
        if known is not None:
            self._held.offsets -= known.commit.size_bytes
        return known is not None

    def _drop_pending(self, where: TopicPartition) -> None:
        known = self._pending.pop(where, None)
        if known is not None:
            self._held.offsets -= known.size_bytes

    # --- loading, removal, expiry --------------------------------------------------------------------

    def load(self, where: TopicPartition, commit: CommittedOffset, log_offset: int, producer_id: int | None) -> None:
        """Apply a record of the log, in the log's order; `producer_id` if it belongs to a transaction."""
        table = self._committed if producer_id is None else self._transactional.setdefault(producer_id, {})
        self._set(table, where, LoggedCommit(commit, log_offset))

    def forget(self, where: TopicPartition, producer_id: int | None = None) -> None:
        """Apply a tombstone of the log."""
        if producer_id is None:
            self._drop(self._committed, where)
        elif producer_id in self._transactional:
            self._drop(self._transactional[producer_id], where)

    def remove(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Forget the partitions' commits, pending ones included. Returns those that had a committed offset."""
        removed = []
        for where in list(partitions):
            self._drop_pending(where)
            for producer_id, commits in self._transactional.copy().items():
                self._drop(commits, where)
                if not commits:
                    del self._transactional[producer_id]
            if self._drop(self._committed, where):
                removed.append(where)
        return removed

    def remove_all(self) -> list[TopicPartition]:
        """Forget everything. Returns the partitions that had a committed offset."""
        for producer_id in list(self._transactional):
            self.end_transaction(producer_id, commit=False)
        return self.remove([*self._pending, *self._committed])

    def among(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those of these partitions that have a commit of any kind. It goes through whichever are fewer."""
        tables: list[Collection[TopicPartition]] = [
            self._committed, self._pending, *self._transactional.values()]
        return list(dict.fromkeys(
            where for table in tables
            for where in (partitions if len(partitions) < len(table) else table)
            if where in table and where in partitions))

    def expired(
        self, now_ms: int, retention_ms: int, *, since_ms: int | None, subscribed: Collection[str]
    ) -> list[TopicPartition]:
        """The offsets to remove: older than `retention_ms`, or past the expiry time of their commit (OffsetCommit 2-4).

        `since_ms`: when the group became empty; if None, each offset ages from its commit. `subscribed`: topics that
        the group reads; their offsets stay.
        """
        found = []
        for where, logged in self._committed.items():
            if where[0] in subscribed or where in self._pending:
                continue
            commit = logged.commit
            if commit.expire_timestamp != -1:
                is_expired = now_ms >= commit.expire_timestamp
            else:
                is_expired = now_ms - (commit.commit_timestamp if since_ms is None else since_ms) >= retention_ms
            if is_expired:
                found.append(where)
        return found
