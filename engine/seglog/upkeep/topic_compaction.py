"""Compaction of a topic: keeps the last message of each key in a compacted ledger beside the topic's own ledgers.

    service = PulsarTopicCompactionService(managed_ledger)
    service.compact()

    phase one    the entries after the horizon: the last place of each key       (upkeep.compaction_phases)
    phase two    the former compacted ledger, then those entries: what remains ── a new ledger, sealed
    swap         cursor __compaction: pointer and horizon in one write           (ledger.compacted_home)
    after        the former ledger is deleted

Keys that do not fit into memory (seglog.compaction.key.map.bytes) take several complete rounds. A crash leaves the
former ledger or the new one, and nothing that the next opening does not remove. The topic's ledgers, its cursors and
its delayed messages are not changed. docs/topic_compaction.md
"""
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from seglog.config import MAX_LONG
from seglog.errors import (
    CorruptManifestError,
    InvalidArgumentError,
    LogFailedError,
    RecordTooLargeError,
    SeglogError,
)
from seglog.ledger.compacted.batch import PLACEHOLDERS, BatchForm, Payload
from seglog.ledger.compacted.compacted_ledger import CompactedLedger, CompactedProperties
from seglog.ledger.compacted.raw_message import CompactedEntry, raw_message
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.entry import Entry
from seglog.ledger.ledger import Ledger, delete_ledger
from seglog.ledger.managed.compacted_home import (
    COMPACTION_CURSOR,
    LEDGER_PROPERTY,
    adopt,
    compacted_directory,
    open_compacted,
    pointed_to,
)
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.ledger.managed.managed_ledger import OpenManagedLedger
from seglog.ledger.managed.reader import ManagedReader
from seglog.ledger.message_position import MessagePosition, last_message
from seglog.ledger.position import EARLIEST, Position
from seglog.ledger.stored_entry import StoredEntry
from seglog.logger import Logger
from seglog.topic.compaction_service import TopicCompactionService
from seglog.upkeep.compacted_conversion import FORMS, ConversionRound
from seglog.upkeep.compaction_phases import COMPACTED_BEFORE, CompactionCount, CompactionPhases

logger = Logger("seglog")

# Entries are added to the compacted ledger in pieces of this many bytes.
_CHUNK_BYTES = 1 << 20
# Entries are read this many at a time: they are views, and their bytes stay in the file.
_RUN_ENTRIES = 256


@dataclass(slots=True)
class CompactionReport:
    """What a compaction did, or would do. `horizon`: the topic is compacted up to here afterwards.

    `keys`: those after the former horizon, including deleted ones. `count`: of all rounds: what one wrote, the next one
    reads. `ledger_id` is None if there was nothing to do, or for a dry run.
    """

    horizon: Position = EARLIEST
    last: MessagePosition = MessagePosition.EARLIEST
    rounds: int = 0
    keys: int = 0
    count: CompactionCount = field(default_factory=CompactionCount)
    ledger_id: int | None = None


class CompactionRound:
    """Both phases over a topic's entries after `before`, and `before` itself: up to `end`, or as far as the keys fit
    into memory."""

    def __init__(self, topic: ManagedReader, before: CompactedLedger | None, end: Position) -> None:
        config = topic.config
        ttl_ms = config.compaction_key_ttl_ms
        self._topic = topic
        self._before = before
        self.phases = CompactionPhases(config, topic._clock.now_ms() - ttl_ms if ttl_ms else None)
        # The end of the round; and the last entry of which something remains.
        self.horizon = EARLIEST if before is None else before.horizon
        self.compacted_to = EARLIEST if before is None else before.properties.compacted_to
        self._last_kept: tuple[Position, bytes] | None = None
        # If encrypted batches were kept unchanged, several may have the same key.
        self._numbers_before = before is not None and before.properties.by_entry_key != config.compaction_by_entry_key
        self._note(end)

    def _note(self, end: Position) -> None:
        number = 0
        if self._before is not None and self._numbers_before:
            self.phases.latest.reserve(sum(max(compacted.message_count, 1) for compacted in self._before))
            for compacted in self._before:
                self.phases.note(compacted.entry, number, compacted.payload_form)
                number += 1
        self._first = number
        for stored in self._tail(end):
            stays = self.phases.note(stored.entry, number, PLACEHOLDERS)
            if stays is None and number == self._first:
                raise RecordTooLargeError(
                    f"the keys of entry {stored.position} do not fit into memory", file=self._topic.path,
                    hint="raise seglog.compaction.key.map.bytes",
                )
            if stays is None:
                break
            if stays:
                self.compacted_to = stored.position
            self.horizon = stored.position
            number += 1
        if self.compacted_to == EARLIEST:
            self.compacted_to = self.horizon

    def _tail(self, end: Position) -> Iterator[StoredEntry]:
        """Yield the topic's entries after the former horizon, up to `end`."""
        topic, extent = self._topic, self._topic.extent
        begin = extent.up_to(EARLIEST if self._before is None else self._before.horizon)
        stop = extent.up_to(end)
        while begin < stop and (at := extent.position(begin)) is not None:
            ledger_id, first = at
            count = min(extent.entries_of(extent.slot_of(ledger_id)) - first, stop - begin)
            entries = topic._read_run(ledger_id, range(first, first + min(count, _RUN_ENTRIES)))
            yield from entries
            begin += len(entries)

    def kept(self) -> Iterator[tuple[Position, int, bytes]]:
        """Yield (an entry's position, its publish time, its bytes) of what remains, in order."""
        number = 0
        if self._before is not None:
            for compacted in self._before:
                at = number if self._numbers_before else COMPACTED_BEFORE
                yield from self._placed(compacted, at, compacted.payload_form)
                number += 1
        number = self._first
        if self.horizon != EARLIEST:
            for stored in self._tail(self.horizon):
                yield from self._placed(stored, number, PLACEHOLDERS)
                number += 1

    def _placed(self, stored: StoredEntry, number: int, payload: Payload) -> Iterator[tuple[Position, int, bytes]]:
        entry = stored.entry
        fields = entry.fields()
        kept = self.phases.kept(entry, number, payload, fields)
        if kept is not None:
            self._last_kept = stored.position, kept
            yield stored.position, fields.publish_time, kept

    @property
    def last(self) -> MessagePosition:
        """Return the last message, after everything that remains was given."""
        if self._last_kept is None:
            return MessagePosition.EARLIEST
        position, kept = self._last_kept
        return last_message(position, Entry(kept)) or MessagePosition.EARLIEST

    def properties(self, name: str) -> CompactedProperties:
        """Return the ledger's properties, after everything that remains was given."""
        return CompactedProperties(
            name, self.horizon, self.compacted_to, self.phases.form, self._topic.config.compaction_by_entry_key,
            self.last,
        )


class _Shared:
    """The state that all services of one managed ledger share: all read what one of them compacted."""

    def __init__(self) -> None:
        # One compaction at a time.
        self.compacting = threading.Lock()
        # Guards `services`, and the time from the cursor's new pointer until that ledger is read. Taken last.
        self.swapping = threading.Lock()
        # Replaced as a whole.
        self.ledger: CompactedLedger | None = None
        # Whether the cursor may point to another one: a swap is in progress, or failed before its end.
        self.is_in_doubt = False
        # The services that are not closed.
        self.services = 0


class PulsarTopicCompactionService(TopicCompactionService):
    """Compacts a managed ledger as Pulsar does, and reads the result. The caller still owns the managed ledger.

    Several services of one managed ledger share the compacted ledger, such as the one of a ManagedLedger that
    compacts by itself and one to read with.

    `name`: the topic's name in the ledger's properties; by default the directory's name. If the configuration has a
    brokerServiceCompactionThresholdInBytes, the managed ledger's thread compacts from now on; `error` is the error with
    which its last compaction failed, or None.

    Raises CorruptManifestError if the pointer to the compacted ledger, or the ledger, was lost.
    """

    def __init__(self, managed_ledger: OpenManagedLedger, *, name: str | None = None) -> None:
        if not isinstance(managed_ledger, OpenManagedLedger):
            raise InvalidArgumentError(f"a service needs a ManagedLedger, not {managed_ledger!r}")
        self._topic = managed_ledger
        self._name = managed_ledger.path.name if name is None else name
        self._shared = shared = managed_ledger._shared(_Shared)
        self._is_closed = False
        self.error: SeglogError | None = None
        with shared.swapping:
            if not shared.services:
                shared.ledger = None        # the last service closed it
            self._follow(managed_ledger.cursors.get(COMPACTION_CURSOR))
            shared.services += 1
        if managed_ledger.config.compaction_threshold_bytes:
            # Nothing is trimmed before it is compacted. (PersistentTopic.preCreateSubscriptionForCompactionIfNeeded)
            managed_ledger.open_cursor(COMPACTION_CURSOR, "earliest")
            managed_ledger._add_chore(self._compact_if_due)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}: {self._ledger}>"

    # --- compacting --------------------------------------------------------------------------

    def compact(self) -> CompactionReport:
        """Compact the topic up to its present end; durable at return.

        Raises what reading and adding raise, MissingCodecError, RecordTooLargeError; then the topic reads as before.
        """
        with self._shared.compacting:
            topic = self._topic
            cursor = topic.open_cursor(COMPACTION_CURSOR, "earliest")
            with self._shared.swapping:
                self._follow(cursor)
            topic.flush()       # a compacted ledger must not have entries that the topic loses in a crash
            report = CompactionReport(horizon=self.get_last_compacted_position(), last=self.get_last_message_position())
            end = topic.last_position
            while end is not None and (self.get_last_compacted_position() < end or self._is_stale(report)):
                self._compact(cursor, end, report)
            return report

    def convert(self, form: BatchForm | str) -> int | None:
        """Rewrite the compacted ledger in another form, prove that its messages are unchanged, and read from the new
        one from now on. Returns its id; None if it has that form already, or nothing was compacted.

        `form`: a BatchForm, or "old", "new" or "retained-only", as for `seglog ledger convert`. The next compaction
        writes the form in the configuration. Raises ProofMismatchError; then nothing has changed.
        """
        if not isinstance(form, BatchForm):
            if not isinstance(form, str) or form not in FORMS:
                raise InvalidArgumentError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
            form = FORMS[form]
        with self._shared.compacting:
            cursor = self._topic.cursors.get(COMPACTION_CURSOR)
            with self._shared.swapping:
                self._follow(cursor)
            before = self._ledger
            if before is None or cursor is None or before.properties.form == form:
                return None
            return self._swap_in(cursor, ConversionRound(before, form))

    def plan(self) -> CompactionReport:
        """What the first round of `compact` would do. Nothing changes."""
        return plan_compaction(self._topic, self.compacted_ledger)

    def _compact_if_due(self) -> None:
        """Compact if at least the threshold's bytes are not compacted. Errors are logged, and kept in `error`."""
        try:
            threshold_bytes = self._topic.config.compaction_threshold_bytes
            if threshold_bytes and self._bytes_to_compact() >= threshold_bytes:
                self.compact()
                self.error = None
        except SeglogError as error:
            self.error = error
            logger.error("%s was not compacted: %s", self._name, error)

    def _bytes_to_compact(self) -> int:
        """The bytes of the topic after the horizon; in the horizon's own ledger, estimated from the mean entry size."""
        extent, horizon = self._topic.extent, self.get_last_compacted_position()
        total = 0
        for slot, info in enumerate(extent.infos):
            entries = extent.entries_of(slot)
            if info.ledger_id < horizon.ledger_id or not entries:
                continue
            left = entries if info.ledger_id > horizon.ledger_id else max(entries - horizon.entry_id - 1, 0)
            total += extent.size_of(slot) * left // entries
        return total

    def _is_stale(self, report: CompactionReport) -> bool:
        return not report.rounds and _is_stale(self._ledger, self._topic.config)

    def _compact(self, cursor: ManagedCursor, end: Position, report: CompactionReport) -> None:
        """Do one round."""
        made = CompactionRound(self._topic, self._ledger, end)
        report.ledger_id = self._swap_in(cursor, made)
        report.horizon, report.last = made.horizon, made.last
        report.rounds += 1
        report.keys += len(made.phases.latest)
        report.count.add(made.phases.count)

    def _swap_in(self, cursor: ManagedCursor, made: CompactionRound | ConversionRound) -> int:
        """Write what remains to a new ledger, use that from now on, and return its id."""
        topic = self._topic
        ledger_id = topic.new_ledger_id()
        path = compacted_directory(topic.path, ledger_id, is_new=True)
        self._write(path, ledger_id, made)
        if isinstance(made, ConversionRound):
            try:
                made.check(CompactedLedger(path))
            except SeglogError:
                delete_ledger(path, topic._fs)
                raise
        with self._shared.swapping:
            self._shared.is_in_doubt = True
            cursor.mark_delete(made.horizon, {LEDGER_PROPERTY: str(ledger_id)})
            adopt(topic._fs, topic.path, ledger_id)
            self.new_compacted_ledger(made.horizon, ledger_id)
            self._shared.is_in_doubt = False
        return ledger_id

    def _write(self, path: Path, ledger_id: int, made: CompactionRound | ConversionRound) -> None:
        topic = self._topic
        # It is not read before it is sealed, which syncs all of it.
        ledger = Ledger.create(path, ledger_id, fsync="never", fs=topic._fs, clock=topic._clock, held=True)
        try:
            entries, times, size_bytes = [], [], 0
            for position, publish_time, kept in made.kept():
                entries.append(raw_message(position, kept))
                times.append(min(publish_time, MAX_LONG))
                size_bytes += len(kept)
                if size_bytes >= _CHUNK_BYTES:
                    ledger.add_many(entries, times)
                    entries, times, size_bytes = [], [], 0
            if entries:
                ledger.add_many(entries, times)
            ledger.seal(made.properties(self._name).texts())
            ledger.close()
        except SeglogError as error:
            ledger._abandon()
            delete_ledger(path, topic._fs)
            # Only the ledger being written is read-only, and it is gone: the topic continues.
            if isinstance(error, LogFailedError) and isinstance(error.__cause__, SeglogError):
                raise error.__cause__ from None
            raise
        except BaseException:
            ledger._abandon()    # interrupted: the next opening removes it
            raise

    def _follow(self, cursor: ManagedCursor | None) -> None:
        """Use the ledger to which the cursor points: another one than before if a compaction failed between the swap
        and its end. Raises CorruptManifestError if the pointer was lost, or the cursor has passed entries that were not
        compacted."""
        pointer = pointed_to(self._topic.path, cursor)
        if pointer is not None:
            self._follow_to(pointer, cursor)
        self._shared.is_in_doubt = False

    def _follow_to(self, pointer: int, cursor: ManagedCursor | None) -> None:
        topic, ledger = self._topic, self._ledger
        mark_delete = EARLIEST if cursor is None else cursor.mark_delete_position
        if ledger is None or ledger.ledger_id != pointer or not ledger.path.exists():
            if cursor is not None:
                cursor.flush()      # an interrupt may have come before its pointer was written
            if compacted_directory(topic.path, pointer, is_new=True).exists():
                try:
                    adopt(topic._fs, topic.path, pointer)
                except SeglogError as error:        # it can be read under either name
                    logger.warning("compacted ledger %s gets its name at the next opening: %s", pointer, error)
            self._read_in(open_compacted(topic.path, pointer))
        horizon = EARLIEST if self._ledger is None else self._ledger.horizon
        if mark_delete > horizon:
            raise CorruptManifestError(
                f"the cursor {COMPACTION_CURSOR} is at {mark_delete}, but compaction reached {horizon}: the entries "
                "between them may be trimmed, and their keys would be missing",
                file=topic.path,
                hint="only compaction may move this cursor: seek it back to the horizon of compaction",
            )

    # --- the compacted ledger ----------------------------------------------------------------

    @property
    def _ledger(self) -> CompactedLedger | None:
        return self._shared.ledger

    @property
    def compacted_ledger(self) -> CompactedLedger | None:
        """The compacted ledger; None if the topic was never compacted.

        After an error or an interrupt in the middle of a swap, the next read looks up what the cursor points to: the
        topic may be trimmed up to there.
        """
        shared = self._shared
        if shared.is_in_doubt:
            with shared.swapping:
                if shared.is_in_doubt:
                    with suppress(LogFailedError):      # the topic is read-only then, and trims nothing
                        self._follow(self._topic.cursors.get(COMPACTION_CURSOR))
        return shared.ledger

    def new_compacted_ledger(self, horizon: Position, ledger_id: int) -> None:
        """Read from this ledger from now on, and delete the previous one, whose current readers may continue.

        Raises CorruptManifestError if it does not exist, or has another horizon.
        """
        found = open_compacted(self._topic.path, ledger_id)
        if found.horizon != horizon:
            raise CorruptManifestError(
                f"compacted ledger {ledger_id} has the horizon {found.horizon}, expected {horizon}", file=found.path
            )
        self._read_in(found)

    def _read_in(self, found: CompactedLedger) -> None:
        before, topic = self._ledger, self._topic
        self._shared.ledger = found
        if before is not None and before.ledger_id != found.ledger_id:
            before.retire()
            try:
                delete_ledger(before.path, topic._fs)
            except SeglogError as error:        # not important: the next opening of the topic removes what is left
                logger.warning("compacted ledger %s of %s is left over: %s", before.ledger_id, topic.path, error)

    def get_last_compacted_position(self) -> Position:
        ledger = self.compacted_ledger
        return EARLIEST if ledger is None else ledger.horizon

    def read_compacted_entries(self, start: Position, count: int) -> Sequence[CompactedEntry]:
        ledger = self.compacted_ledger
        return [] if ledger is None else ledger.read(start, count)

    def find_entry_by_publish_time(self, timestamp_ms: int) -> Position | None:
        ledger = self.compacted_ledger
        return None if ledger is None else ledger.find_entry_by_publish_time(timestamp_ms)

    def get_last_message_position(self) -> MessagePosition:
        ledger = self.compacted_ledger
        return MessagePosition.EARLIEST if ledger is None else ledger.get_last_message_position()

    def close(self) -> None:
        """Release the compacted ledger, which is closed when every service of the managed ledger is. Idempotent; what
        was read stays readable."""
        self._topic._remove_chore(self._compact_if_due)
        shared = self._shared
        with shared.swapping:
            if self._is_closed:
                return
            self._is_closed = True
            shared.services -= 1
            if not shared.services and shared.ledger is not None:
                shared.ledger.close()


def _is_stale(compacted: CompactedLedger | None, config: ManagedLedgerConfig) -> bool:
    """Whether the compacted ledger would be written differently now, even without new entries."""
    if compacted is None:
        return False
    return compacted.properties.form != BatchForm.of(config) or bool(config.compaction_key_ttl_ms)


def plan_compaction(topic: ManagedReader, before: CompactedLedger | None) -> CompactionReport:
    """Plan a compaction of the topic: both phases of its first round, without writing."""
    end = topic.last_position
    report = CompactionReport()
    if before is not None:
        report.horizon, report.last = before.horizon, before.get_last_message_position()
    if end is None or (end <= report.horizon and not _is_stale(before, topic.config)):
        return report
    made = CompactionRound(topic, before, end)
    for _ in made.kept():
        pass
    report.horizon, report.last, report.rounds = made.horizon, made.last, 1
    report.keys, report.count = len(made.phases.latest), made.phases.count
    return report
