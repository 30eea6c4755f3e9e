"""What docs/benchmarks.md and the README show of a run: tables and a chart, all from docs/assets/benchmarks.json.

`make bench` writes a run to build/benchmarks.json. To publish one that a quiet machine made, copy it to docs/assets and
write the pages again: SEGLOG_UPDATE_DOCS=1 python -m pytest tests/docs/test_benchmarks_page.py.
"""
import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from math import log
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from benches.machine import TOP

RUN = TOP / "docs/assets/benchmarks.json"
CHART = TOP / "docs/assets/benchmarks.svg"

Row = Mapping[str, Any]


class Key(NamedTuple):
    """What names a row of a run."""

    case: str
    ours: str
    peer: str


def key_of(row: Row) -> Key:
    return Key(row["case"], row["ours"], row["peer"])


def load(path: Path = RUN) -> dict[str, Any]:
    """{"machine": {}, "results": [{}]}, as Bench.write_json wrote it."""
    run: dict[str, Any] = json.loads(path.read_text())
    return run


def rows_of(run: Mapping[str, Any]) -> dict[Key, Row]:
    return {key_of(row): row for row in run["results"]}


KAFKA, BROKER, PULSAR = "Kafka 3.9.1", "Kafka 4.1.1", "Pulsar 4.2.4"

# What stands in the page's one table: a label, and the row of the run.
TABLE: dict[str, list[tuple[str, Key]]] = {
    "Read": [
        ("check every CRC", Key("v2 none 16K scan+crc", "seglog", "aiokafka")),
        ("read offset, time, key and value of each record", Key("v2 none 16K four fields", "seglog", "aiokafka")),
        ("read into Arrow", Key("v2 none 16K arrow", "seglog", "aiokafka")),
        ("scan a log, lazy records", Key("log scan, lazy", "seglog", "lmdb")),
        ("read a record by its offset", Key("get by offset", "seglog", "lmdb")),
        ("find an offset by time", Key("seek by time", "seglog", "lmdb")),
        ("follow a log that is ahead", Key("follow, behind", "follow", "read")),
    ],
    "Append": [
        ("append 1 record a call", Key("append 1 a batch", "seglog", "lmdb")),
        ("append 1 record a call", Key("append 1 a batch", "seglog", "sqlite")),
        ("append 100 records a call", Key("append 100 a batch", "seglog", "lmdb")),
        ("append 100 records a call", Key("append 100 a batch", "seglog", "sqlite")),
        ("append 10 000 records a call", Key("append 10000 a batch", "seglog", "aiokafka")),
        ("durable append of 16 KB, by wall time", Key("durable append of 16 KB", "seglog", "bare")),
        ("500 durable appends at once, asyncio", Key("500 durable appends at once", "await append", "32 threads")),
        ("encode Arrow columns, 100 a batch", Key("encode 100 a batch, columns", "seglog", "aiokafka")),
    ],
    "Convert, fetch, mirror": [
        ("convert v1 to v2, uncompressed", Key("v1 none to v2, repack 16384", "seglog", "aiokafka")),
        ("convert v2 to v1, uncompressed", Key("v2 none to v1, downConvert", "seglog", KAFKA)),
        ("convert v2 to v1, lz4", Key("v2 lz4 to v1, downConvert", "seglog", KAFKA)),
        ("fetch slices of 1 MiB", Key("fetch, slices of 1 MiB", "seglog", "os.sendfile")),
        ("mirror v2, lz4", Key("mirror, v2 lz4", "seglog", "bare writes")),
        ("back up", Key("backup create", "seglog", "read, SHA-256, write")),
    ],
    "Serve and compact": [
        ("serve a producer, the server's CPU time", Key("serve produce, 16 KB batches", "seglog", BROKER)),
        ("serve a consumer, the server's CPU time", Key("serve consume, 16 KB batches", "seglog", BROKER)),
        ("serve a producer, by wall time", Key("serve produce, throughput", "seglog", BROKER)),
        ("serve a consumer, by wall time", Key("serve consume, throughput", "seglog", BROKER)),
        ("compact a log, uncompressed", Key("compaction of a log, v2 none", "seglog", KAFKA)),
        ("compact a Pulsar topic, lz4", Key("compact a topic, lz4", "seglog", PULSAR)),
        ("add delayed messages, in columns", Key("delayed: add", "in buckets, columns", "heapq")),
    ],
    "Queue, each job durable": [
        ("put, get, ack one job, by wall time", Key("queue: one at a time, wall", "seglog", "persist-queue")),
        ("put, get, ack one job, by wall time", Key("queue: one at a time, wall", "seglog", "huey")),
        ("put, get, ack one job, CPU time", Key("queue: one at a time, CPU", "seglog", "huey")),
        ("put, get, ack 100 jobs a call", Key("queue: 100 a call", "seglog", "persist-queue")),
        ("put, get, ack 100 jobs a call", Key("queue: 100 a call", "seglog", "SQLite FULL")),
        ("16 threads, a job each", Key("queue: 16 threads", "seglog", "persist-queue")),
    ],
    "Query": [
        ("scan a topic to Arrow", Key("table: scan to Arrow", "seglog", "parquet")),
        ("aggregate a topic in DuckDB", Key("table: aggregate in DuckDB", "dataset()", "parquet")),
        ("aggregate a topic in DuckDB", Key("table: aggregate in DuckDB", "dataset()", "snappy parquet")),
        ("aggregate a topic in polars", Key("table: aggregate in polars", "scan_topic", "parquet")),
    ],
}

# The chart's bars, from the most read to the least flattering; native libraries and Kafka's own classes among them.
BARS = [
    ("read four fields of each record", Key("v2 none 16K four fields", "seglog", "aiokafka")),
    ("append 1 record a call", Key("append 1 a batch", "seglog", "lmdb")),
    ("append 100 records a call", Key("append 100 a batch", "seglog", "sqlite")),
    ("read a record by its offset", Key("get by offset", "seglog", "lmdb")),
    ("convert v2 to v1", Key("v2 none to v1, downConvert", "seglog", KAFKA)),
    ("serve a consumer", Key("serve consume, 16 KB batches", "seglog", BROKER)),
    ("scan a topic to Arrow", Key("table: scan to Arrow", "seglog", "parquet")),
    ("fetch slices of 1 MiB", Key("fetch, slices of 1 MiB", "seglog", "os.sendfile")),
    ("aggregate a topic in DuckDB", Key("table: aggregate in DuckDB", "dataset()", "parquet")),
]

README_TABLE = [
    ("read offset, time, key and value of each record (v2)", Key("v2 none 16K four fields", "seglog", "aiokafka")),
    ("read into Arrow", Key("v2 none 16K arrow", "seglog", "aiokafka")),
    ("append one record a call, without syncs", Key("append 1 a batch", "seglog", "lmdb")),
    ("append 100 records a call, without syncs", Key("append 100 a batch", "seglog", "sqlite")),
    ("convert v2 to v1, uncompressed", Key("v2 none to v1, downConvert", "seglog", KAFKA)),
    ("scan a topic to Arrow", Key("table: scan to Arrow", "seglog", "parquet")),
    ("aggregate a topic in DuckDB", Key("table: aggregate in DuckDB", "dataset()", "parquet")),
]

PEERS = {
    "aiokafka iterate": "aiokafka", "sqlite": "SQLite",
    "bare": "bare write and fdatasync", "bare, 8 threads": "8 bare threads", "own raw crc32c": "one CRC over the file",
    "parquet": "uncompressed Parquet", "snappy parquet": "snappy Parquet", "read": "read of the closed log",
    "32 threads": "a pool of 32 threads", KAFKA: f"{KAFKA}'s own classes", BROKER: f"a {BROKER} broker",
    PULSAR: f"{PULSAR}'s own classes", "SQLite FULL": "a SQLite table",
}

# Figures of one measurement beside another of the same: no contest.
OF_ITSELF = {
    Key("10 000 tasks follow 100 logs", "append to record, median", "p99"),
    Key("10 000 tasks follow 100 logs", "garbage collections, all", "the longest"),
    Key("10 000 tasks follow 100 logs", "CPU a record and task", "microseconds a second"),
}

# Why seglog loses a row, each time as it was measured: a profile, a part of the work by itself, or the run's own times.
REASONS: dict[Key, str] = {
    Key("v2 none 16K scan+crc beside raw crc", "seglog", "own raw crc32c"):
        "The peer only computes the CRC; the rest is finding each batch and checking its header.",
    Key("append 1 a batch", "seglog", "aiokafka"):
        "By CPU time seglog is ahead; by wall time it waits for 48 of 217 ms: it hands the interpreter over around "
        "each write, and a thread of its own tells followers.",
    Key("append 1 a call, floor", "seglog", "floor in C"):
        "The floor writes ready bytes. In a profile of a million appends, the interpreter takes 43 % and the system "
        "39 %; making the batches and checking them takes less than a seventh.",
    Key("durable append of 16 KB", "seglog", "bare"):
        "An append takes 34 µs of CPU time beside those of the bare write and sync.",
    Key("durable append, 8 threads", "seglog", "bare, 8 threads"):
        "Threads share one interpreter, and handing it over takes 20 to 30 µs: with syncs of 1 ms, seglog is ahead.",
    Key("durable append, 8 threads, floor", "seglog", "threads in C"):
        "As above; the threads of the peer hold no interpreter.",
    Key("append while eight processes follow", "followed", "alone"):
        "Publishing the log's end to followers costs 0.16 µs of CPU time an append. By wall time, the eight "
        "followers also compete with the writer for two cores.",
    Key("follow, behind", "follow", "read"):
        "For each piece of the log, a follower reads the published end again and checks that the file is the same.",
    Key("16 KB batches, wait=False", "wait=False", "interval"):
        "The peer syncs once at the end; *wait=False* syncs 33 to 44 times for 2 000 batches.",
    Key("fetch, slices of 1 MiB", "seglog", "os.sendfile"):
        "Finding the slice takes 5.6 µs with warm caches, and 13 µs or more after each MiB, which evicts them.",
    Key("mirror, v2 none", "seglog", "bare writes"):
        "Checking CRCs and headers takes 2.4 ms of CPU time; by wall time it also waits 3 ms in a run, whatever the "
        "size of the segment.",
    Key("mirror, v1 none", "seglog", "bare writes"):
        "In v1 each record is a batch of its own: its CRC and header are checked before it is written.",
    Key("mirror, v2 lz4", "seglog", "bare writes"):
        "As for the mirror of v2 without compression.",
    Key("mirror, v2 zstd", "seglog", "bare writes"):
        "The size that each batch's zstd frame promises is checked from Python, 2 µs a batch; lz4 needs no such "
        "check.",
    Key("clean reopen, 10 segments", "seglog", "bound 1 ms"):
        "Opening and closing makes about 70 calls for the state of files, and maps the active segment twice (a "
        "trace).",
    Key("recovery, 4 segments, 1 thread", "seglog", "own raw crc32c"):
        "The peer only computes the CRC; recovery also builds and syncs the indexes of four segments.",
    Key("restore", "seglog", "read, SHA-256, write"):
        "Restore also checks every batch and builds the indexes: 0.53 s more of CPU time for 475 MB. By wall time "
        "several threads make up for half of it.",
    Key("serve produce, 16 connections", "durable", "interval"):
        "The durable server also syncs, once for several connections.",
    Key("serve, start", "until the port is open", "bound 0.5 s"):
        "Imports: they take nine tenths of the CPU time until the port is open (measured by itself), for 479 "
        "modules.",
    Key("serve consume, throughput", "seglog", BROKER):
        "The consumer, on a core of its own, sets the pace: of this time seglog's server computes for a seventh.",
    Key("ledger add, a batch of 1000", "seglog", "Log.append_many"):
        "The CPU time differs by 0.17 µs an entry: each entry is framed and checked by itself.",
    Key("managed ledger add, of 1000", "seglog", "Log.append_many"):
        "It checks frame and metadata of each entry; *append_many* stores the same bytes unseen.",
    Key("the same with time and index", "seglog", "Log.append_many"):
        "As above, and each entry gets a broker timestamp and an index.",
    Key("managed ledger read one", "seglog", "log[offset]"):
        "A read takes 0.85 µs more, because a position names a ledger before an entry.",
    Key("queue: 4 processes", "seglog", "huey"):
        "One process owns the files, and each call of the others crosses its socket: without syncs a job takes 0.6 "
        "ms so, and 0.04 ms in the owner. huey's processes all write one SQLite file.",
    Key("queue: one at a time, wall", "seglog", "bare syncs"):
        "A job takes 0.65 ms and the two bare syncs 0.47. Put, get and ack compute for 0.06 ms; the rest is handing "
        "a sync to the thread that makes it, and back.",
    Key("queue: one at a time, CPU", "seglog", "bare syncs"):
        "The peer only syncs: 0.11 of the 0.17 ms.",
    Key("queue: 100 a call", "seglog", "SQLite FULL"):
        "A queue writes each lease and each acknowledgement to its journal; measured by itself, half of the CPU time "
        "is acknowledging. SQLite deletes a hundred rows of a table in one transaction.",
    Key("delayed: add", "in memory", "heapq"):
        "One by one, each message is a call of its own; in columns the same tracker has 11 times heapq's rate.",
    Key("table: aggregate in DuckDB", "dataset()", "parquet"):
        "Parquet stores columns; of a log every page is mapped, every CRC checked and every record's header parsed, "
        "so that two columns cost three quarters of eight. By wall time, Parquet also uses the second core.",
    Key("table: aggregate in DuckDB", "scan(columns=)", "parquet"):
        "As above.",
    Key("table: aggregate in polars", "scan_topic", "parquet"):
        "As above.",
    Key("table: a tenth of the keys in DuckDB", "with index stats", "parquet"):
        "Each segment has a file of statistics to open, and its last batch is read to check that they belong "
        "together; Parquet has one footer.",
    Key("table: a tenth of the keys in polars", "with index stats", "parquet"):
        "As above.",
    Key("typed: scan with Avro", "scan", "its decoder alone"):
        "The decoder takes 90 of the 125 ms, and scanning without decoding 27.",
    Key("typed: scan with Avro", "scan", "scan without decoding"):
        "As above: decoding costs more than reading.",
    Key("typed: write Parquet", "write_table", "pyarrow's writer, of batches in memory"):
        "The peer has its batches in memory already; *write_table* reads them from the topic.",
}


def is_lost(row: Row) -> bool:
    """By CPU time or by wall time the row's peer is ahead of seglog, or the row misses its bound."""
    if key_of(row) in OF_ITSELF:
        return False
    if row["unit"] == "us" and row["must"] is None:     # the shorter time wins
        return bool(row["ours_rate"] > row["peer_rate"])
    return bool(row["ratio"] < 1 or (row["ratio"] > 1 and _wall_ratio(row) < 1))


def _wall_ratio(row: Row) -> float:
    return float(row["peer_wall_s"] / row["ours_wall_s"]) if row["ours_wall_s"] else 1.0


# --- tables ------------------------------------------------------------------------------------------


def machine(run: Mapping[str, Any]) -> str:
    """One paragraph: where, when, of which revision."""
    at = run["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in at["versions"].items() if version)
    changed = " with changes" if at["changed"] else ""
    said = (
        f"{at['processor']}, {at['cores']} cores · {at['system']} · CPython {at['python']} · commit `{at['commit']}`"
        f"{changed} · {at['date']} · load {at['load']} before the run, {at['load_at_end']} after it · best of "
        f"{at['repetitions']} · {versions}"
    )
    return fill(said, 120) + "\n"


def whole_table(run: Mapping[str, Any]) -> str:
    rows = rows_of(run)
    lines = ["| | seglog | beside | ratio | CPU, ms | wall, ms |", "|---|---|---|---|---|---|"]
    for group, shown in TABLE.items():
        lines.append(f"| **{group}** | | | | | |")
        for label, key in shown:
            row = rows[key]
            lines.append(
                f"| {label} | {_number(row['ours_rate'])} {_unit(row)} | {_beside(row)} "
                f"| {_ratio(row)} | {_ms(row['ours_cpu_s'])} / {_ms(row['peer_cpu_s'])} "
                f"| {_ms(row['ours_wall_s'])} / {_ms(row['peer_wall_s'])} |"
            )
    return "\n".join(lines) + "\n"


def losses(run: Mapping[str, Any]) -> str:
    """Every row that seglog loses, with the reason."""
    lines = ["| case | seglog | beside | ratio | by wall time | why |", "|---|---|---|---|---|---|"]
    lines += (
        f"| {row['case']}{_of(row)} | {_number(row['ours_rate'])} {_unit(row)} | {_beside(row)} "
        f"| {_ratio(row)} | {_by_wall(row)} | {REASONS[key_of(row)]} |"
        for row in run["results"] if is_lost(row)
    )
    return "\n".join(lines) + "\n"


def readme_table(run: Mapping[str, Any]) -> str:
    rows = rows_of(run)
    lines = ["| | seglog | beside | ratio |", "|---|---|---|---|"]
    for label, key in README_TABLE:
        row = rows[key]
        assert row["unit"] == "M rec/s", "the README speaks of records a second"
        ratio = _ratio(row)
        lines.append(f"| {label} | {_number(row['ours_rate'])} M | {_peer(row)}: {_number(row['peer_rate'])} M "
                     f"| {f'**{ratio}**' if row['ratio'] > 1 else ratio} |")
    return "\n".join(lines) + "\n"


def _of(row: Row) -> str:
    """Which contender of ours, if the case does not say so."""
    return "" if row["ours"] == "seglog" or row["ours"] in row["case"] else f", {row['ours']}"


def _peer(row: Row) -> str:
    peer = str(row["peer"])
    return PEERS.get(peer, peer)


def _beside(row: Row) -> str:
    is_bound = str(row["peer"]).startswith("bound ")
    return _peer(row) if is_bound else f"{_peer(row)}: {_number(row['peer_rate'])}"


def _unit(row: Row) -> str:
    return str(row["unit"]).replace("us", "µs")


def _ratio(row: Row) -> str:
    """Above 1: seglog is ahead."""
    ratio = row["peer_rate"] / row["ours_rate"] if row["unit"] == "us" else row["ratio"]
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def _by_wall(row: Row) -> str:
    return f"{_wall_ratio(row):.2f}" if row["ours_wall_s"] else ""


def _number(value: float) -> str:
    """Three figures that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _ms(seconds: float) -> str:
    return _number(seconds * 1e3)


# --- the chart ---------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, LINE, TOP_MARGIN = 420, 24, 54, 44, 70      # narrow: it must be readable on a phone
SCALE = 20.0    # the longest bar's end, with a logarithmic axis from 0.5


def chart(run: Mapping[str, Any]) -> str:
    """The bars as SVG: on a panel of its own, so that it reads alike on a light and a dark page."""
    rows = rows_of(run)

    def x(ratio: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * log(ratio / 0.5) / log(SCALE / 0.5)

    height = TOP_MARGIN + LINE * len(BARS) + 58
    at = run["machine"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * 5 // 4}" height="{height * 5 // 4}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" role="img">',
        "  <title>CPU time: how many times the peer's rate seglog reaches</title>",
        f'  <rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10" fill="#fbfcfc" stroke="#cfd8dc"/>',
        f'  <text x="{LEFT}" y="28" font-size="14" font-weight="600" fill="#0d3640">'
        "How many times its peer's rate seglog reaches</text>",
        f'  <text x="{LEFT}" y="46" font-size="12" fill="#546e7a">for the same CPU time</text>',
    ]
    bottom = TOP_MARGIN + LINE * len(BARS)
    parts += [line for number, bar in enumerate(BARS) for line in _bar(x, number, bar[0], rows[bar[1]])]
    for tick in (0.5, 1, 2, 5, 10, 20):
        stroke, at_x = ("#546e7a" if tick == 1 else "#cfd8dc"), f"{x(tick):.1f}"
        parts += [
            f'  <line x1="{at_x}" y1="{bottom}" x2="{at_x}" y2="{bottom + 6}" stroke="{stroke}"/>',
            f'  <text x="{at_x}" y="{bottom + 20}" font-size="12" text-anchor="middle" fill="#546e7a">'
            f"{tick:g} ×</text>",
        ]
    parts += [
        f'  <text x="{LEFT}" y="{bottom + 44}" font-size="12" fill="#546e7a">{escape(at["processor"])}, {at["date"]}, '
        f'{at["commit"]}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bar(x: Callable[[float], float], number: int, label: str, row: Row) -> Iterator[str]:
    """From 1 to the right where seglog is ahead, to the left where the peer is."""
    y, one, end = TOP_MARGIN + LINE * number, x(1), x(row["ratio"])
    assert 0.5 < row["ratio"] < SCALE, "wider than the axis"
    yield (f'  <text x="{LEFT}" y="{y + 10}" font-size="13" fill="#0d3640">{escape(label)} '
           f'<tspan font-size="12" fill="#546e7a">beside {escape(_peer(row))}</tspan></text>')
    fill = "#14505c" if row["ratio"] >= 1 else "#b35f00"
    yield (f'  <rect x="{min(one, end):.1f}" y="{y + 16}" width="{abs(end - one):.1f}" height="18" rx="3" '
           f'fill="{fill}"/>')
    yield f'  <line x1="{one:.1f}" y1="{y + 14}" x2="{one:.1f}" y2="{y + 36}" stroke="#546e7a"/>'
    yield (f'  <text x="{max(one, end) + 8:.1f}" y="{y + 30}" font-size="13" font-weight="600" fill="{fill}">'
           f"{_ratio(row)}</text>")
