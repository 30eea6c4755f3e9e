"""`seglog export`: write topics into a Parquet, Delta or Iceberg table; a later run adds what is new."""
import glob
import os
from collections.abc import Sequence
from typing import Any, Literal, cast

import click

from seglog.reading.arguments import Isolation
from seglog.reading.damage import OnCorrupt
from seglog.stores.open_store import scheme_of

from . import report
from .cli import Command
from .each_place import EachPlace
from .lost import is_partial, note_lost
from .options import (
    DecodeType,
    SizeType,
    isolation_option,
    json_option,
    on_corrupt_option,
    on_undecodable_option,
    schemas_option,
    store_option,
    topic_option,
)

_BYTES = ("auto", "raw")


@click.command(cls=Command)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option("--into", "table", metavar="DIR", required=True, help="The directory of the table; made if it is new.")
@click.option("--format", "format_", type=click.Choice(["parquet", "delta", "iceberg"]), default="parquet",
              show_default=True, help="The kind of table.")
@click.option(
    "--partition-by", metavar="NAMES", help="Some of topic, partition, date and hour, separated by commas. By default "
    "topic,partition, or as the table is that exists.",
)
@click.option("--columns", metavar="NAMES", help="Only these columns, separated by commas; by default all.")
@click.option(
    "--decode", type=DecodeType(), default="raw", metavar="KIND",
    help="Encoding of keys and values: as text (utf8, json), as typed columns (avro, protobuf), or one for each: "
    "key=utf8,value=avro. raw: bytes. kafka: what the records of internal topics say, as JSON.",
)
@topic_option
@schemas_option
@on_undecodable_option
@isolation_option("read_committed")
@click.option("--file-bytes", type=SizeType(), help="How much is written at once: a file of Parquet, or a commit.")
@on_corrupt_option
@store_option
@json_option
def command(
    paths: Sequence[str],
    table: str,
    format_: Literal["parquet", "delta", "iceberg"],
    partition_by: str | None,
    columns: str | None,
    decode: str | dict[str, str],
    topics: Sequence[str],
    schemas: str | None,
    on_undecodable: Literal["fail", "null", "raw"],
    isolation: Isolation,
    file_bytes: int | None,
    on_corrupt: OnCorrupt,
    store_options: Sequence[tuple[str, str]],
    as_json: bool,
) -> int:
    """Write the records of the partition directories or log dirs at PATH into a table, and nothing twice: a later run
    adds what is new, and continues one that was killed.

    PATH may also be the URL of a store, or a partition in a backup: STORE#SNAPSHOT/orders-0.

    Status 7 if damage was skipped, or keys or values could not be decoded.
    """
    if decode == "base64":
        raise click.UsageError("a table holds bytes as they are: leave out --decode base64")
    for path in paths:
        _check(path)
    if topics:
        paths = _of_topics(paths, topics, store_options)
    from seglog.frames.scan import scan, write_table  # takes a fifth of the start-up time

    rows = scan(
        paths, decode=None if decode in _BYTES else cast(Any, decode), schemas=schemas, on_undecodable=on_undecodable,
        isolation=isolation, on_corrupt=on_corrupt, columns=None if columns is None else columns.split(","),
        include_headers=columns is None, store_options=dict(store_options),
    )
    names = None if partition_by is None else [name for name in partition_by.split(",") if name]
    written = write_table(rows, table, format=format_, partition_by=names, file_bytes=file_bytes)
    for one in written:
        if as_json:
            report.print_json(
                "written", topic=one.topic, partition=one.partition, start_offset=one.start_offset,
                stop_offset=one.stop_offset, rows=one.rows, missing_offsets=one.missing_offsets,
            )
        else:
            lost = f"; {report.count_of(one.missing_offsets, 'offset')} missing" if one.missing_offsets else ""
            print(report.printable(
                f"{one.topic}-{one.partition}: offsets {one.start_offset} to {one.stop_offset - 1}, "
                f"{report.count_of(one.rows, 'row')}{lost}"
            ))
    if as_json:
        report.print_json("summary", rows=sum(one.rows for one in written), ranges=len(written))
    elif not written:
        print("nothing new")
    for column, count in rows.undecodable.items():
        if count:
            report.note(f"{report.count_of(count, column)} could not be decoded")
    note_lost(rows.lost)
    return report.PARTIAL if is_partial(rows.lost) or any(rows.undecodable.values()) else 0


def _of_topics(
    paths: Sequence[str], topics: Sequence[str], store_options: Sequence[tuple[str, str]]
) -> Sequence[str]:
    if any(scheme_of(path) or glob.has_magic(path) for path in paths):
        raise click.UsageError("--topic takes log dirs: a URL or a pattern names its partitions itself")
    places = EachPlace(paths, as_json=False, store_options=dict(store_options), topics=topics)
    return [os.fspath(place.path) for place in places]


def _check(path: str) -> None:
    """Say that a path is missing in the words of every command. What is in a store, or a pattern, `scan` looks up."""
    if not (scheme_of(path) or glob.has_magic(path) or os.path.lexists(path)):
        from seglog.backups.snapshot_store import path_in_backup

        if path_in_backup(path) is None:
            os.stat(path)
