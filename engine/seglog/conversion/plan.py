"""Plans a conversion by only reading the source: `seglog.convert` without a target.

A plan reads every batch header and checks every checksum and the order of offsets, so a damaged source is refused
before anything is created. With a target, `run` carries it out (conversion.directory). Without one it is a dry run and
also forecasts the size.
"""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seglog._kernels.batch_survey import tally
from seglog.config import LogConfig, with_minute_indexes
from seglog.conversion.forecast import Forecast
from seglog.conversion.inputs import made_from
from seglog.conversion.losses import Losses, LossKind, LossSurvey
from seglog.conversion.proof import Proof
from seglog.conversion.segment import tables_in_order
from seglog.errors import InvalidArgumentError, UnsupportedCompressionTypeError
from seglog.format import names
from seglog.format.compression import Codec
from seglog.format.conversion_profile import TO_TAGGED, Profile, version_words
from seglog.format.dialect import KAFKA, TAGGED
from seglog.fs.files import FileSystem
from seglog.fs.refusals import refusals
from seglog.reading.gaps import GapFinder
from seglog.reading.partition import Partition
from seglog.segment.roll import RELATIVE_OFFSET_MAX
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction

Progress = Callable[[int, int], None]
"""Called with (bytes of work done, total bytes of work) now and then. An exception that it raises stops the work."""

# The files of a segment that are copied or rebuilt.
CARRIED_BELOW_V2 = (KAFKA.log, *KAFKA.own_indexes, TAGGED.log, *TAGGED.own_indexes)
CARRIED = (*CARRIED_BELOW_V2, names.TRANSACTION_INDEX_SUFFIX, names.SNAPSHOT_SUFFIX)
# .seglog.lock, .seglog.mark and others.
_OURS = ".seglog."


@dataclass(frozen=True, slots=True)
class FormatCount:
    """The batches of one format and codec in a segment. `records`: None if wrappers would have to be opened."""

    magic: int
    codec: str
    batches: int
    size_bytes: int
    records: int | None


@dataclass(frozen=True, slots=True)
class Tail:
    """Bytes after the last complete batch of the last segment: an unfinished write. They are not converted."""

    file: str
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """One source segment. `size_bytes`: of its complete batches only.

    `forecast_bytes`: the size of its result, None if not requested. `parts`: the least number of segments in the
    result.
    """

    file: str
    base_offset: int
    next_offset: int
    size_bytes: int
    formats: tuple[FormatCount, ...]
    forecast_bytes: int | None
    forecast_is_exact: bool
    parts: int

    @property
    def legacy_bytes(self) -> int:
        """The bytes in format v0 and v1."""
        return sum(f.size_bytes for f in self.formats if f.magic in (0, 1))


@dataclass(frozen=True, slots=True)
class Plan:
    """The conversion of the partition directory `source`. `target` is None for a dry run.

    `left_behind`: files in the source that are not copied; `warnings`: what to know before; `losses`: what format v0 or
    v1 cannot store. `target_end_offset`: the log end offset of the result, lower than the source's if the last records
    are not converted. `dropped`: transactions that are left out. `replace`: replace an older result of a conversion.
    `proof_every`: every Nth segment is proven a second time in plain Python; 0: none. `gaps`: (first, last) offsets
    that no segment of the source holds, although its topic is not compacted.
    """

    source: Path
    target: Path | None
    to: int
    profile: Profile
    config: LogConfig
    segments: tuple[SegmentPlan, ...]
    tail: Tail | None
    left_behind: tuple[str, ...]
    warnings: tuple[str, ...]
    losses: Losses
    target_end_offset: int
    replace: bool
    dropped: tuple[AbortedTransaction, ...] = field(repr=False, compare=False)
    fs: FileSystem = field(repr=False, compare=False)
    carry_out: "Callable[[Plan, Progress | None], Result]" = field(repr=False, compare=False)
    proof_every: int = 0
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes of complete batches in the source."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def forecast_bytes(self) -> int | None:
        """The size of all .log files of the result; None without a forecast."""
        sizes = [segment.forecast_bytes for segment in self.segments if segment.forecast_bytes is not None]
        return sum(sizes) if len(sizes) == len(self.segments) else None

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].next_offset

    @property
    def form(self) -> str:
        """The format and codec that were asked for, such as "v2" or "v2 with codec zstd"."""
        codec = self.profile.codec
        return version_words(self.to) + ("" if codec is None else f" with codec {codec.label}")

    @property
    def changes_nothing(self) -> bool:
        """Whether every batch already has the requested form, so that the result would be a copy."""
        profile = self.profile
        if profile.erased:
            return not self.losses.erased_records
        return not (profile.repack_bytes or profile.delete_horizon_ms is not None or self.tail or self.dropped) and all(
            f.magic == self.to and (profile.codec is None or f.codec == profile.codec.label)
            for segment in self.segments
            for f in segment.formats
        )

    @property
    def keeps_format(self) -> int | None:
        """The highest format version of the source, if each batch keeps its own; else None."""
        if not self.profile.erased:
            return None
        return max((f.magic for segment in self.segments for f in segment.formats), default=2)

    def made_from(self) -> str:
        """See conversion.inputs.made_from; as of now."""
        return made_from(self.source, self.profile, self.config)

    def run(self, progress: Progress | None = None) -> "Result":
        """Convert, prove and publish the target. See `seglog.convert`."""
        return self.carry_out(self, progress)


@dataclass(frozen=True, slots=True)
class TargetSegment:
    """A segment of the target: its .log, its source segment, its size."""

    file: str
    source: str
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """A finished conversion. `notes`: what of the source was truncated, recomputed or left behind.

    `proven_again`: the number of source segments proven a second time, in plain Python. `resumed`: of those that a run
    which was stopped had converted.
    """

    plan: Plan
    target: Path
    segments: tuple[TargetSegment, ...]
    proof: Proof
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    proven_again: int = 0
    resumed: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of all .log files of the target."""
        return sum(segment.size_bytes for segment in self.segments)


class OneProgress:
    """Calls `progress` for a plan and its run as for one job. A plan reads each byte once, a run works on it twice."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._planned = 0

    def of_plan(self, done: int, total: int) -> None:
        """Tell that the plan has read `done` bytes."""
        self._planned = total
        if self._progress is not None:
            self._progress(done, 3 * total)

    def of_run(self, done: int, total: int) -> None:
        """Tell that the run has done `done` bytes of work."""
        if self._progress is not None:
            self._progress(self._planned + done, self._planned + total)


def make_plan(
    source: Partition,
    target: Path | None,
    to: int,
    profile: Profile,
    fs: FileSystem,
    carry_out: Callable[[Plan, Progress | None], Result],
    progress: Progress | None,
    allow_lossy: Sequence[LossKind] = (),
    replace: bool = False,
    proof_every: int = 0,
) -> Plan:
    """Read the source and plan what `carry_out` will do. Raises as `seglog.convert`."""
    names_found = _names_in(source)
    config = with_minute_indexes(source.config, any(name.endswith(names.MINUTE_INDEX_SUFFIX) for name in names_found))
    survey = LossSurvey.of_partition(source, profile)
    forecast = Forecast(profile, source.config, source._decompress) if target is None else None
    total = sum(segment.size_bytes for segment in source.segments)
    done = 0

    def report(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if progress is not None:
            progress(done, total)

    segments = tuple(
        _plan_segment(segment, end, source.config, profile, survey, forecast, report)
        for segment, end in zip(source.segments, end_offsets(source), strict=True)
    )
    losses = survey.losses()
    if profile.erased:
        _refuse_erasing(source, segments[-1].next_offset, survey.end_offset)
    if target is not None:
        losses.check(profile, source.path, allow_lossy=allow_lossy)
    gaps = tuple(GapFinder(source.path, config, source._current()).gaps(source.log_start_offset))
    last = source.segments[-1]
    # The last segment keeps its base offset, even if nothing is left of it.
    end_offset = max(last.base_offset, survey.end_offset)
    tail_bytes = last.size_bytes - segments[-1].size_bytes
    return Plan(
        source=source.path,
        target=target,
        to=to,
        profile=profile,
        config=config,
        segments=segments,
        tail=Tail(last.path.name, segments[-1].size_bytes, tail_bytes) if tail_bytes else None,
        left_behind=_left_behind(names_found, segments, to, config, keeps_epochs=to == 2 or bool(profile.erased)),
        warnings=(
            *_warnings(source, target, profile, forecast),
            *_end_offset_warning(profile, segments[-1].next_offset, end_offset),
            *(f"{gap.reason} ({Path(gap.file).name}); the result lacks them, too" for gap in gaps),
            *_growth_warning(segments, profile),
        ),
        losses=losses,
        target_end_offset=end_offset,
        replace=replace,
        dropped=survey.dropped,
        fs=fs,
        carry_out=carry_out,
        proof_every=proof_every,
        gaps=tuple((gap.first_offset, gap.last_offset) for gap in gaps),
    )


def _plan_segment(
    segment: Segment,
    end_offset: int,
    config: LogConfig,
    profile: Profile,
    survey: LossSurvey,
    forecast: Forecast | None,
    report: Callable[[int], None],
) -> SegmentPlan:
    formats: dict[tuple[int, int], list[int]] = {}
    next_offset = segment.base_offset
    if forecast is not None:
        forecast.begin()
    for table in tables_in_order(segment, end_offset):
        for what, counts in tally(table).items():
            refuse_zstd(segment, what, profile)
            before = formats.get(what, [0, 0, 0])
            formats[what] = [a + b for a, b in zip(before, counts, strict=True)]
        next_offset = table[-1].last_offset + 1
        survey.add(table)
        if forecast is not None:
            forecast.add(survey.kept(table))
        report(table.end - table[0].position)
    size = None if forecast is None else forecast.end()
    segment._let_go()    # do not map all of a log with ten thousand segments
    return SegmentPlan(
        file=segment.path.name,
        base_offset=segment.base_offset,
        next_offset=next_offset,
        size_bytes=sum(size_bytes for _, size_bytes, _ in formats.values()),
        formats=tuple(
            FormatCount(magic, Codec.of(codec).label, batches, size_bytes, None if magic < 2 and codec else records)
            for (magic, codec), (batches, size_bytes, records) in sorted(formats.items())
        ),
        forecast_bytes=None if size is None else size.size_bytes,
        forecast_is_exact=size is not None and size.is_exact,
        parts=max(
            1,
            -(-(next_offset - segment.base_offset) // (RELATIVE_OFFSET_MAX + 1)),
            0 if size is None else -(-size.size_bytes // config.segment_bytes),
        ),
    )


def _refuse_erasing(source: Partition, before: int, after: int) -> None:
    """Raise InvalidArgumentError if the log's end would be lost, so that its last offsets would be assigned again."""
    if after < before:
        raise InvalidArgumentError(
            f"the last records of the log, from offset {after} on, have these keys, and only format v2 has batches"
            " without records: their offsets would be assigned again", file=source.segments[-1].path,
            hint="append a record of another key first, or convert the partition to v2",
        )


def refuse_zstd(segment: Segment, what: tuple[int, int], profile: Profile) -> None:
    """Raise an error before anything is created: formats below v2 have no zstd; Kafka refuses this, too."""
    if profile.to in (0, 1) and what in ((2, Codec.ZSTD), (TO_TAGGED, Codec.ZSTD)) and profile.codec is None:
        raise UnsupportedCompressionTypeError(
            f"the source has zstd batches, which format v{profile.to} does not allow (KIP-110)", file=segment.path,
            hint="choose gzip, snappy, lz4 or none with --codec",
        )


def end_offsets(source: Partition) -> list[int]:
    """Return for each segment the offset that its batches must stay below: the base of the next one."""
    return [*(segment.base_offset for segment in source.segments[1:]), names.MAX_OFFSET]


def _names_in(source: Partition) -> list[str]:
    with refusals("list", source.path):
        return sorted(entry.name for entry in source.path.iterdir())


def _left_behind(
    found: list[str], segments: tuple[SegmentPlan, ...], to: int, config: LogConfig, *, keeps_epochs: bool
) -> tuple[str, ...]:
    """Return the names that are not copied: files that belong to no segment, are not Kafka's, or are useless here.

    Our own locks and marks, which only have a meaning where they are, are not mentioned.
    """
    suffixes = CARRIED if to == 2 else CARRIED_BELOW_V2
    if config.time_index_minute_enabled:
        suffixes = (*suffixes, names.MINUTE_INDEX_SUFFIX)
    carried = {
        names.PARTITION_METADATA,
        *(
            names.file_name(s.base_offset, suffix, state)
            for s in segments for suffix in suffixes for state in ("", names.SWAP_SUFFIX)
        ),
    }
    if keeps_epochs:
        carried.add(names.LEADER_EPOCH_CHECKPOINT)
    if to == 2:
        carried.add(names.file_name(segments[-1].next_offset, names.SNAPSHOT_SUFFIX))
    return tuple(name for name in found if name not in carried and not name.startswith(_OURS))


def _warnings(
    source: Partition, target: Path | None, profile: Profile, forecast: Forecast | None
) -> Iterator[str]:
    if profile.repack_bytes:
        yield (
            "repacked batches end at other offsets than those of the other replicas:"
            " convert one replica and replace all of them together"
        )
    first = source.segments[0].base_offset
    if source.log_start_offset > first:
        yield (
            f"records below offset {source.log_start_offset} were deleted, which only the log dir's log-start-offset-"
            f"checkpoint says: without that line they reappear, from offset {first} on"
        )
    other = None if target is None else names.parse_partition_dir(target.name)
    if other and other.topic != source.topic and (source.path / names.PARTITION_METADATA).exists():
        yield f"the target is of another topic than {source.topic}: partition.metadata is not copied"
    if forecast is not None and forecast.larger_batches:
        yield larger_batches_warning(
            forecast.larger_batches, source.config.max_message_bytes, at_least=not forecast.saw_all
        )


def _growth_warning(segments: Sequence[SegmentPlan], profile: Profile) -> Iterator[str]:
    sizes = [segment.forecast_bytes for segment in segments]
    if all(size is not None for size in sizes):
        yield from growth_warning(profile, sum(one.size_bytes for one in segments), sum(filter(None, sizes)), "will be")


def growth_warning(profile: Profile, before_bytes: int, after_bytes: int, verb: str = "is") -> Iterator[str]:
    """The warning about a codec that was chosen, if the result is larger than the source."""
    if profile.codec is not None and after_bytes > before_bytes:
        yield (
            f"with codec {profile.codec.label} the result {verb} larger than the source: {after_bytes} bytes, not"
            f" {before_bytes}"
        )


def _end_offset_warning(profile: Profile, before: int, after: int) -> Iterator[str]:
    if after < before:
        yield (
            f"the log end offset falls from {before} to {after}: the last records have no place in"
            f" {version_words(profile.to)}."
            " Offsets in between will be assigned again; a consumer that committed one is out of range"
        )


def larger_batches_warning(batches: int, max_message_bytes: int, *, at_least: bool = False) -> str:
    count = f"{'at least ' if at_least else ''}{batches} batch{'es' if batches > 1 else ''}"
    return (
        f"{count} of the result {'are' if batches > 1 else 'is'} larger than max.message.bytes ({max_message_bytes}):"
        " brokers serve them, but refuse them from a mirror that produces them again"
    )
