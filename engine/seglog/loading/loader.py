"""Open a partition directory for writing, and repair what an interrupted change, a crash or a dead broker left.

Kafka's LogLoader. First everything is examined (`plan_load`), then everything is done (`LoadPlan.apply`), so that a log
that cannot be opened stays unchanged, and a dry run tells what a real run would do.

    leftovers of compaction, deletion   as Kafka's first passes (seglog.state.leftovers)
    closed cleanly                      index files of the last segments are checked, the log is not read
                                        (seglog.loading.index_trust)
    not closed cleanly                  every batch from the recovery point on is checked, segments in parallel, and
                                        the indexes of what was checked are rewritten if they differ
    left unclosed by a seglog writer    everything after the recovery point is also written to the disk again: a sync of
                                        it may have failed, and no later sync would report that
    a torn tail                         damage that no whole batch follows, up to the end of the log: truncated. So is a
    hole
                                        of bytes that never reached the disk (seglog.segment.recovery), if the crash
                                        came while several batches were not synced
    a bad middle                        any other damage: by seglog.recovery.mode an error, truncated as Kafka does,
                                        or quarantined
    leader epochs, producers            seglog.loading.replay

A log that ends below its log start offset is emptied (LogLoader.deleteSegmentsIfLogStartGreaterThanLogEnd). Checked
bytes are synced before they can be read: after a crash of the process, bytes may be in the page cache only.

Crash-safe: the segments after a truncation are removed before the truncation, and quarantined bytes are copied before
they leave the log, so that the next opening finds the same damage or none.
"""
import os
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, overload

from seglog.config import LogConfig
from seglog.errors import CorruptRecordError
from seglog.format import names
from seglog.format.batch_layout import MAGIC_POS
from seglog.format.dialect import dialect_of_config
from seglog.fs.aside import shorten, write_again, write_atomically, write_derived
from seglog.fs.files import FileSystem
from seglog.fs.mapping import Mapping, read_file
from seglog.late_import import late
from seglog.loading import replay
from seglog.loading.index_trust import indexes_are_sound, sound_end
from seglog.named_tuple import NamedTuple
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.leftovers import FoundSegment, Leftovers, Listed, survey
from seglog.state.partition_hold import PartitionHold
from seglog.state.producer_snapshots import ProducerSnapshots
from seglog.state.producer_state import ProducerState

if TYPE_CHECKING:
    from seglog.segment.recovery import Damage, Run, SegmentCheck

_V2 = b"\x02"
_ZEROS_BYTES = 1 << 20      # compared at a time
# How many segments at the end of a log that was closed cleanly have their indexes checked.
LOOKED_AT = 64
AFTER_TRUNCATION = "it comes after the truncation point"
ENDS_BELOW_START = "the log ended below its log start offset: it was emptied and starts again there"


class Repair(NamedTuple):
    """A repair that lost no record. `what` is a sentence."""

    file: str
    what: str


class Loaded(NamedTuple):
    """A log as it was opened. There is at least one segment; the last one is appended to.

    `recovery_point` is the end: everything before it is on the disk, checked or closed cleanly. `lost`: what was
    truncated or quarantined, torn tails included. `cursors`: the names of the files of cursors.
    """

    segments: "tuple[PlannedSegment, ...]"
    next_offset: int
    log_start_offset: int
    recovery_point: int
    leader_epochs: LeaderEpochs
    producer_state: ProducerState
    producer_snapshots: ProducerSnapshots
    lost: tuple[LostRange, ...]
    repairs: tuple[Repair, ...]
    cursors: tuple[str, ...]


def load(
    fs: FileSystem, directory: Path, config: LogConfig, *,
    clean: bool, recovery_point: int = 0, log_start_offset: int = 0, unordered: bool = False,
    unsynced_from: int | None = None, now_ms: int,
) -> Loaded:
    """Repair the partition directory and return what is in it. The caller holds the partition's lock.

    `clean`: it was closed cleanly. `recovery_point`, `log_start_offset`: from the checkpoint files, 0 if they have no
    line. `unordered`: its writer left several batches unsynced at a time. `unsynced_from`: what is read from this
    offset on may be in the page cache only, even if a sync succeeds (docs/durability.md). `now_ms`: the time by which
    producers expire.

    Raises CorruptRecordError for a bad middle with seglog.recovery.mode=fail, and has changed nothing then;
    StorageError.
    """
    plan = plan_load(
        directory, config, clean=clean, recovery_point=recovery_point, log_start_offset=log_start_offset,
        unordered=unordered, unsynced_from=unsynced_from,
    )
    return plan.apply(fs, now_ms)


class PlannedSegment:
    """A segment that stays.

    `check`: what the log was found to hold; None if it was not checked. `is_recovered`: checked as part of a log that
    was not closed cleanly, not only to rebuild indexes. `runs`: the bytes that stay, None if all do. `foreign_magics`:
    positions of batches whose magic is repaired.
    """

    __slots__ = ("check", "files", "foreign_magics", "is_recovered", "next_offset", "runs")

    def __init__(self, files: FoundSegment, next_offset: int | None = None) -> None:
        self.files = files
        self.check: SegmentCheck | None = None
        self.is_recovered = False
        self.runs: tuple[Run, ...] | None = None
        self.foreign_magics: tuple[int, ...] = ()
        self.next_offset = next_offset

    @property
    def base_offset(self) -> int:
        return self.files.base_offset

    @property
    def path(self) -> Path:
        """The path of its .log once leftovers are swapped in."""
        return self.files.path

    @property
    def is_changed(self) -> bool:
        """Whether the bytes of its .log will change."""
        return self.runs is not None or bool(self.foreign_magics)

    @property
    def size_bytes(self) -> int:
        """The size that its .log will have."""
        if self.runs is None:
            return self.files.log.size_bytes
        return sum(run.stop - run.start for run in self.runs)


class LoadPlan:
    """What opening would do. `lost`: what the log would lose. `repairs`: what would be repaired without loss."""

    def __init__(
        self, directory: Path, config: LogConfig, clean: bool, leftovers: Leftovers, log_start_offset: int,
        unsynced_from: int | None = None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.clean = clean
        self.leftovers = leftovers
        self.log_start_offset = log_start_offset
        self.unsynced_from = unsynced_from
        self.next_offset = 0
        self.segments = [PlannedSegment(files) for files in leftovers.segments]
        self.removed: list[FoundSegment] = []
        self.quarantined: list[tuple[FoundSegment, Damage]] = []
        self.lost: list[LostRange] = []
        self.repairs: list[Repair] = []

    @property
    def changes_logs(self) -> bool:
        """Whether a .log will be changed or removed."""
        return bool(self.removed) or any(s.is_changed for s in self.segments if s.check is not None)

    # --- doing it ----------------------------------------------------------------------------

    def apply(self, fs: FileSystem, now_ms: int, *, syncs_new_names: bool = True) -> Loaded:
        """Do what was planned, durably. Raises StorageError; planning and applying again then finishes it.

        `syncs_new_names`: those of the first segment of a clean log, too. Otherwise the caller syncs them before it
        writes anything there; without them, the next opening creates them again.
        """
        self._keep_damaged_bytes(fs)
        if self.leftovers:
            self.leftovers.apply(fs)
            for segment in self.segments:
                segment.files.take_names()
        self._remove_segments(fs)
        checked = [segment for segment in self.segments if segment.check is not None]
        for segment in checked:
            if segment.is_changed:
                _rewrite(fs, segment)
        starts_empty = not self.segments
        if starts_empty:
            self._restart_empty(fs)
        for segment in checked:
            _put_indexes(fs, segment, self.config, rewrites=self.unsynced_from is not None)
            self._sync_log(fs, segment)
        if not self.clean or checked or (starts_empty and (syncs_new_names or self.removed)):
            fs.sync_directory(self.directory)       # also names that a killed process made
        segments = _Replayed(self.segments)
        epochs = replay.put_leader_epochs(
            fs, self.directory, segments, log_start_offset=self.log_start_offset, next_offset=self.next_offset,
            starts_empty=starts_empty,
        )
        snapshots = ProducerSnapshots(
            fs, self.directory, self.leftovers.snapshots, are_kept=dialect_of_config(self.config).has_producers
        )
        producer_state = replay.put_producers(
            fs, snapshots, segments, clean=self.clean and not any(s.is_recovered for s in checked),
            last_bases=[files.base_offset for files in (*(s.files for s in self.segments[-2:]), *self.removed)][-2:],
            log_start_offset=self.log_start_offset, next_offset=self.next_offset, now_ms=now_ms,
            expiration_ms=self.config.producer_id_expiration_ms, rewrites=self.unsynced_from is not None,
        )
        return Loaded(
            tuple(self.segments),
            self.next_offset, self.log_start_offset, self.next_offset, epochs, producer_state,
            snapshots, tuple(self.lost), tuple(self.repairs), self.leftovers.cursors,
        )

    def _sync_log(self, fs: FileSystem, segment: PlannedSegment) -> None:
        """Sync what was recovered of a .log before it can be read or appended to."""
        if segment.is_changed or not segment.is_recovered:
            return
        if self.unsynced_from is None:
            fs.sync_file(segment.path)
        else:
            write_again(fs, segment.path, _position_of(segment, self.unsynced_from))

    def _keep_damaged_bytes(self, fs: FileSystem) -> None:
        if not self.quarantined:
            return
        late("seglog.state.quarantine")
        from seglog.state.quarantine import put_into_quarantine

        for files, damage in self.quarantined:
            with Mapping(files.log.path) as whole:
                raw = memoryview(whole)[damage.start : damage.stop]
                put_into_quarantine(fs, self.directory, [(damage.of(files.path), raw)])

    def _remove_segments(self, fs: FileSystem) -> None:
        """Remove segments, the last one first: what a crash leaves has no hole."""
        for files in reversed(self.removed):
            fs.unlink(files.path)
            for suffix in files.indexes:
                fs.unlink(self.directory / names.file_name(files.base_offset, suffix))
        if self.removed:
            fs.sync_directory(self.directory)

    def _restart_empty(self, fs: FileSystem) -> None:
        """Create an empty segment if there is none: in a new log, or in one that ended below its start."""
        dialect = dialect_of_config(self.config)
        suffixes = (dialect.log, *dialect.own_indexes)
        if self.config.time_index_minute_enabled and not dialect.has_one_index:
            suffixes = (*suffixes, names.MINUTE_INDEX_SUFFIX)
        for suffix in suffixes:
            # An empty file needs no other sync than that of the directory, which `apply` does.
            fs.create(self.directory / names.file_name(self.log_start_offset, suffix)).close()
        empty = FoundSegment(self.directory, self.log_start_offset, suffixes)
        self.segments.append(PlannedSegment(empty, next_offset=self.log_start_offset))


class _Replayed(replay.ReplaySegments):
    """The same segments for a replay: each is made when it is needed."""

    def __init__(self, segments: list[PlannedSegment]) -> None:
        self._segments = segments

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, slot: int) -> replay.ReplaySegment: ...
    @overload
    def __getitem__(self, slot: slice) -> list[replay.ReplaySegment]: ...
    def __getitem__(self, slot: int | slice) -> replay.ReplaySegment | list[replay.ReplaySegment]:
        if isinstance(slot, slice):
            return [_replayed(segment) for segment in self._segments[slot]]
        return _replayed(self._segments[slot])

    def __iter__(self) -> Iterator[replay.ReplaySegment]:
        return map(_replayed, self._segments)

    @property
    def base_offsets(self) -> list[int]:
        return [segment.files.base_offset for segment in self._segments]

    @property
    def recovered(self) -> list[replay.ReplaySegment]:
        return [_replayed(segment) for segment in self._segments if segment.is_recovered]


def _replayed(segment: PlannedSegment) -> replay.ReplaySegment:
    files = segment.files
    check = segment.check if segment.is_recovered else None
    return replay.ReplaySegment(files.directory, files.base_offset, check, files.suffixes[0])


# --- looking -----------------------------------------------------------------------------------


def plan_load(
    directory: Path, config: LogConfig, *, clean: bool, recovery_point: int = 0, log_start_offset: int = 0,
    unordered: bool = False, unsynced_from: int | None = None, listed: Listed = None,
) -> LoadPlan:
    """What `load` would do; only reads. `listed`: see `survey`. Raises what `load` raises."""
    leftovers = survey(directory, dialect_of_config(config), listed)
    plan = LoadPlan(directory, config, clean, leftovers, log_start_offset, unsynced_from)
    for name in (*leftovers.removed, *leftovers.cleaned, *leftovers.replaced):
        plan.repairs.append(Repair(str(directory / name), "left over from an interrupted change: removed"))
    for name, _ in leftovers.swapped:
        plan.repairs.append(Repair(str(directory / name), "left over from an interrupted change: put in place"))
    for name in leftovers.orphans:
        plan.repairs.append(Repair(str(directory / name), "an index without its log: removed"))
    first = _first_to_check(plan, recovery_point)
    _check(plan, first)
    _judge(plan, plan.segments[first:], recovery_point if unordered else None)
    _find_end(plan)
    return plan


def plan_partition(
    hold: PartitionHold, config: LogConfig, clean: bool, unordered: bool, unsynced_from: int | None,
    listed: Listed = None,
) -> LoadPlan:
    """What opening the held partition would do."""
    points = {"recovery_point": hold.recovery_point or 0, "log_start_offset": hold.log_start_offset or 0}
    return plan_load(
        hold.path, config, clean=clean, unordered=unordered, unsynced_from=unsynced_from, listed=listed, **points
    )


def _first_to_check(plan: LoadPlan, recovery_point: int) -> int:
    """The first slot whose log is checked: the segment with the recovery point; in a clean log, none.

    Except for the last segment of a clean log, if its end is not what a clean close leaves.
    """
    segments = plan.segments
    if not plan.clean:
        slots = [slot for slot, segment in enumerate(segments) if segment.base_offset <= recovery_point]
        return slots[-1] if slots else 0
    if not segments:
        return 0
    active = segments[-1]
    if indexes_are_sound(active.files, plan.config):
        active.next_offset = sound_end(active.files, plan.config)
    return len(segments) if active.next_offset is not None else len(segments) - 1


def _check(plan: LoadPlan, first: int) -> None:
    """Read the logs from the slot `first` on, and earlier ones whose indexes cannot be used."""
    segments = plan.segments
    # If a log was closed cleanly, only the indexes of its last segments are examined; earlier ones need only exist: a
    # reader notices if one is wrong, and does without it.
    looked_at = max(len(segments) - LOOKED_AT, 0) if plan.clean else 0
    needed = list(dialect_of_config(plan.config).own_indexes)
    if plan.config.time_index_minute_enabled and names.MINUTE_INDEX_SUFFIX in plan.leftovers.lacking:
        needed.append(names.MINUTE_INDEX_SUFFIX)
    lacking = set().union(*(plan.leftovers.lacking[suffix] for suffix in needed))
    before = {bisect_left(segments, base_offset, key=_base_offset) for base_offset in lacking}
    to_check = sorted(slot for slot in before if slot < looked_at)
    to_check += [
        slot for slot in range(looked_at, len(segments))
        if slot >= first or (
            segments[slot].next_offset is None and not indexes_are_sound(segments[slot].files, plan.config)
        )
    ]
    if not to_check:
        return
    late("seglog.segment.recovery")
    from seglog.segment.recovery import check_segments  # a log that was closed cleanly never needs it

    ends = [segments[slot + 1].base_offset if slot + 1 < len(segments) else names.MAX_OFFSET for slot in to_check]
    checks = check_segments(
        [
            (segments[slot].files.log.path, segments[slot].base_offset, end)
            for slot, end in zip(to_check, ends, strict=True)
        ],
        plan.config,
    )
    for slot, check in zip(to_check, checks, strict=True):
        segments[slot].check = check
        segments[slot].is_recovered = slot >= first
        if slot < first and check.damages:
            plan.repairs.append(Repair(
                str(segments[slot].path),
                f"damaged from byte {check.sound_bytes} on; not changed, because it is below the recovery point",
            ))


def _base_offset(segment: PlannedSegment) -> int:
    return segment.files.base_offset


def _judge(plan: LoadPlan, checked: list[PlannedSegment], unordered_from: int | None) -> None:
    """Decide what to do about damage.

    Raises CorruptRecordError if seglog.recovery.mode=fail does not allow to continue.

    `unordered_from`: from this offset on, a later batch may have reached the disk before an earlier one; None if all
    writes were ordered.
    """
    mode = plan.config.recovery_mode
    for segment in checked:
        segment.foreign_magics = _checked(segment).foreign_magics
        for position in segment.foreign_magics:
            if mode == "fail":
                raise CorruptRecordError("a v2 batch with another magic", file=segment.path, position=position)
            plan.repairs.append(Repair(str(segment.path), f"byte {position}: a v2 batch with another magic: repaired"))
    slot = next((slot for slot, s in enumerate(checked) if _checked(s).damages), None)
    if slot is None:
        return
    check = _checked(checked[slot])
    is_tail = not check.has_run_behind_damage and not any(_checked(s).runs for s in checked[slot + 1 :])
    damage = check.damages[0]
    if is_tail and (not damage.is_misplaced or _never_arrived(checked[slot], damage)):
        if mode == "quarantine":
            _quarantine_all(plan, checked[slot:])
            _truncate(plan, checked[slot], tell=False)
        else:
            _truncate(plan, checked[slot])
    elif mode == "truncate":
        _truncate(plan, checked[slot])
    elif mode == "quarantine":
        _quarantine_all(plan, checked)
    elif (
        unordered_from is not None and damage.first_offset >= unordered_from
        and checked[slot] is plan.segments[-1] and _never_arrived(checked[slot], damage)
    ):
        _truncate(plan, checked[slot])
    else:
        raise CorruptRecordError(
            f"{damage.reason}, and whole batches follow" if not is_tail else damage.reason,
            file=checked[slot].path, position=damage.start, offset=damage.first_offset,
            hint="`seglog recover --mode quarantine` lists what would be lost; seglog.recovery.mode=quarantine keeps "
            "what follows the damage, seglog.recovery.mode=truncate ends the log here as Kafka does",
        )


def _never_arrived(segment: PlannedSegment, damage: "Damage") -> bool:
    late("seglog.segment.missing_sectors")
    from seglog.segment.missing_sectors import lacks_a_sector

    with Mapping(segment.files.log.path) as whole:
        return lacks_a_sector(memoryview(whole), damage)


def _truncate(plan: LoadPlan, segment: PlannedSegment, *, tell: bool = True) -> None:
    """End the log before the first damage of a segment: LogLoader.recoverLog."""
    check = _checked(segment)
    damage = check.damages[0]
    segment.runs = tuple(run for run in check.runs if run.start < damage.start)
    slot = plan.segments.index(segment)
    behind, plan.segments[slot + 1 :] = plan.segments[slot + 1 :], []
    plan.removed += [later.files for later in behind]
    if not tell:
        return
    is_last = not check.has_run_behind_damage and len(check.damages) == 1
    last_offset = damage.last_offset if is_last else check.next_offset - 1
    late("seglog.segment.recovery")
    from seglog.segment.recovery import Damage

    plan.lost.append(Damage(
        damage.start, check.size_bytes, damage.first_offset, last_offset, damage.reason).of(segment.path))
    for later in behind:
        check = _checked(later)
        if check.size_bytes:
            plan.lost.append(LostRange(
                str(later.path), 0, check.size_bytes, later.base_offset, check.next_offset - 1 if check.runs else -1,
                AFTER_TRUNCATION,
            ))


def _quarantine_all(plan: LoadPlan, checked: list[PlannedSegment]) -> None:
    """Remove the damaged bytes from the log, and nothing else."""
    for segment in checked:
        check = _checked(segment)
        if not check.damages:
            continue
        segment.runs = check.runs
        for damage in check.damages:
            plan.lost.append(damage.of(segment.path))
            if not _is_zeros(segment, damage):
                plan.quarantined.append((segment.files, damage))


def _is_zeros(segment: PlannedSegment, damage: "Damage") -> bool:
    """Whether the bytes were never written, so that there is nothing to keep."""
    with Mapping(segment.files.log.path) as whole:
        raw = memoryview(whole)[damage.start : damage.stop]
        return not any(bytes(raw[at : at + _ZEROS_BYTES]).strip(b"\0") for at in range(0, len(raw), _ZEROS_BYTES))


def _find_end(plan: LoadPlan) -> None:
    """Find where the log ends and begins; a log that ends below its start is emptied, and begins again there."""
    if plan.segments:
        last = plan.segments[-1]
        if last.next_offset is None:
            kept = _checked(last).runs if last.runs is None else last.runs
            last.next_offset = kept[-1].next_offset if kept else last.base_offset
        plan.next_offset = last.next_offset
        if plan.next_offset >= plan.log_start_offset:
            plan.log_start_offset = max(plan.log_start_offset, plan.segments[0].base_offset)
            return
        plan.lost += [
            LostRange(str(s.path), 0, s.size_bytes, s.base_offset, _next_base(plan, s) - 1, ENDS_BELOW_START)
            for s in plan.segments if s.size_bytes
        ]
        plan.removed = [*(s.files for s in plan.segments), *plan.removed]
        plan.segments = []
    plan.next_offset = plan.log_start_offset


def _next_base(plan: LoadPlan, segment: PlannedSegment) -> int:
    later = [s.base_offset for s in plan.segments if s.base_offset > segment.base_offset]
    return later[0] if later else plan.next_offset


# --- files -------------------------------------------------------------------------------------


def _rewrite(fs: FileSystem, segment: PlannedSegment) -> None:
    """Write a .log with the runs that stay and with repaired magics. It may be mapped: see `shorten`."""
    runs = _checked(segment).runs if segment.runs is None else segment.runs
    if not segment.foreign_magics and _is_prefix(runs):
        shorten(fs, segment.path, runs[0].stop if runs else 0, is_torn_tail=_checked(segment).ends_torn)
        return
    with Mapping(segment.path) as whole:
        write_atomically(fs, segment.path, *_pieces(memoryview(whole), runs, segment.foreign_magics))


def _is_prefix(runs: "tuple[Run, ...]") -> bool:
    """Whether the runs are just the first bytes of the file."""
    return len(runs) == 0 or (len(runs) == 1 and runs[0].start == 0)


def _pieces(raw: memoryview, runs: "tuple[Run, ...]", foreign_magics: tuple[int, ...]) -> Iterator[bytes | memoryview]:
    mended = iter([*(position + MAGIC_POS for position in foreign_magics), len(raw)])
    at = next(mended)
    for run in runs:
        position = run.start
        while at < run.stop:
            if at >= position:
                yield raw[position:at]
                yield _V2
                position = at + 1
            at = next(mended)
        yield raw[position : run.stop]


def _position_of(segment: PlannedSegment, offset: int) -> int:
    """Where the batch with `offset` begins in a .log with correct indexes; the end of the .log if there is none."""
    if offset <= segment.base_offset:
        return 0
    log = Segment(segment.path)
    try:
        found = log.find_offset(offset)
        return log.size_bytes if found is None else found.position
    finally:
        log.close()


def _put_indexes(fs: FileSystem, segment: PlannedSegment, config: LogConfig, *, rewrites: bool) -> None:
    """Make the index files match the .log; the caller syncs the directory.

    Those of a recovered segment are on the disk afterwards. `rewrites`: they are written even if they are correct.
    """
    check = _checked(segment)
    if segment.is_changed:
        if not _is_prefix(check.runs if segment.runs is None else segment.runs) or check.offset_index is None:
            late("seglog.segment.recovery")
            from seglog.segment.recovery import check_segment

            check = check_segment(segment.path, segment.base_offset, names.MAX_OFFSET, config)
        if names.MINUTE_INDEX_SUFFIX in segment.files.indexes and not config.time_index_minute_enabled:
            # It describes bytes that are gone.
            fs.unlink(segment.path.with_suffix(names.MINUTE_INDEX_SUFFIX))
        for suffix in names.OF_WHOLE_LOGS:
            if suffix in segment.files.indexes:
                fs.unlink(segment.path.with_suffix(suffix))
    right = dialect_of_config(config).index_files(
        check.offset_index, check.time_index, (check.minute_index or b"") if config.time_index_minute_enabled else None
    )
    for suffix, raw in right.items():
        path = segment.path.with_suffix(suffix)
        if (rewrites and segment.is_recovered) or not _holds(path, raw or b""):
            write_derived(fs, path, raw or b"", segment.path)
        elif segment.is_recovered:
            fs.sync_file(path)


def _holds(path: Path, raw: bytes) -> bool:
    try:
        return os.path.getsize(path) == len(raw) and read_file(path) == raw
    except FileNotFoundError:
        return False


def _checked(segment: PlannedSegment) -> "SegmentCheck":
    assert segment.check is not None
    return segment.check
