"""Converts a partition directory to another record format: into a new directory, proven, published in one step.

The source is read and never written. The target is built in a staging directory that a broker ignores (fs.staging),
segment by segment (conversion.segment): the files of each are read again, and must contain the source's records
(conversion.proof) and the indexes that a rebuild would make. Producer snapshots, transactions and leader epochs are
added (conversion.state_fold). Only then it gets its name. A crash, ^C or an error before that leaves no target.

Memory holds one slice of a segment and the columns of the proof, whatever the size of the log.
"""
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from seglog._version import __version__
from seglog.config import LogConfig
from seglog.conversion.converted_segment import ConvertedSegment
from seglog.conversion.independent_proof import prove_again
from seglog.conversion.losses import LossKind, loss_kinds
from seglog.conversion.plan import (
    OneProgress,
    Plan,
    Progress,
    Result,
    TargetSegment,
    end_offsets,
    growth_warning,
    larger_batches_warning,
    make_plan,
)
from seglog.conversion.proof import PROOF_FILE, Proof, views
from seglog.conversion.resumption import Resumption
from seglog.conversion.segment import convert_segment
from seglog.conversion.state_fold import StateFold, reader
from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.format import names
from seglog.format.compression import Codec
from seglog.format.conversion_profile import TO_TAGGED, Aborted, Profile, version_of
from seglog.format.dialect import KAFKA, TAGGED
from seglog.format.directory_kinds import LEDGERS_HINT, DirectoryKind, refuse_other_kind
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.lock import LOG_DIR_LOCK, SHARED, lock_log_dir
from seglog.fs.partition_locks import holder_of, names_of
from seglog.fs.refusals import refusals
from seglog.fs.staging import Staging, leftovers, remove_leftovers
from seglog.reading.arguments import checked_path
from seglog.reading.partition import Partition
from seglog.segment.segment import Segment
from seglog.state.directory_dialect import directory_dialect
from seglog.state.partition_hold import refuse_file_in_the_way
from seglog.state.reader_cursor import cursor_files

AnyPath = str | os.PathLike[str]

# Of a partition of this size, what an interrupted command has converted is worth the space.
LARGE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a conversion; see `convert`. With the bytes of a source they determine the bytes of its target.

    `proof_every` only affects how often it is proven a second time (0: never). `erased`: remove records with these
    keys, and change nothing else.
    """

    to: int = 2
    repack_bytes: int = 0
    codec: str | Codec | None = None
    delete_horizon_ms: int | None = None
    allow_lossy: tuple[LossKind, ...] = ()
    aborted: Aborted | None = None
    config: Mapping[str, object] | LogConfig | None = None
    proof_every: int = 0
    erased: tuple[bytes, ...] = field(default=(), repr=False)

    def as_of(self, source: Path) -> "Options":
        """Adapt the options to the directory `source`: erasing keeps its dialect. Raises NotALogError, StorageError."""
        is_tagged = bool(self.erased) and source.is_dir() and directory_dialect(source).dialect.is_tagged
        return replace(self, to=TO_TAGGED) if is_tagged else self

    def profile(self) -> Profile:
        """Return the profile. Raises InvalidArgumentError for invalid arguments, UnsupportedCompressionTypeError."""
        if self.to not in (0, 1, 2, TO_TAGGED):
            raise InvalidArgumentError(
                f"unknown record format version {self.to!r}", hint="expected 0, 1, 2 or tagged"
            )
        if self.repack_bytes < 0 or self.repack_bytes > names.MAX_PARTITION:
            raise InvalidArgumentError(f"repack_bytes must be 0 (keep batches) or a size, not {self.repack_bytes}")
        if self.repack_bytes and self.delete_horizon_ms is not None:
            raise InvalidArgumentError("a delete horizon cannot be combined with repacking: it needs batches that stay")
        codec = None if self.codec is None else Codec.of(self.codec)
        return Profile(self.repack_bytes, codec, self.delete_horizon_ms, self.to, self.aborted, self.erased)

    def log_config(self) -> LogConfig:
        """Return the topic configuration. Raises InvalidConfigError."""
        config = self.config if isinstance(self.config, LogConfig) else LogConfig.of(self.config or {})
        dialect = TAGGED if self.to == TO_TAGGED else KAFKA
        if dialect.is_tagged:       # which has only one index
            config = config.replace(time_index_minute_enabled=False, time_index_ranges_enabled=False)
        return config.replace(message_dialect=dialect.name)


def convert(
    src: AnyPath,
    dst: AnyPath,
    to: int | str = 2,
    *,
    repack_bytes: int = 0,
    codec: str | Codec | None = None,
    delete_horizon_ms: int | None = None,
    allow_lossy: Iterable[str] = (),
    aborted: Aborted | None = None,
    config: Mapping[str, object] | LogConfig | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    proof: Literal["independent"] | None = None,
    proof_every: int = 1,
) -> Result:
    """Convert the partition directory `src` to record format `to` (0, 1, 2 or "tagged") as the new directory `dst`.

    Records keep offset, timestamp, key, value and headers; by default batches are written as Kafka 4 rewrites data at
    rest. `repack_bytes` packs consecutive records into larger batches, `codec` ("none", "gzip", "snappy", "lz4",
    "zstd") recompresses. `config`: the topic's `segment.bytes`, `index.interval.bytes` and `segment.index.bytes`, which
    a directory does not record. `delete_horizon_ms` stamps batches with tombstones as a compaction would.
    `progress(done, total)` is called with bytes of work: each byte is planned, converted and proven. An exception of it
    stops the conversion; then `dst` does not exist.

    To 0 or 1, batches are written as Kafka sent them to old consumers (FileRecords.downConvert); to "tagged", as tagged
    messages (docs/formats/tagged_message.md). What the format cannot hold (headers, control batches, producers; in v0
    also timestamps) is counted in `result.plan.losses`, and refused unless `allow_lossy` lists its kind:
    "headers", "timestamps", "control" (control batches), "producers" (their ids and sequences). `losses.kinds` of a
    plan without `dst` is what this conversion needs. If there are records of aborted or open transactions, `aborted`
    says whether to "drop" or to "keep" them.

    `proof="independent"`: every segment, or every `proof_every`-th and the last one, is proven a second time by plain
    Python, which shares no code with the conversion and its proof; slow (some MB/s), and needs the `witness` extra.

    Raises NotALogError; CorruptRecordError for a damaged source (run `seglog verify`; a torn end of the last segment is
    not damage); UnfinishedChangeError; InvalidArgumentError for an invalid or existing target; LogLockedError if a
    broker or another writer holds the log dir of either; StorageError; InvalidConfigError; codec errors;
    UnsupportedForMessageFormatError for losses that `allow_lossy` does not list;
    UnsupportedCompressionTypeError for zstd below v2; ProofMismatchError.
    """
    both = OneProgress(progress)
    plan = plan_conversion(
        src, checked_path(dst), to, repack_bytes=repack_bytes, codec=codec, delete_horizon_ms=delete_horizon_ms,
        allow_lossy=allow_lossy, aborted=aborted, config=config, progress=both.of_plan, fs=fs, proof=proof,
        proof_every=proof_every,
    )
    return plan.run(both.of_run)


def plan_conversion(
    src: AnyPath,
    dst: AnyPath | None = None,
    to: int | str = 2,
    *,
    repack_bytes: int = 0,
    codec: str | Codec | None = None,
    delete_horizon_ms: int | None = None,
    allow_lossy: Iterable[str] = (),
    aborted: Aborted | None = None,
    config: Mapping[str, object] | LogConfig | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    proof: Literal["independent"] | None = None,
    proof_every: int = 1,
) -> Plan:
    """Plan what `seglog.convert` would do with the same arguments: formats, sizes, `losses`, warnings. Write nothing.

    `plan.run()` carries it out. Without `dst` it is a dry run, with a forecast of the size, and cannot be carried out.
    `progress(done, total)` is called with the bytes of the source that were read. Raises as `seglog.convert`.
    """
    version = version_of(to) if isinstance(to, str) else to
    if proof not in (None, "independent"):
        raise InvalidArgumentError(f"unknown proof {proof!r}", hint='expected "independent" or None')
    if proof_every < 1:
        raise InvalidArgumentError(f"proof_every must be at least 1, not {proof_every}")
    options = Options(
        version, repack_bytes, codec, delete_horizon_ms, loss_kinds(allow_lossy), aborted, config,
        proof_every if proof else 0
    )
    return plan_from_options(src, dst, options, progress=progress, fs=fs)


def plan_from_options(
    src: AnyPath,
    dst: AnyPath | None,
    options: Options,
    *,
    replace: bool = False,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> Plan:
    """Plan a conversion by `options`. `replace`: a target made by a conversion may exist, and is replaced."""
    source_path = Path(os.path.abspath(checked_path(src)))
    with refusals("list", source_path):
        refuse_other_kind(source_path, DirectoryKind.PARTITION, LEDGERS_HINT)
    options = options.as_of(source_path)
    profile = options.profile()
    target = None
    if dst is not None:
        target = _checked_target(source_path, Path(os.path.abspath(checked_path(dst))), replace=replace)
    if target is not None:
        refuse_locked(source_path)
    with Partition(source_path, config=options.log_config()) as source:
        return make_plan(
            source, target, options.to, profile, checked_fs(fs), run, progress, options.allow_lossy, replace,
            options.proof_every,
        )


def run(
    plan: Plan, progress: Progress | None = None, *, clears: bool = True, keeps_large: bool = False
) -> Result:
    """Carry out a plan with a target; see `convert`. An exception of `progress` stops it, and nothing is left behind,
    except a new log dir.

    With `plan.replace`, takes over the segments that a run of the same plan had converted before it was killed, or
    interrupted if it had `keeps_large`: then what is finished of a partition of LARGE_BYTES or more stays. `clears`:
    remove what killed runs left in the log dir of the target.
    """
    if plan.target is None:
        raise InvalidArgumentError("the plan is a dry run: it has no target", hint="pass a target to plan_conversion")
    log_dir = plan.target.parent
    refuse_locked(plan.source)      # before anything is made
    make_directories(plan.fs, log_dir)
    with _locked(plan.fs, plan.source, log_dir):
        _checked_target(plan.source, plan.target, replace=plan.replace)
        if clears and not plan.replace:
            # Its owner was killed: we hold its lock now.
            remove_leftovers(plan.fs, log_dir)
        with (
            Partition(plan.source, config=plan.config) as source,
            Staging.of_partition(plan.fs, plan.target, replace=plan.replace) as staging,
        ):
            resumption = Resumption.begin(
                plan.fs, staging, plan.made_from(), views(plan.profile, source.segments[0].dialect).target,
                plan.config, left_over=leftovers(log_dir) if plan.replace and not plan.profile.erased else (),
            )
            if clears and plan.replace:
                remove_leftovers(plan.fs, log_dir, but=resumption.directories)
            with keeping_what_is_done(plan, staging, resumption, keeps_large=keeps_large):
                result = build(plan, source, staging, progress, resumption)
            staging.publish()
        if clears and plan.replace:
            remove_leftovers(plan.fs, log_dir)
        return result


def build(
    plan: Plan, source: Partition, staging: Staging, progress: Progress | None, resumption: Resumption | None = None
) -> Result:
    """Fill the staging directory of a plan, and prove its contents. The caller holds the locks, and publishes."""
    staging.close_to_others_than(segment.path for segment in source.segments)
    return _Conversion(plan, source, plan.target or staging.target, staging, progress, resumption).run()


@contextmanager
def keeping_what_is_done(plan: Plan, staging: Staging, resumption: Resumption, *, keeps_large: bool) -> Iterator[None]:
    """Keep the staging if an interrupt comes once a segment is converted, with a note at the interrupt; see `run`."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if keeps_large and plan.size_bytes >= LARGE_BYTES and resumption.noted:
            staging.keep()
            interrupt.add_note(
                f"what is converted ({resumption.noted} of {len(plan.segments)} segments) is kept in {staging.path}:"
                " --resume continues there, and a run without it removes it"
            )
        raise


# --- checks of source and target ----------------------------------------------------------------


def _checked_target(source: Path, target: Path, *, replace: bool) -> Path:
    parsed = names.parse_partition_dir(target.name)
    # Checkpoints get a line with the topic: other characters, such as a line feed, would make them unreadable.
    if parsed is None or parsed.mark or names.topic_fault(parsed.topic):
        raise names.misnamed_error(target)
    refuse_file_in_the_way(target.parent)
    real_source, real_target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real_target == real_source or real_source in real_target.parents:
        raise InvalidArgumentError("the target is inside the source", file=target, hint="choose another directory")
    if os.path.lexists(target) and not (replace and (target / PROOF_FILE).is_file()):
        raise InvalidArgumentError(
            "the target already exists", file=target, hint="choose another name, or move the existing files away"
        )
    return target


def refuse_locked(source: Path) -> None:
    """Raise LogLockedError if a broker or another writer holds the log dir of `source`."""
    found = holder_of(source)
    if found is not None:
        who, log_dir = found
        raise LogLockedError(
            f"locked by {who}: a source that may change cannot be converted", file=log_dir / LOG_DIR_LOCK,
            hint=who.hint,
        )


@contextmanager
def _locked(fs: FileSystem, source: Path, target_log_dir: Path) -> Iterator[None]:
    """Keep brokers and other writers out of the target's log dir, and new ones out of the source's."""
    refuse_locked(source)
    with ExitStack() as locks:
        locks.enter_context(lock_log_dir(fs, target_log_dir))
        for log_dir in {name.parent for name in names_of(source)} - {Path(os.path.realpath(target_log_dir))}:
            if _lockable(log_dir):
                locks.enter_context(lock_log_dir(fs, log_dir, SHARED))
        yield


def _lockable(log_dir: Path) -> bool:
    """Whether there is a lock file that we may open: none is created, since the source must not change."""
    return os.access(log_dir / LOG_DIR_LOCK, os.R_OK | os.W_OK)


# --- the conversion ----------------------------------------------------------------------------


class _Conversion:
    """One run of a plan, from the first batch to the proven staging directory."""

    def __init__(
        self, plan: Plan, source: Partition, target: Path, staging: Staging, progress: Progress | None,
        resumption: Resumption | None,
    ) -> None:
        self._plan = plan
        self._resumption = resumption
        self._source = source
        self._target = target
        self._staging = staging
        self._state = StateFold(reader(source.path), staging.write_file, to=plan.to, keeps_format=plan.keeps_format)
        self._end_offsets = end_offsets(source)
        self._progress = progress
        self._done = 0.0
        self._resumed = 0

    def run(self) -> Result:
        made_from = self._plan.made_from()
        if [segment.path.name for segment in self._source.segments] != [s.file for s in self._plan.segments]:
            raise _changed(self._source.path)
        segments = [self._convert(segment, slot) for slot, segment in enumerate(self._source.segments)]
        self._state.finish(self._plan.log_end_offset)
        self._copy_metadata()
        self._copy_cursors()
        if self._plan.made_from() != made_from:
            raise _changed(self._source.path)
        if self._resumption is not None:
            self._resumption.finish()
        proof = self._proof(segments, made_from)
        proven_again = 0
        if self._plan.proof_every:
            proven_again = prove_again(
                proof, self._plan.source, self._staging.path,
                drops_undecided=self._plan.profile.aborted == "drop", every=self._plan.proof_every,
            )
        self._staging.write_file(PROOF_FILE, proof.to_json())
        warnings = [*self._plan.warnings]
        larger_batches = sum(segment.larger_batches for segment in segments)
        if larger_batches:
            warnings.append(larger_batches_warning(larger_batches, self._plan.config.max_message_bytes))
        size_bytes = sum(part.size_bytes for segment in segments for part in segment.parts)
        warnings += growth_warning(self._plan.profile, self._plan.size_bytes, size_bytes)
        return Result(
            plan=self._plan,
            target=self._target,
            segments=tuple(
                TargetSegment(part.file, segment.source, part.base_offset, part.size_bytes)
                for segment in segments
                for part in segment.parts
            ),
            proof=proof,
            warnings=tuple(warnings),
            notes=tuple(self._state.notes),
            proven_again=proven_again,
            resumed=self._resumed,
        )

    def _convert(self, segment: Segment, slot: int) -> ConvertedSegment:
        """Convert and prove one source segment, and write the files that belong to it."""
        plan, planned_bytes, resumption = self._plan, self._plan.segments[slot].size_bytes, self._resumption
        converted = None if resumption is None else resumption.take(segment.path, planned_bytes)
        if converted is None:
            converted = convert_segment(
                plan.fs, segment.path, self._staging.path, plan.profile, plan.config,
                end_offset=self._end_offsets[slot], is_last=segment.is_last, dropped=plan.dropped,
                worked=self._worked,
            )
        else:
            self._resumed += 1
            self._worked(2 * planned_bytes)
        if converted.size_bytes != planned_bytes:
            raise _changed(segment.path)
        if resumption is not None:
            resumption.note(converted)
        self._state.add(converted)
        return converted

    def _copy_metadata(self) -> None:
        """Copy the topic id, unless the target is of another topic: a broker refuses a directory with a foreign id."""
        raw = reader(self._source.path)(names.PARTITION_METADATA)
        target = names.parse_partition_dir(self._target.name)
        if raw is not None and target is not None and target.topic == self._source.topic:
            self._staging.write_file(names.PARTITION_METADATA, raw)

    def _copy_cursors(self) -> None:
        """Copy the positions of cursors: offsets do not change."""
        for path in cursor_files(self._source.path):
            raw = reader(self._source.path)(path.name)
            if raw is not None:
                self._staging.write_file(path.name, raw)

    def _proof(self, segments: list[ConvertedSegment], made_from: str) -> Proof:
        plan = self._plan
        return Proof(
            source=str(plan.source),
            target=str(self._target),
            seglog=__version__,
            to=plan.to,
            repack_bytes=plan.profile.repack_bytes,
            codec=None if plan.profile.codec is None else plan.profile.codec.label,
            left_out=plan.losses.left_out(plan.profile),
            made_from=made_from,
            gaps=plan.gaps,
            segments=tuple(segment.proof for segment in segments),
        )

    def _worked(self, size_bytes: float) -> None:
        """Count work: each byte of the source counts once for its conversion and once for its proof."""
        self._done += size_bytes
        if self._progress is not None:
            total = 2 * self._plan.size_bytes
            self._progress(min(round(self._done), total), total)


def _changed(path: Path) -> InvalidArgumentError:
    return InvalidArgumentError("the source has changed since it was planned", file=path, hint="make a new plan")
