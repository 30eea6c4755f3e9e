"""`seglog dump`: print the contents of files, record by record, batch by batch, entry by entry.

Reads batch by batch and keeps none, so memory use does not grow with the log.
"""
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.record_text import TextRows
from seglog.errors import CorruptRecordError, InvalidArgumentError
from seglog.format import names
from seglog.frames.typed.kinds import KINDS
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import Isolation
from seglog.reading.damage import OnCorrupt
from seglog.reading.partition import Partition
from seglog.reading.unproven import unproven_batches, unproven_records
from seglog.segment.batches import header_offset_of
from seglog.segment.positions import LostRange
from seglog.state.quarantine import SUFFIX as QUARANTINED_SUFFIX

from . import records as lines
from . import report, terminal
from .cli import Command
from .decoding import Asked, Decode, decode_in
from .dump_tables import FORMATS, opened
from .dump_tables import write as write_table
from .dump_template import RAW, Template, is_template
from .each_place import EachPlace
from .lost import is_partial, note_lost
from .options import (
    DecodeType,
    NumberType,
    SizeType,
    TimeType,
    config_option,
    isolation_option,
    json_option,
    limit_option,
    on_undecodable_option,
    readable_paths_argument,
    schemas_option,
    store_option,
    topic_option,
)
from .record_filter import RecordFilter
from .selection import Item, Selection, What, refuse_outside, select
from .targets import Place, name_of
from .typed_dump import TypedDump

# The parameters below that --format can use, for a table and for a template; it refuses all others.
_OF_BOTH = {
    "paths", "format_", "start", "stop", "since", "until", "decode", "schemas", "on_undecodable", "output",
    "on_corrupt", "store_options", "topics", "isolation",
}
_OF_TABLES = _OF_BOTH | {"columns"}
_SELECTING = {"start", "stop", "since", "until", "keys", "pattern", "headers", "max_bytes", "limit", "tail", "follows"}
_OF_TEMPLATES = _OF_BOTH | _SELECTING | {"settings"}


class FormatType(click.ParamType):   # type: ignore[type-arg]    # generic only since click 8.5
    """A name of FORMATS, `raw`, or a template."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in FORMATS and not is_template(value):
            self.fail(f"{value!r} is neither one of {', '.join(FORMATS)}, {RAW} nor a template such as '%o %k %s\\n'",
                      param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in (*FORMATS, RAW) if name.startswith(incomplete)]


@click.command(cls=Command, only_reads=True)
@readable_paths_argument
@click.option("--batches", "what", flag_value="batches", help="Print batch headers instead of records.")
@click.option("--control", "what", flag_value="control",
              help="Print only control records (transaction markers), decoded.")
@click.option("--from-offset", "start", metavar="OFFSET", type=NumberType(0),
              help="Start at this offset: with the record that has it.")
@click.option("--to-offset", "stop", metavar="OFFSET", type=NumberType(0), help="Stop before this offset.")
@click.option("--since", metavar="TIME", type=TimeType(),
              help="From this time on: only such timestamps. ISO 8601, milliseconds, or -2h.")
@click.option("--until", metavar="TIME", type=TimeType(), help="Up to this time: only earlier timestamps.")
@click.option("--key", "keys", metavar="KEY", multiple=True, help="A key: only its records. May be repeated.")
@click.option("--grep", "pattern", metavar="REGEX", help="Only records whose value matches this, as UTF-8 text.")
@click.option(
    "--header", "headers", metavar="NAME[=VALUE]", multiple=True, help="Only records with this header; if repeated, "
    "with all of them.",
)
@click.option("--max-bytes", type=SizeType(), help="Stop after batches of this many bytes, in each partition.")
@limit_option("records (with --batches: batches), in each partition.")
@click.option("--tail", type=NumberType(0), metavar="N", help="Only the last N records (with --batches: batches).")
@click.option(
    "--follow", "follows", is_flag=True,
    help="Keep running as the log grows, until ^C. Without --tail or a place to start, show only new records. One "
    "partition.",
)
@click.option("--max-value-bytes", type=SizeType(), help="For longer values, print only size and SHA-256.")
@click.option(
    "--format", "format_", type=FormatType(), metavar="FORMAT",
    help="parquet, arrow, csv or jsonl: write all PATHs as one table, with the columns of Spark's Kafka source, and "
    "with the records of aborted and unfinished transactions. raw: write the bytes of the values. Or a template with "
    "kcat's directives, such as '%o %k %s\\n': %o offset, %k key, %s value, %h headers, %T timestamp, %t topic, %p "
    "partition, %K and %S the lengths, %R the value's as 4 bytes.",
)
@click.option("--columns", metavar="NAMES", help="Only these columns, separated by commas. For a table.")
@click.option(
    "--decode", type=DecodeType(), default="auto", metavar="KIND",
    help="Encoding of keys and values: utf8, json, base64, kafka or raw; with json, values are JSON and keys are text. "
    "auto: what the records of __consumer_offsets, __transaction_state, __cluster_metadata and other internal topics "
    "say, as JSON; else raw: bytes in files and pipes, readable text on a terminal, base64 in JSON. kafka: refuse "
    "other topics. Also avro or protobuf, by a schema, and one for each: key=utf8,value=avro.",
)
@schemas_option
@on_undecodable_option
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write: a new one, instead of stdout. With --format.",
)
@topic_option
@isolation_option("read_uncommitted", "They are marked.")
@click.option(
    "--on-corrupt", type=click.Choice(["raise", "skip", "show"]), default="raise", show_default=True,
    help="At a damaged batch: stop; or skip it, report what is lost and exit with status 7; or also show what can be "
    "decoded of it, marked as unproven.",
)
@config_option
@store_option
@json_option
def command(
    paths: Sequence[Path | str],
    what: What,
    start: int | None,
    stop: int | None,
    since: int | None,
    until: int | None,
    keys: Sequence[str],
    pattern: str | None,
    headers: Sequence[str],
    max_bytes: int | None,
    limit: int | None,
    tail: int | None,
    follows: bool,
    max_value_bytes: int | None,
    format_: str | None,
    columns: str | None,
    decode: Asked | dict[str, str],
    schemas: str | None,
    on_undecodable: Literal["fail", "null", "raw"],
    output: Path | None,
    topics: Sequence[str],
    isolation: Isolation,
    on_corrupt: Literal["raise", "skip", "show"],
    settings: Sequence[tuple[str, str]],
    store_options: Sequence[tuple[str, str]],
    as_json: bool,
) -> int:
    """Print what PATH holds.

    PATH is a partition directory, a .log file or a log dir, or one of the small files: .index, .timeindex,
    .txnindex, .snapshot, leader-epoch-checkpoint, partition.metadata, a checkpoint of the log dir, a snapshot of
    __cluster_metadata (.checkpoint), or damaged bytes that a recovery kept (quarantine/*.damaged).
    Records start at the log start offset, unless --from-offset is lower. If you give several conditions, all of them
    must hold. --tail N shows the last N of the matching records, --limit N the first N; --follow shows what any
    process appends, until ^C. If a partition of a log dir cannot be read, it is reported and the others are dumped;
    the status is then 7.
    """
    if on_corrupt == "show" and format_ is not None:
        raise click.UsageError("--on-corrupt show is for people to look at: it cannot be combined with --format")
    if format_ in FORMATS:
        if not _given() <= _OF_TABLES:
            raise click.UsageError(
                "with a table, --format can be combined only with offsets, times, --topic, --columns, --decode, "
                "--schemas, --on-undecodable, --isolation, --output and --on-corrupt"
            )
        from seglog.frames.scan import scan as topic_scan  # takes a fifth of the start-up time of a dump

        chosen = EachPlace(paths, as_json=False, store_options=dict(store_options), topics=topics) if topics else None
        scan = topic_scan(
            paths if chosen is None else [place.path for place in chosen],
            from_offset=start, to_offset=stop, since=since, until=until, on_corrupt=cast(OnCorrupt, on_corrupt),
            isolation=isolation,
            decode=None if decode in ("auto", "base64", "raw") else cast(Any, decode), schemas=schemas,
            on_undecodable=on_undecodable,
            columns=None if columns is None else columns.split(","), include_headers=columns is None,
            store_options=dict(store_options),
        )
        write_table(scan, format_, output)
        note_lost(scan.lost)
        _note_undecodable(scan.undecodable)
        return report.PARTIAL if is_partial(scan.lost) or any(scan.undecodable.values()) else 0
    if not _is_typed(decode) and schemas is not None:
        raise click.UsageError("--schemas needs --decode with avro or protobuf")
    if on_undecodable != "fail" and not isinstance(decode, dict):
        raise click.UsageError("--on-undecodable needs --decode with a kind for each column, such as value=utf8")
    if columns is not None or (output and format_ is None):
        raise click.UsageError("--output needs --format, and --columns needs --format with a table")
    if format_ is not None and not _given() <= _OF_TEMPLATES:
        raise click.UsageError("a template cannot be combined with --batches, --control, --json or --max-value-bytes")
    matching = RecordFilter.of(keys, pattern, headers)
    if what and matching is not None:
        raise click.UsageError(
            "--key, --grep and --header select records: they cannot be combined with --batches or --control"
        )
    selection = Selection(
        start, stop, since, until, max_bytes, limit, tail, follows, matching, isolation == "read_committed",
        on_corrupt == "show",
    )
    if follows:
        _refuse_to_follow(paths, on_corrupt, isolation)
    lost: list[LostRange] = []
    damaged = {path for path in paths if isinstance(path, Path) and _is_quarantined(path)}
    small = {path for path in paths if isinstance(path, Path) and _is_small_file(path)} | damaged
    if small and small.issuperset(paths):
        given = _given()
        for one in click.get_current_context().command.params:
            if one.name in given and one.name in _SELECTING:
                raise click.UsageError(f"{one.opts[0]} selects records of a log, and {min(small)} is shown whole")
    if format_ is not None and small:
        raise click.UsageError(f"--format shows records, and {min(small)} contains none")
    places = EachPlace(
        (path for path in paths if path not in small), as_json=as_json, store_options=dict(store_options),
        topics=topics,
    )
    is_one_of_many = len(places) > 1
    # Creating the template checks its directives before the first partition is opened.
    template = None if format_ is None else Template(format_, output)
    typed = TypedDump(decode, schemas, on_undecodable) if isinstance(decode, dict) else None
    with ExitStack() as stack:
        out = None if template is None else stack.enter_context(opened(output))
        for path in paths:
            if isinstance(path, Path) and path in damaged:
                _dump_quarantined(path, what, max_value_bytes, cast(Asked, decode), as_json=as_json)
                continue
            if isinstance(path, Path) and path in small:
                from . import small_files

                small_files.dump(path, as_json=as_json)
                continue
            for place in places.under(path):
                with places.reading(place), place.at_hand(), _opened(place, follows, dict(settings)) as partition:
                    refuse_outside(partition, selection, place)
                    if as_json and place.in_log_dir:
                        report.print_json("partition", partition=place.name, path=place.path)
                    asked = "raw" if format_ == RAW and decode == "auto" else cast(Asked, decode)
                    text = decode_in(asked, place.directory) if typed is None else typed.of(place)
                    shown: Renderer
                    if template is not None:
                        shown = template.to(out, place, text)
                    else:
                        renderer = JsonLines if as_json else TextTable
                        shown = renderer(
                            name_of(place.directory), _end_of(partition), what, max_value_bytes, text, is_one_of_many
                        )
                    on_lost = None if on_corrupt == "raise" else _lost_sink(place, lost, as_json)
                    try:
                        for item in select(partition, selection, what, on_lost):
                            shown.show(item)
                            if follows:
                                (out or sys.stdout).flush()
                    except InvalidArgumentError as e:       # of a record, which does not know its partition
                        e.file = e.file or str(place.path)
                        raise
    note_lost(lost)
    undecodable = {} if typed is None else typed.undecodable
    _note_undecodable(undecodable)
    return report.PARTIAL if lost or any(undecodable.values()) else places.status(found=False)


def _is_small_file(path: Path) -> bool:
    if path.is_dir():
        return False
    from . import small_files  # its readers take long to import, and most paths are directories

    return small_files.is_one(path)


def _is_typed(decode: Asked | dict[str, str]) -> bool:
    return isinstance(decode, dict) and not set(KINDS).isdisjoint(decode.values())


def _given() -> set[str]:
    """Return the names of the parameters that the user gave."""
    context = click.get_current_context()
    return {name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT}


def _note_undecodable(counts: Mapping[str, int]) -> None:
    for column, count in counts.items():
        if count:
            report.note(f"{report.count_of(count, column)} could not be decoded")


def _refuse_to_follow(paths: Sequence[Path | str], on_corrupt: str, isolation: Isolation) -> None:
    if len(paths) != 1 or not os.path.isdir(paths[0]) or not names.has_segments(Path(paths[0])):
        raise click.UsageError("--follow takes one partition directory")
    if on_corrupt != "raise":
        raise click.UsageError(f"--follow cannot be combined with --on-corrupt {on_corrupt}")
    if isolation == "read_committed":
        raise click.UsageError("--follow shows records as they come: leave out --isolation read_committed")


def _opened(place: Place, follows: bool, settings: dict[str, object]) -> Partition:
    if not follows:
        return place.open(settings)
    from seglog.reading.follower import Follower  # only they need its watchers of files

    return Follower(place.directory, config=settings)


def _lost_sink(place: Place, lost: list[LostRange], as_json: bool) -> Callable[[LostRange], None]:
    def sink(gone: LostRange) -> None:
        lost.append(gone)
        file = place.named(gone.file)
        if as_json:
            report.print_json(
                "lost_range", file=file, position=gone.position, size=gone.size_bytes,
                first_offset=gone.first_offset, last_offset=gone.last_offset, reason=gone.reason,
            )
        else:
            offsets = f"offsets {gone.first_offset}{'' if gone.last_offset < 0 else f'…{gone.last_offset}'}"
            if 0 <= gone.last_offset < gone.first_offset:
                offsets = "no offset is missing"
            report.note(
                f"skipped {report.size(gone.size_bytes)} at {file}, byte {gone.position} "
                f"({offsets}): {gone.reason}"
            )

    return sink


# --- quarantine --------------------------------------------------------------------------


def _is_quarantined(path: Path) -> bool:
    return path.name.endswith(QUARANTINED_SUFFIX) and path.is_file()


class _Damaged(NamedTuple):
    """Where the bytes of a quarantined range are now."""

    path: Path


def _dump_quarantined(path: Path, what: What, max_value_bytes: int | None, asked: Asked, *, as_json: bool) -> None:
    """Show what can be decoded of damaged bytes that a recovery kept."""
    directory = Path(os.path.realpath(path)).parent.parent
    decode = decode_in(asked, directory)
    renderer = JsonLines if as_json else TextTable
    shown = renderer(directory.name, _LARGEST, what, max_value_bytes, decode, True)
    count = 0
    for batch in unproven_batches(path):
        base = header_offset_of(batch)
        records = None if what == "batches" else enumerate(unproven_records(batch))
        if what != "control" or batch.is_control:
            count += 1
            shown.show(Item(_Damaged(path), batch, base, records, is_unproven=True))
    if not count:
        report.note(f"{path.name}: nothing in it can be decoded")


# --- printing ----------------------------------------------------------------------------


class Renderer(Protocol):
    """Shows the items of a partition."""

    def show(self, item: Item) -> None: ...


class JsonLines:
    """Writes a line for each record or batch."""

    def __init__(
        self, directory: str, end_offset: int, what: What, max_value_bytes: int | None, decode: Decode | None,
        is_one_of_many: bool,
    ) -> None:
        self._directory = directory if is_one_of_many else ""
        self._what = what
        self._decode = decode
        self._max_value_bytes = max_value_bytes

    def show(self, item: Item) -> None:
        name, batch = item.segment.path.name, item.batch
        more: dict[str, object] = {"partition": self._directory} if self._directory else {}
        if item.transaction:
            more["transaction"] = item.transaction
        if item.is_unproven:
            more["unproven"] = True
        if item.records is None:
            sys.stdout.write(report.plain_json(lines.batch_fields(name, batch) | more) + "\n")
        elif self._what == "control":
            for _, record in item.records:
                report.print_json("control_record", segment=name, **lines.control_fields(record, batch), **more)
        else:
            sys.stdout.writelines(lines.record_lines(
                name, batch, item.records, item.base_offset, self._max_value_bytes, self._decode,
                "," + report.plain_json(more)[1:-1] if more else "",
            ))


_LARGEST = 2**63 - 1
_BATCH_ROW = "{:>12} {:>10}  {:<2} {:<6} {:>12} {:>12} {:>6}  {:<15} {:<24} {:>5}  {}"
# For terminals that are narrower than that: without the timestamp type, the epoch, the producer and
# milliseconds, which --full shows.
_NARROW_ROW = "{:>7} {:>6} {:<2} {:<6} {:>9} {:>9} {:>4} {:<19}"
_WIDE = 120


class TextTable:
    """Writes a row for each record or batch, under the name of its segment; on terminals, cut to their width."""

    def __init__(
        self, directory: str, end_offset: int, what: What, max_value_bytes: int | None, decode: Decode | None,
        is_one_of_many: bool,
    ) -> None:
        self._directory = directory
        self._segment: Path | None = None
        self._what = what
        self._max_value_bytes = max_value_bytes
        self._decode = decode
        self._columns = terminal.width()
        self._is_narrow = self._columns is not None and self._columns < _WIDE
        self._rows = TextRows(
            self._shown, lines.headers_shown,
            offset_width=len(str(end_offset)) if what is None and end_offset < _LARGEST else 0,
            value_bytes_max=_LARGEST if max_value_bytes is None else max_value_bytes, is_decoded=decode is not None,
        )

    def show(self, item: Item) -> None:
        if item.segment.path != self._segment:
            self._segment = item.segment.path
            self._write_heading(item.segment.path)
        self._mark = _mark_of(item)
        if item.records is None:
            self._write(_batch_row(item.batch, self._is_narrow))
        elif self._what:
            for _, record in item.records:
                self._write(self._control(record, item.batch))
        else:
            self._batch = item.batch
            write = sys.stdout.write if self._columns is None and not self._mark else self._write_each
            self._rows.write(write, item.records, is_control=item.batch.is_control)

    def _write_heading(self, path: Path) -> None:
        """Write the segment's name, and for batches the column names below it."""
        self._mark = ""
        sys.stdout.write(report.paint(f"{self._directory}/{path.name}", "bold") + "\n")
        if self._what == "batches":
            self._write(_batch_heading(self._is_narrow))

    def _write(self, line: str) -> None:
        """Write a line with its mark, cut to the terminal before the mark."""
        if self._columns is not None:
            line = terminal.cut(line, self._columns - len(self._mark))
        sys.stdout.write(f"{line}{self._mark}\n")

    def _write_each(self, rows: str) -> None:
        for row in rows.split("\n")[:-1]:
            self._write(row)

    def _control(self, record: Record, batch: RecordBatch) -> str:
        return f"{record.offset}  {report.moment(record.timestamp)}  {lines.control_text(record, batch)}"

    def _shown(self, record: Record, is_control: bool) -> tuple[str, str]:
        """Return the texts of a record's key and value."""
        if is_control:
            return "", lines.control_text(record, self._batch)
        return lines.decoded_shown(record, record.key, self._decode, is_value=False), self._value(record)

    def _value(self, record: Record) -> str:
        value, most = record.value, self._max_value_bytes
        if value is not None and most is not None and len(value) > most:
            return lines.value_shown(value, most)
        return lines.decoded_shown(record, value, self._decode, is_value=True)


def _mark_of(item: Item) -> str:
    """What is said behind a row."""
    if item.is_unproven:
        return "  [unproven]"
    return f"  [{item.transaction}]" if item.transaction in ("aborted", "open") else ""


def _batch_heading(is_narrow: bool) -> str:
    if is_narrow:
        return _NARROW_ROW.format("at", "bytes", "v", "codec", "base", "last", "n", "max timestamp").rstrip()
    return _BATCH_ROW.format(
        "position", "bytes", "v", "codec", "base offset", "last offset", "count", "timestamp type", "max timestamp",
        "epoch", "",
    ).rstrip()


def _batch_row(batch: RecordBatch, is_narrow: bool) -> str:
    cells = (
        batch.position, batch.size_bytes, lines.format_name(batch.magic), lines.codec_name(batch.codec),
        batch.base_offset, batch.last_offset, "?" if batch.count < 0 else batch.count,
    )
    time = report.moment(batch.max_timestamp)
    if is_narrow:
        return _NARROW_ROW.format(*cells, time[:19]).rstrip()
    return _BATCH_ROW.format(
        *cells, lines.TIMESTAMP_TYPES[batch.timestamp_type], time,
        batch.leader_epoch if batch.leader_epoch >= 0 else "-", lines.flags_of(batch),
    ).rstrip()


def _end_of(partition: Partition) -> int:
    """Return about where the offsets end: damage does not matter for the width of a column."""
    try:
        return partition.log_end_offset
    except CorruptRecordError:
        return partition.segments[-1].base_offset
