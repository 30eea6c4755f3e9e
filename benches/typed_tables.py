"""Typed tables: a scan with Avro beside fastavro and its own decoder, and Parquet written of scans beside pyarrow.

The processor time of the whole process, because pyarrow uses its own threads; for the threads wall time.
"""
import io
import json
import shutil
import time
from functools import partial
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

import seglog
from benches.runner import Bench, Fresh, Goal
from benches.tables import cache_as_read, make_topic, rows_in
from seglog.frames.typed.avro import AvroDecoder
from seglog.frames.typed.avro_schema import AvroSchema
from seglog.frames.typed.column_decoder import confluent_frame

SCHEMA = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "amount", "type": "double"},
    {"name": "paid", "type": "boolean"},
    {"name": "note", "type": ["null", "string"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]}
# fastavro, beside which they are measured, decodes some 300 000 records in a second.
RECORDS_MAX = 1_000_000
CHUNK_ROWS = 40_000         # as a scan has them
FRAME = b"\0\0\0\0\1"
CODEC = "zstd"


def run(bench: Bench, directory: Path, records: int) -> None:
    if not bench.wanted("typed"):
        return
    avro(bench, directory / "typed", min(records, RECORDS_MAX))
    parquet(bench, directory, min(records, RECORDS_MAX))


def _values(count: int) -> list[bytes]:
    parsed, made = fastavro.parse_schema(SCHEMA), []
    for n in range(count):
        out = io.BytesIO(FRAME)
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, parsed, {
            "id": n, "customer": f"customer {n % 997}", "amount": n / 7, "paid": n % 3 == 0,
            "note": None if n % 2 else "as agreed", "at": 1_700_000_000_000 + n,
        })
        made.append(out.getvalue())
    return made


def avro(bench: Bench, topic: Path, records: int) -> None:
    values, schemas = _values(records), topic / "schemas"
    for partition in range(2):
        with seglog.open(topic / f"orders-{partition}", fsync="never") as log:
            mine = values[partition::2]
            for begin in range(0, len(mine), 120):
                log.append_columns(values=mine[begin:begin + 120])
    schemas.mkdir()
    (schemas / "orders-value.1.avsc").write_text(json.dumps(SCHEMA))
    cache_as_read(topic)
    parsed, paths = fastavro.parse_schema(SCHEMA), [topic / "orders-0", topic / "orders-1"]

    def scan(threads: int) -> int:
        decoded = seglog.scan(
            paths, columns=["value"], decode={"value": "avro"}, schemas=schemas, threads=threads
        )
        return rows_in(decoded.to_reader())

    def alone() -> int:
        read, count = fastavro.schemaless_reader, 0
        for raw in values:
            stream = io.BytesIO(raw)
            stream.seek(len(FRAME))
            read(stream, parsed, None)
            count += 1
        return count

    if scan(1) != alone():
        raise AssertionError("a scan has other records than were written")
    typed = AvroSchema(json.dumps(SCHEMA))
    decoder = AvroDecoder(typed, lambda _: typed, confluent_frame, "fail")
    chunks = [pa.array(values[at:at + CHUNK_ROWS], pa.binary()) for at in range(0, records, CHUNK_ROWS)]
    million = records / 1e6
    bench.compare(
        "typed: scan with Avro", million, "M rec/s", {
            "scan": lambda: scan(1), "fastavro alone": alone,
            "its decoder alone": lambda: sum(len(decoder.array(chunk)[0]) for chunk in chunks),
            "scan without decoding": lambda: rows_in(seglog.scan(paths, columns=["value"], threads=1).to_reader()),
        },
        {
            ("scan", "fastavro alone"): Goal(0.8), ("scan", "its decoder alone"): Goal(),
            ("scan", "scan without decoding"): Goal(),
        }, clock=time.process_time,
    )
    bench.by_wall(
        "typed: threads, by wall time", million, "M rec/s",
        {"two threads": lambda: scan(2), "one": lambda: scan(1)}, {("two threads", "one"): Goal(1.7)}, turns=7,
    )
    shutil.rmtree(topic)


def parquet(bench: Bench, directory: Path, records: int) -> None:
    topic, target = directory / "plain", directory / "lake"
    make_topic(topic, records)
    cache_as_read(topic)
    batches = list(seglog.scan(topic, threads=1).to_reader())

    def by_pyarrow(path: Path) -> None:
        """A file for each partition, as write_table makes them."""
        path.mkdir()
        files: dict[int, pq.ParquetWriter] = {}
        for batch in batches:
            partition = batch["partition"][0].as_py()
            if partition not in files:
                files[partition] = pq.ParquetWriter(
                    path / f"{partition}.parquet", batch.schema, compression=CODEC
                )
            files[partition].write_table(pa.Table.from_batches([batch]))
        for file in files.values():
            file.close()

    fresh = partial(Fresh, lambda: target, drop=partial(shutil.rmtree, ignore_errors=True))
    bench.compare(
        "typed: write Parquet", records / 1e6, "M rec/s", {
            "write_table": fresh(lambda path: seglog.write_table(topic, path, compression=CODEC)),
            "pyarrow's writer, of batches in memory": fresh(by_pyarrow),
        },
        {("write_table", "pyarrow's writer, of batches in memory"): Goal(0.8)}, clock=time.process_time,
    )
    shutil.rmtree(topic)
