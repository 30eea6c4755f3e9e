"""`seglog.scan(paths)`: a topic as a table. Nothing is read before rows are requested."""
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex

from seglog.errors import InvalidArgumentError
from seglog.frames.dataset import TopicDataset, dataset_of
from seglog.frames.delta import DeltaTable
from seglog.frames.iceberg import IcebergTable
from seglog.frames.lake import FILE_BYTES, ParquetTable, checked_compression, checked_directory
from seglog.frames.libraries import library
from seglog.frames.limits import Limits
from seglog.frames.options import (
    OFFSET_MAX,
    TIME_MAX_MS,
    TIME_MIN_MS,
    Decode,
    ReadOptions,
    checked_columns,
    checked_decode,
)
from seglog.frames.part import KEPT
from seglog.frames.plan import Source
from seglog.frames.polars_source import frame
from seglog.frames.rows import RowScan
from seglog.frames.stored_schemas import schemas_at, schemas_near
from seglog.frames.table_parts import WrittenRange
from seglog.frames.typed.column_decoder import OnUndecodable
from seglog.frames.typed.decoding import Decoding, Schemas
from seglog.reading.arguments import Isolation, is_read_committed
from seglog.reading.damage import OnCorrupt, lost_sink
from seglog.reading.reader import LogReader
from seglog.reading.times import Time, to_time_bound_ms

TableFormat = Literal["parquet", "delta", "iceberg"]


class TopicScan(RowScan):
    """The result of `seglog.scan`: a description of rows. Each use reads the files as they are at that time.

    For every library that reads Arrow streams: `pyarrow.table(scan)`, `polars.DataFrame(scan)`, and `scan` as a table
    in DuckDB's SQL. Threads may share it; each use has its own readers. It can be pickled, unless it was given an open
    log.
    """

    def to_arrow(self) -> Any:
        """A pyarrow.Table of all rows. Raises what `batches` raises."""
        pyarrow = library("pyarrow")
        batches = [pyarrow.record_batch(rows) for rows in self.batches(KEPT)]
        return pyarrow.Table.from_batches(batches, pyarrow.schema(self))

    def to_pandas(self) -> Any:
        """A pandas.DataFrame of all rows; `topic` is categorical. Typed integers of which some are null are objects, as
        in structs: pandas would round them."""
        library("pandas")
        return self.to_arrow().to_pandas(integer_object_nulls=True)

    def to_polars(self) -> Any:
        """A polars.DataFrame of all rows; `topic` is text."""
        return frame(self)

    def to_numpy(self) -> dict[str, Any]:
        """{column: numpy array} of all rows: bytes, text, lists and structs as objects, None for null. Integers in
        structs and lists need pandas."""
        library("numpy")
        table = self.to_arrow()
        return {name: _array(table[name]) for name in self.columns}

    def dataset(self) -> TopicDataset:
        """A pyarrow dataset, into which DuckDB and others push columns and filters down."""
        return dataset_of(self)


def scan(
    paths: Source | Iterable[Source],
    *,
    since: "Time | None" = None,
    until: "Time | None" = None,
    from_offset: SupportsIndex | None = None,
    to_offset: SupportsIndex | None = None,
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    isolation: Isolation | None = None,
    on_corrupt: OnCorrupt = "raise",
    decode: Decode = None,
    schemas: Schemas = None,
    on_undecodable: OnUndecodable = "fail",
    binary_view: bool = False,
    threads: int | None = None,
    store_options: Mapping[str, str] | None = None,
) -> TopicScan:
    """Describe records of partitions as a table with the columns of Spark's Kafka source; nothing is read yet.

    paths: partition directories ("data/orders-0"), patterns ("data/orders-*"), log dirs (all partitions in them), or
    open logs. The table has the records with since <= timestamp < until (as for `Log.read`) and from_offset <= offset <
    to_offset: of each partition from its log start offset to its end, or to its published end while it is written.
    columns: of key, value, topic, partition, offset, timestamp, timestampType, headers; headers only if they are named
    or with `include_headers`. Other columns are not decoded. isolation: by default "read_uncommitted", as Kafka's
    consumers; "read_committed" in `write_table`. decode: keys and values as text ("utf8" or "json") or as typed columns
    ("avro", "protobuf", or a `Typed`) instead of bytes, or a dict of these: {"value": "avro", "key": "utf8"}; or
    "kafka": what the records of __consumer_offsets, __cluster_metadata and other internal topics say, as JSON, and
    bytes that do not decode as a JSON string in base64. schemas: where those of typed columns are: a registry's URL or
    a `SchemaRegistry`, a folder, the directory of the topic _schemas, also in a store or a backup; by default
    _schemas-0 beside the topic.
    on_undecodable: a value that is not of its schema raises UndecodableRecordError ("fail"), is null ("null"), or
    stands as bytes in the field _undecodable ("raw"); text that is not UTF-8 is null with "null". binary_view: bytes
    and text as Arrow's views. threads: how many decode, with the one that takes the rows; by default one for each
    processor, up to 4. A path may be a URL of a store (s3://, gs://, hdfs:// and others that `open_store` knows): then
    only the bytes that indexes lead to are fetched.
    store_options: credentials, endpoint and so on. Or a path in a backup: "backups#latest/orders-0".

    Raises InvalidArgumentError. Errors of the files are raised when rows are requested.
    """
    if isinstance(paths, str | os.PathLike | LogReader):
        paths = (paths,)
    elif not isinstance(paths, Iterable):
        raise InvalidArgumentError(f"expected a path or an open log, not {paths!r}")
    sources = tuple(paths)
    if not sources:
        raise InvalidArgumentError("scan() needs at least one path")
    for source in sources:
        if not isinstance(source, str | os.PathLike | LogReader):
            raise InvalidArgumentError(f"expected a path or an open log, not {source!r}")
    is_read_committed(isolation or "read_uncommitted")
    lost_sink(on_corrupt, None)
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise InvalidArgumentError(f"threads must be at least 1, not {threads!r}")
    texts, typed = checked_decode(decode)
    decoding = Decoding(typed, schemas_at(schemas, store_options or {}), schemas_near, on_undecodable)
    if schemas is not None and not typed:
        raise InvalidArgumentError("schemas needs decode", hint='such as decode={"value": "avro"}')
    options = ReadOptions(
        columns=checked_columns(columns, include_headers),
        since_ms=TIME_MIN_MS if since is None else to_time_bound_ms(since),
        until_ms=TIME_MAX_MS if until is None else to_time_bound_ms(until),
        on_corrupt=on_corrupt, key_text=texts.get("key"), value_text=texts.get("value"),
        nulls_text=on_undecodable == "null", is_internal=decode == "kafka", binary_view=bool(binary_view),
    )
    limits = Limits(
        from_offset=0 if from_offset is None else _offset(from_offset),
        to_offset=OFFSET_MAX if to_offset is None else _offset(to_offset),
        isolation=isolation or "read_uncommitted", is_isolation_chosen=isolation is not None,
    )
    return TopicScan(sources, options, limits, threads, store_options, decoding if typed else None)


def write_table(
    topic: Source | Iterable[Source] | TopicScan,
    dst: Any,
    *,
    format: TableFormat = "parquet",
    partition_by: Sequence[str] | None = None,
    file_bytes: int | None = None,
    compression: str | None = "zstd",
    **options: Any,
) -> list[WrittenRange]:
    """Write records into a table for every lake engine; a later run adds new records, and nothing twice.

    topic, options: as for `seglog.scan`; or its TopicScan. `offset` and `timestamp` are always written.
    dst: a directory; for "iceberg" also a table of a catalog, a pyiceberg Table. format: "parquet", files in a
    directory; "delta", a Delta table, which needs `deltalake`; "iceberg", an Iceberg table, which needs `pyiceberg`.
    partition_by: some of topic, partition, date and hour (UTC); by default topic and partition, or as the table is that
    exists. Parquet has a directory for each, named as in Hive, and its files omit these columns; Delta has columns date
    and hour; Iceberg has days and hours of `timestamp`.
    isolation: "read_committed", unless the options or the TopicScan name another one. So no record of an aborted or
    unfinished transaction gets into the table; once a transaction is decided, the next run adds what was committed.
    file_bytes: the approximate size of what is written at once, uncompressed: a Parquet file (by default 32 MiB), or a
    commit of Delta (48 MiB) or Iceberg (24 MiB). The memory that a run takes grows with it. If you run it again, it
    adds the topic's new records, judged by the offsets in the footers of the files, or in the commits of the table, and
    completes a run that was killed. One run at a time.

    Returns the ranges that this run wrote. Raises InvalidArgumentError, also if a log ends before the table does, or if
    the table holds a column with another type; LogLockedError if another run uses the table, StorageError,
    MissingLibraryError without pyarrow, deltalake or pyiceberg, and what `TopicScan.batches` raises.
    """
    rows = topic if isinstance(topic, TopicScan) else scan(topic, **options)
    if isinstance(topic, TopicScan) and options:
        raise InvalidArgumentError(f"pass these options to scan() instead: {', '.join(options)}")
    rows = rows._committed_unless_chosen()
    missing = [name for name in ("offset", "timestamp") if name not in rows.columns]
    wanted = rows.select([*rows.columns, *missing]) if missing else rows
    codec = checked_compression(compression)
    table: ParquetTable | DeltaTable | IcebergTable
    match format:
        case "parquet":
            table = ParquetTable(
                checked_directory(dst), ("topic", "partition") if partition_by is None else partition_by,
                file_bytes=FILE_BYTES if file_bytes is None else file_bytes, compression=codec,
            )
        case "delta":
            table = DeltaTable(checked_directory(dst), partition_by, file_bytes=file_bytes, compression=codec)
        case "iceberg":
            target = dst if hasattr(dst, "update_schema") else checked_directory(dst)
            table = IcebergTable(target, partition_by, file_bytes=file_bytes, compression=codec)
        case _:
            raise InvalidArgumentError(f'format must be "parquet", "delta" or "iceberg", not {format!r}')
    return list(table.add(wanted))


def _offset(offset: SupportsIndex) -> int:
    try:
        return min(max(operator.index(offset), 0), OFFSET_MAX)
    except TypeError:
        raise InvalidArgumentError(f"not an offset: {offset!r}", hint="for times, use scan(since=, until=)") from None


def _array(column: Any) -> Any:
    if str(column.type).startswith("dictionary"):
        column = column.cast(column.type.value_type)
    if str(column.type).startswith("timestamp"):
        return column.cast("timestamp[us]").to_numpy()      # numpy has no time zones: UTC
    if column.null_count and library("pyarrow").types.is_integer(column.type):
        return library("numpy").array(column.to_pylist(), object)
    if _has_integers(column.type):
        library("pandas")           # by itself pyarrow makes floats of integers of which some are null
        return column.to_pandas(integer_object_nulls=True).to_numpy()
    return column.to_numpy()


def _has_integers(type_: Any) -> bool:
    """Whether there are integers in structs, lists or maps of this type."""
    fields = [type_.field(number) for number in range(type_.num_fields)]
    return any(library("pyarrow").types.is_integer(one.type) or _has_integers(one.type) for one in fields)


