"""docs/formats: each page's worked example is made here, from bytes that real Kafka wrote.

    SEGLOG_UPDATE_DOCS=1 python -m pytest tests/docs     # writes the examples again

The walks below decode with struct alone: a page and our readers cannot be wrong together unseen.
"""
import base64
import json
import os
import re
import shutil
import struct
import tempfile
import textwrap
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import seglog
from seglog._kernels.crc import crc32, crc32c
from seglog._kernels.segment_scan import scan
from seglog._kernels.tagged_packer import TaggedPacker
from seglog._kernels.window import Window
from seglog.backups.pieces import Piece
from seglog.clock import ManualClock
from seglog.config import LogConfig
from seglog.conversion.directory import Options, convert
from seglog.conversion.in_place import plan_in_place
from seglog.conversion.proof import PROOF_FILE
from seglog.conversion.report import PartitionRow, report_json
from seglog.coordinators.producer_ids import FILE_NAME as PRODUCER_IDS_FILE
from seglog.coordinators.producer_ids import ProducerIds
from seglog.endpoint import topic_creation
from seglog.endpoint.topic_deletion import FILE_NAME as DELETION_FILE
from seglog.endpoint.topic_deletion import Deletion, mark
from seglog.format.checked_json import format_json
from seglog.format.compression import Codec, decompress
from seglog.format.dialect import TAGGED
from seglog.format.live_ends import FILE_NAME as LIVE_FILE
from seglog.format.live_ends import latest_of
from seglog.format.tagged import scan_tagged
from seglog.fs.aside import write_atomically
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_partition
from seglog.fs.staging import leftovers
from seglog.segment.column_stats import ColumnStats, column_stats_bytes
from seglog.segment.index_file import MinuteIndex, OffsetIndex, TaggedOffsetIndex, TaggedTimeIndex, TimeIndex
from seglog.segment.indexes import index_bytes, index_bytes_of, time_ranges_bytes
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import TimeRanges
from seglog.segment.transaction_index import TransactionIndex
from seglog.spark.job import plan_partition
from seglog.spark.journal import CONVERTING, Journal
from seglog.spark.manifest import MANIFEST_FILE, TopicsManifest, files_to_bytes
from seglog.spark.options import ConversionOptions
from seglog.spark.plan import TaskPacker, tasks_to_bytes
from seglog.spark.segment_task import convert_task
from seglog.spark.sink_journal import SinkJournal, SinkStep
from seglog.spark.workplace import Workplace
from seglog.state import group_settings
from seglog.state.acls import FILE_NAME as ACLS_FILE
from seglog.state.acls import Acl, Operation, PatternType, Permission, ResourceType, write_acls
from seglog.state.clean_marks import PARTITION_MARK, PERIOD_FILE
from seglog.state.cluster_id import FILE_NAME as CLUSTER_ID_FILE
from seglog.state.cluster_id import FORMAT as CLUSTER_ID_FORMAT
from seglog.state.cluster_id import cluster_id as made_cluster_id
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.partition_hold import PartitionHold
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.state.users import FILE_NAME as USERS_FILE
from seglog.state.users import Credential, Mechanism, write_users
from seglog.stores.store import LocalStore
from seglog.upkeep.recover import recover
from seglog.wire.internal_records import decode_key, decode_metadata, decode_value
from support.golden import unpack
from support.hexwalk import HexWalk, readable
from support.internal_topics import kraft
from support.pages import check_examples
from support.plain_format import split_batches

PAGES = Path(__file__).parents[2] / "docs/formats"
LOG_DIR = Path(__file__).parents[1] / "golden/log_dir/kafka-4.1.1"

HEADINGS = ["Layout", "What a reader must skip or accept", "Example", "What it is bad at", "Witness"]


def golden(name, file):
    """(name in the archive, bytes) of a file in the partition directory of a golden case."""
    path = unpack("kafka") / "cases" / name / f"{name}-0" / file
    return f"kafka.tar.gz: cases/{name}/{name}-0/{file}", path.read_bytes()


def log_dir(file):
    return f"log_dir/kafka-4.1.1/{file}", (LOG_DIR / file).read_bytes()


def block(source, lines, note=""):
    body = "".join(f"    {line}\n" if line else "\n" for line in lines)
    said = textwrap.fill(f"`tests/golden/{source}`{note and ', '}{note}:", 120, break_on_hyphens=False)
    return f"{said}\n\n{body}"


# --- records -----------------------------------------------------------------------------------


def record_batch():
    source, log = golden("v2-none-ct-k411", "00000000000000000000.log")
    batch = next(split_batches(log))
    walk = HexWalk(batch)
    batch_header(walk, batch)
    for n in range(2):
        walk.heading(f"record {n}")
        record(walk)
    walk.heading("record 2")
    walk.skip(len(batch) - walk.pos, "a null key, three headers")
    return block(source, walk.done(), "the first batch")


def batch_header(walk, batch):
    walk.take("q", "base_offset")
    walk.take("i", "batch_length", f"{len(batch)} bytes in all")
    walk.take("i", "partition_leader_epoch")
    walk.take("b", "magic")
    crc = walk.take("I", "crc", "CRC-32C of the bytes from 21 on")
    assert crc == crc32c(batch[21:])
    walk.take("h", "attributes", attribute_words(struct.unpack_from(">h", batch, 21)[0]))
    walk.take("i", "last_offset_delta")
    walk.take("q", "base_timestamp")
    walk.take("q", "max_timestamp")
    walk.take("q", "producer_id")
    walk.take("h", "producer_epoch")
    walk.take("i", "base_sequence")
    walk.take("i", "records_count")


def attribute_words(attributes):
    words = [f"codec {Codec(attributes & 7).label}", "LogAppendTime" if attributes & 8 else "CreateTime"]
    flags = ((16, "transactional"), (32, "control"), (64, "delete horizon"))
    return ", ".join([*words, *(word for bit, word in flags if attributes & bit)])


def record(walk, value=None):
    """One v2 record; `value` prints the value in its place."""
    walk.varint("length")
    walk.take("b", "attributes", "always 0")
    walk.varint("timestamp_delta", most_bytes=10)
    walk.varint("offset_delta")
    walk.bytes(walk.varint("key size"), "key")
    size = walk.varint("value size")
    if value is None:
        walk.bytes(size, "value")
    else:
        value(walk)
    for _ in range(walk.varint("header count")):
        walk.bytes(walk.varint("header key size"), "header key")
        walk.bytes(walk.varint("header value size"), "header value")


def message_v1():
    source, log = golden("v1-none-ct-k411", "00000000000000000000.log")
    message = next(split_batches(log))
    walk = HexWalk(message)
    one_message(walk, message)
    return block(source, walk.done(), "the first message")


def tagged_message():
    source, log = golden("v1-none-ct-k411", "00000000000000000000.log")
    table = scan(Window(next(split_batches(log))))
    packer = TaggedPacker()
    packer.add(table, 0, 1)
    message = bytes(packer.take())
    walk = HexWalk(message)
    walk.take("q", "offset")
    walk.take("i", "size", f"{len(message)} bytes in all")
    walk.take("I", "crc", "CRC-32 of the bytes from 16 on")
    walk.take("b", "magic")
    walk.take("b", "attributes", "a record")
    walk.take("I", "timestamp")
    walk.take("i", "tags size")
    walk.take("b", "tag id")
    walk.take("q", "when the broker got it")
    walk.bytes(walk.take("i", "key size"), "key")
    walk.bytes(walk.take("i", "value size"), "value")
    return block(source, walk.done(), "the first message, as a tagged one")


def one_message(walk, message, show_value=True):
    start = walk.pos
    walk.take("q", "offset")
    walk.take("i", "size", f"{struct.unpack_from('>i', message, start + 8)[0] + 12} bytes in all")
    crc = walk.take("I", "crc", f"CRC-32 of the bytes from {start - walk.origin + 16} on")
    end = start + 12 + struct.unpack_from(">i", message, start + 8)[0]
    assert crc == crc32(message[start + 16 : end])
    magic = walk.take("b", "magic")
    attributes = walk.raw[walk.pos]
    walk.take("b", "attributes", f"codec {Codec(attributes & 7).label}")
    if magic == 1:
        walk.take("q", "timestamp")
    walk.bytes(walk.take("i", "key size"), "key")
    size = walk.take("i", "value size")
    if attributes & 7:
        walk.skip(size, "value: the compressed message set")
    else:
        walk.bytes(size, "value")
    return size


def wrapper(name, segment="00000000000000000000.log"):
    source, log = golden(name, segment)
    batches = list(split_batches(log))
    message = batches[1]
    magic = message[16]
    walk = HexWalk(message)
    size = one_message(walk, message)
    inner = bytes(decompress(message[17] & 7, magic, message[len(message) - size :], 1 << 20))
    walk.done()
    (outer_offset,) = struct.unpack_from(">q", message)
    starts, pos = [], 0
    while pos < len(inner):
        starts.append(pos)
        pos += 12 + struct.unpack_from(">i", inner, pos + 8)[0]
    assert pos == len(inner)
    stored = [struct.unpack_from(">q", inner, start)[0] for start in starts]
    base = outer_offset - stored[-1] if magic == 1 else 0
    lines = [*walk.lines, "", f"        decompressed, {len(inner)} bytes in {len(starts)} messages:"]
    for n in (0, 1, len(starts) - 1):
        start, offset = starts[n], stored[n]
        if n > 2:
            lines.append("   ...")
        hexes = " ".join(f"{b:02x}" for b in inner[start : start + 8])
        lines.append(f"{start:>6}  {hexes:<24}offset: {offset}, which is offset {base + offset} of the log")
    return block(source, lines, "the second message")


# --- control records -----------------------------------------------------------------------------


def control_batch():
    source, log = golden("txn-v2-k411", "00000000000000000000.log")
    batch = next(b for b in split_batches(log) if struct.unpack_from(">h", b, 21)[0] & 0x20)
    assert len(batch) == 78
    walk = HexWalk(batch)
    batch_header(walk, batch)
    walk.heading("record 0")
    control_record(walk, end_txn)
    return block(source, walk.done(), "the first control batch")


TYPES = ["ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS"]


def control_record(walk, value):
    walk.varint("length")
    walk.take("b", "attributes", "always 0")
    walk.varint("timestamp_delta", most_bytes=10)
    walk.varint("offset_delta")
    walk.varint("key size")
    walk.take("h", "key version")
    walk.take("h", "key type", TYPES[struct.unpack_from(">h", walk.raw, walk.pos)[0]])
    walk.varint("value size")
    value(walk)
    walk.varint("header count")


def end_txn(walk):
    walk.take("h", "value version")
    walk.take("i", "coordinator_epoch")


def leader_change_record():
    source, log = log_dir("__cluster_metadata-0/00000000000000000000.log")
    batch = next(split_batches(log))
    walk = HexWalk(batch, 61, origin=0)
    control_record(walk, leader_change)
    return block(source, walk.done(), "the record of the first batch")


def leader_change(walk):
    walk.take("h", "value version")
    walk.take("i", "leader_id")
    for name in ("voters", "granting voters"):
        for _ in range(walk.take("B", f"{name} + 1") - 1):
            walk.take("i", "voter_id")
            walk.take("B", "tagged fields")
    walk.take("B", "tagged fields")


# --- indexes -------------------------------------------------------------------------------------


def tagged_index():
    source, log = golden("v1-none-ct-k391", "00000000000000000070.log")
    packer = TaggedPacker()
    table = scan(Window(log))
    packer.add(table, 0, len(table))
    config = LogConfig.of({"index.interval.bytes": 512})
    raw = index_bytes_of([scan_tagged(bytes(packer.take()))], 70, config, dialect=TAGGED).offset_index
    walk = HexWalk(raw, end=32)
    entries = []
    for n in range(2):
        walk.heading(f"slot {n}")
        relative_offset = walk.take("i", "relative_offset", f"offset {70 + struct.unpack_from('>i', raw, walk.pos)[0]}")
        timestamp = walk.take("q", "timestamp")
        entries.append((70 + relative_offset, timestamp, walk.take("i", "position")))
    assert [(offset, position) for offset, _, position in entries] == list(TaggedOffsetIndex(raw, 70))[:2]
    assert [(timestamp, offset) for offset, timestamp, _ in entries] == list(TaggedTimeIndex(raw, 70))[:2]
    return block(source, walk.done(), f"as tagged messages, the first two of {len(raw) // 16} entries of their index")


def offset_index():
    source, raw = golden("v1-none-ct-k391", "00000000000000000070.index")
    walk = HexWalk(raw, end=24)
    entries = []
    for n in range(3):
        walk.heading(f"slot {n}")
        relative_offset = walk.take("i", "relative_offset", f"offset {70 + struct.unpack_from('>i', raw, walk.pos)[0]}")
        entries.append((70 + relative_offset, walk.take("i", "position")))
    assert list(OffsetIndex(raw, 70))[:3] == entries
    return block(source, walk.done(), f"its first three of {len(raw) // 8} entries")


def preallocated_tail():
    source, raw = golden("crash-v1-k391", "00000000000000000000.index")
    index = OffsetIndex(raw, 0)
    end = len(index) * 8
    walk = HexWalk(raw, end - 8, end=end + 16, origin=0)
    for n in range(len(index) - 1, len(index) + 2):
        walk.heading(f"slot {n}" + ("" if n < len(index) else ": preallocated, no entry"))
        walk.take("i", "relative_offset")
        walk.take("i", "position")
    return block(source, walk.done(), f"around the end of its entries; {len(raw)} bytes in all")


def time_index():
    source, raw = golden("v1-none-ct-k391", "00000000000000000070.timeindex")
    walk = HexWalk(raw, end=24)
    entries = []
    for n in range(2):
        walk.heading(f"slot {n}")
        timestamp = walk.take("q", "timestamp")
        relative_offset = walk.take("i", "relative_offset", f"offset {70 + struct.unpack_from('>i', raw, walk.pos)[0]}")
        entries.append((timestamp, 70 + relative_offset))
    assert list(TimeIndex(raw, 70))[:2] == entries
    return block(source, walk.done(), f"its first two of {len(raw) // 12} entries")


def minute_index():
    log = "cases/v1-none-ct-k391/v1-none-ct-k391-0/00000000000000000070.log"
    with closing(Segment(unpack("kafka") / log)) as segment:
        raw = index_bytes(segment, LogConfig.of({"index.interval.bytes": 256})).minute_index
    walk = HexWalk(raw)
    entries = []
    for n in range(len(raw) // 12):
        walk.heading(f"slot {n}")
        timestamp = walk.take("q", "timestamp", f"minute {struct.unpack_from('>q', raw, walk.pos)[0] // 60_000}")
        relative_offset = walk.take("i", "relative_offset", f"offset {70 + struct.unpack_from('>i', raw, walk.pos)[0]}")
        entries.append((timestamp, 70 + relative_offset))
    assert list(MinuteIndex(raw, 70)) == entries
    return block(f"kafka.tar.gz: {log}", walk.done(), "what seglog makes of it with index.interval.bytes=256")


def time_ranges():
    log = "cases/v1-none-ct-k391/v1-none-ct-k391-0/00000000000000000070.log"
    with closing(Segment(unpack("kafka") / log)) as segment:
        raw = time_ranges_bytes(segment, run_bytes=4096)
        right = TimeRanges(Window(raw))
        assert right.describes(segment.window)
    walk = HexWalk(raw)
    walk.heading("header")
    assert walk.take("I", "magic", "SGTR") == 0x53475452
    assert walk.take("i", "version") == 1
    assert walk.take("I", "checksum") == crc32c(raw[12:])
    assert walk.take("i", "run_bytes") == 4096
    runs = walk.take("i", "runs")
    walk.take("I", "last_checksum")
    assert walk.take("q", "base_offset") == 70
    next_offset, log_bytes = walk.take("q", "next_offset"), walk.take("q", "log_bytes")
    walk.take("q", "last_position")
    assert walk.take("q", "reserved") == 0
    rows = []
    for n in range(runs):
        walk.heading(f"run {n}")
        position, first = walk.take("q", "position"), walk.take("q", "first_offset")
        rows.append((first, position, walk.take("q", "smallest"), walk.take("q", "largest")))
    ends = [*((first, position) for first, position, _, _ in rows[1:]), (next_offset, log_bytes)]
    assert [(r.start_offset, r.stop_offset, r.position, r.end_position, r.smallest, r.largest) for r in right] == [
        (first, stop, position, end, smallest, largest)
        for (first, position, smallest, largest), (stop, end) in zip(rows, ends, strict=True)
    ]
    return block(f"kafka.tar.gz: {log}", walk.done(), "what seglog makes of it with runs of 4096 bytes; no groups yet")


def column_stats():
    log = "cases/v1-none-ct-k391/v1-none-ct-k391-0/00000000000000000070.log"
    with closing(Segment(unpack("kafka") / log)) as segment:
        raw = column_stats_bytes(segment, run_bytes=4096)
        right = ColumnStats(raw, segment.path)
        assert right.describes(segment.window, 70)
    walk = HexWalk(raw)
    walk.heading("header")
    assert walk.take("I", "magic", "SGCS") == 0x53474353
    assert walk.take("i", "version") == 1
    assert walk.take("I", "checksum") == crc32c(raw[12:])
    assert walk.take("i", "run_bytes") == 4096
    runs = walk.take("i", "runs")
    for name, kind in (
        ("last_checksum", "I"), ("base_offset", "q"), ("next_offset", "q"), ("log_bytes", "q"), ("last_position", "q"),
        ("reserved", "q"),
    ):
        walk.take(kind, name)
    for n in range(runs):
        walk.heading(f"run {n}")
        numbers = [walk.take("q", name) for name in ("position", "first_offset", "smallest", "largest")]
        counts = [walk.take("i", name) for name in ("records", "null_keys")]
        keys = [walk.take("24s", name) for name in ("smallest_key", "largest_key")]
        assert (*numbers, *counts, *keys) == right.runs[n]
    return block(f"kafka.tar.gz: {log}", walk.done(), "what seglog makes of it with runs of 4096 bytes")


def transaction_index():
    source, raw = golden("txn-v2-k411", "00000000000000000000.txnindex")
    walk = HexWalk(raw, end=68)
    for n, entry in enumerate(list(TransactionIndex(raw))[:2]):
        walk.heading(f"slot {n}")
        assert walk.take("h", "version") == entry.version
        assert walk.take("q", "producer_id") == entry.producer_id
        assert walk.take("q", "first_offset") == entry.first_offset
        assert walk.take("q", "last_offset") == entry.last_offset
        assert walk.take("q", "last_stable_offset") == entry.last_stable_offset
    return block(source, walk.done(), f"its first two of {len(raw) // 34} entries")


# --- state ---------------------------------------------------------------------------------------


def producer_snapshot():
    source, raw = golden("txn-v2-k411", "00000000000000000077.snapshot")
    walk = HexWalk(raw)
    walk.take("h", "version")
    assert walk.take("I", "crc", "CRC-32C of the bytes from 6 on") == crc32c(raw[6:])
    count = walk.take("i", "producer count")
    for n in range(2):
        walk.heading(f"producer {n}")
        read = [
            walk.take(kind, name)
            for kind, name in (
                ("q", "producer_id"), ("h", "producer_epoch"), ("i", "last_sequence"), ("q", "last_offset"),
                ("i", "offset_delta"), ("q", "timestamp"), ("i", "coordinator_epoch"),
                ("q", "current_txn_first_offset"),
            )
        ]
        assert read[0] == ProducerSnapshot.parse(raw).producers[n].producer_id
    walk.heading("producer 2")
    walk.skip((count - 2) * 46, "the same fields")
    return block(source, walk.done())


def text_lines(raw):
    """A text file's lines as Python literals: the line ends are part of the format."""
    return [repr(line.decode()) for line in raw.splitlines(keepends=True)]


def leader_epochs():
    source, raw = golden("epochs-v2-k411", "leader-epoch-checkpoint")
    epochs = LeaderEpochs.parse(raw)
    notes = ["the version", "the number of entries"]
    notes += [f"epoch {entry.epoch} from offset {entry.start_offset} on" for entry in epochs]
    return block(source, [f"{line:<12}{note}" for line, note in zip(text_lines(raw), notes, strict=True)])


def partition_metadata():
    source, raw = log_dir("epochs-v2-k391-0/partition.metadata")
    return block(source, text_lines(raw))


def clean_marks():
    """Ours, so not golden: a partition of a broker that stopped cleanly, being written to."""
    with tempfile.TemporaryDirectory() as directory:
        log_dir = Path(directory, "data")
        log_dir.mkdir()
        shutil.copy(LOG_DIR / ".kafka_cleanshutdown", log_dir)
        hold = PartitionHold(OsFileSystem(), log_dir / "orders-0")
        hold.before_first_write()
        texts = [(log_dir / name).read_text() for name in (PERIOD_FILE, f"orders-0/{PARTITION_MARK}")]
        hold.close(clean=False)
    lines = ["`data/.seglog.cleanshutdown` and `data/orders-0/.seglog.mark`; period and checksums are made up:", ""]
    for text in texts:
        shown = json.loads(text)
        shown |= {"period": "0123456789abcdef" * 2, "crc32c": 1234567890}
        lines += [f"    {line}" for line in json.dumps(shown, indent=1, sort_keys=True).splitlines()] + [""]
    return "\n".join(lines[:-1]) + "\n"


def conversion_proof():
    name = "mixed-formats-k282"
    source = unpack("kafka") / "cases" / name / f"{name}-0"
    with tempfile.TemporaryDirectory() as log_dir:
        target = Path(log_dir) / "orders-0"
        text = convert(source, target).proof.to_json().decode()
    proof = json.loads(text)
    # What differs from machine to machine and from release to release.
    text = text.replace(proof["source"], "/data/old/orders-0").replace(proof["target"], "/data/new/orders-0")
    text = text.replace(f'"seglog": "{proof["seglog"]}"', '"seglog": "0.1.0"')
    text = text.replace(f'"crc32c": {proof["crc32c"]}', '"crc32c": 1234567890')
    text = text.replace(proof["made_from"], "0123456789abcdef" * 4)
    note = "converted; paths, `made_from` and checksum are made up"
    return block(f"kafka.tar.gz: cases/{name}/{name}-0", text.splitlines(), note)


def conversion_notes():
    name, noted = "mixed-formats-k282", []
    source = unpack("kafka") / "cases" / name / f"{name}-0"

    def stop(done, total):
        if done > 0.99 * total:
            staging, = leftovers(log_dir)
            noted[:] = (staging / "seglog-converted.jsonl").read_text().splitlines()

    with tempfile.TemporaryDirectory() as log_dir:
        convert(source, Path(log_dir) / "orders-0", progress=stop)
    header, segment = noted
    shown = json.loads(header) | {
        "crc32c": 1234567890, "made_from": "0123456789abcdef" * 4, "seglog": "0.1.0", "target": "/data/new/orders-0"}
    texts = json.dumps(shown), segment
    lines = [f"    {piece}" if n else piece for text in texts for n, piece in enumerate(textwrap.wrap(text, 110))]
    note = "but for its last segment; path, `made_from` and the first checksum are made up, and lines wrapped"
    return block(f"kafka.tar.gz: cases/{name}/{name}-0", lines, note)


def conversion_report():
    name = "mixed-formats-k282"
    source = unpack("kafka") / "cases" / name / f"{name}-0"
    with tempfile.TemporaryDirectory() as log_dir:
        row = PartitionRow.of_result(convert(source, Path(log_dir) / "orders-0"), 0.25)
    text = report_json(Path("/data/old/orders-0"), Path("/data/new/orders-0"), 2, [row])
    lines = text.decode().splitlines()
    return block(f"kafka.tar.gz: cases/{name}/{name}-0", lines, "converted; paths and time are made up")


def spark_sink():
    place = "stream-5f3c1e6b-0a9d-2477-8c1e-6b0a9d247711/" + "0123456789abcdef" * 2
    steps = (SinkStep("orders-0", f"{place}/orders-0", 600, 1000), SinkStep("orders-1", f"{place}/orders-1", 400, None))
    journal = SinkJournal({"5f3c1e6b-0a9d-2477-8c1e-6b0a9d247711": 6}, steps, "5f3c1e6b-0a9d-2477-8c1e-6b0a9d247711", 7,
                          batches=("2026-11-23",))
    shown = json.dumps(json.loads(journal.to_bytes()), indent=1, sort_keys=True).splitlines()
    return "\n".join(["A commit of epoch 7, under way:", "", *(f"    {line}" for line in shown)]) + "\n"


def workplace():
    name = "mixed-formats-k282"
    options = ConversionOptions()
    with tempfile.TemporaryDirectory() as there:
        old, new = Path(there, "old"), Path(there, "new")
        shutil.copytree(unpack("kafka") / "cases" / name / f"{name}-0", old / "orders-0")
        for log in old.rglob("*.log"):
            os.utime(log, ns=(1_700_000_000_000_000_000,) * 2)
        place = Workplace(LocalStore(), LocalStore(), str(old), str(new), options, run="5f3c1e6b0a9d2477")
        for directory in ("plan", "attempts", "staged/orders-0", "done/orders-0"):
            place.store.make_directory(place.within(directory))
        packer = TaskPacker()
        packer.add(plan_partition(place, "orders-0"))
        tasks = tasks_to_bytes(packer.tasks())
        place.store.write(place.within("tasks"), tasks)
        convert_task(place, 0, 0, "sample")
        shard = place.shard("orders-0")
        marker = place.marker("orders-0", shard.segments[1], place.recipe(None))
        marker = replace(marker, seconds=0.25, recipe=64 * "0").to_bytes()
    journal = Journal(CONVERTING, "/data/old", "/data/new", options.to_dict(), seglog="0.1.0")
    lines = []
    for file, raw in (("journal.json", journal.to_bytes()), ("plan/orders-0", shard.to_bytes()), ("tasks", tasks),
                      ("done/orders-0/00000000000000000099.log", marker)):
        lines += [file, *(f"    {part}" for line in raw.decode().splitlines() for part in _wrapped(line)), ""]
    note = "the only partition of its log dir; long lines are wrapped"
    return block(f"kafka.tar.gz: cases/{name}/{name}-0", lines[:-1], note)


def topics_manifest():
    name, prefix = "mixed-formats-k282", "v1-5f3c1e6b"
    with tempfile.TemporaryDirectory() as log_dir:
        convert(unpack("kafka") / "cases" / name / f"{name}-0", Path(log_dir) / "orders-0")
        found = sorted(path for path in Path(log_dir, "orders-0").iterdir() if path.name != PROOF_FILE)
        files = files_to_bytes({path.name: path.stat().st_size for path in found})
    lines = []
    for file, raw in ((MANIFEST_FILE, TopicsManifest(1, {"orders-0": prefix}).to_bytes()),
                      (f"{prefix}/orders-0.files", files)):
        lines += [file, *(f"    {part}" for part in _wrapped(raw.decode().rstrip())), ""]
    note = "the only partition of its log dir, without the proof; long lines are wrapped"
    return block(f"kafka.tar.gz: cases/{name}/{name}-0", lines[:-1], note)


def backup_store():
    name = "txn-v2-k411"
    with tempfile.TemporaryDirectory() as disk:
        shutil.copytree(unpack("kafka") / "cases" / name / f"{name}-0", Path(disk) / "logs/orders-0")
        for number, path in enumerate(sorted((Path(disk) / "logs/orders-0").iterdir())):
            os.utime(path, ns=(1_700_000_000_000_000_000, 1_700_000_000_000_000_000 + number))
        store = Path(disk) / "store"
        snapshot = seglog.backup(Path(disk) / "logs", store, clock=ManualClock(1_700_000_000_000)).snapshot
        part, = snapshot.partitions
        files = json.loads((store / "objects" / part.pieces[0].digest[:2] / part.pieces[0].digest).read_bytes())
    for inode, file in enumerate(files["files"], start=1001):
        file[3], file[4] = inode, 0o644
    made_up = {"crc32c": 1234567890}
    told = replace(
        snapshot, id="20231114T221320.000Z-5f3c1e6b", source="/var/lib/kafka", host="broker-1",
        ended_at_ms=1_700_000_000_100,
        partitions=(replace(part, fingerprint="0123456789abcdef" * 4, pieces=(Piece("fedcba9876543210" * 4, 1536),)),),
        stored_bytes=9876,
    )
    lines = ["snapshots/20231114T221320.000Z-5f3c1e6b.json"]
    lines += [f"    {part}" for part in _wrapped(json.dumps(json.loads(told.to_bytes()) | made_up, sort_keys=True))]
    lines += ["", "objects/fe/fedcba98...: the list of files"]
    lines += [f"    {part}" for part in _wrapped(json.dumps(files | made_up, sort_keys=True))]
    note = "as `orders-0` of a log dir; inodes, checksums, fingerprint and the digest of the list are made up"
    return block(f"kafka.tar.gz: cases/{name}/{name}-0", lines, note)


def _wrapped(line):
    return [line[n : n + 110] for n in range(0, len(line), 110)]


def exchange_journal():
    name = "v1-none-ct-k391"
    source = unpack("kafka") / "cases" / name / f"{name}-0"
    with tempfile.TemporaryDirectory() as disk:
        shutil.copytree(source, Path(disk) / "logs/orders-0")
        plan_in_place(Path(disk) / "logs/orders-0", Path(disk) / "backups", Options()).run()
        text = (Path(disk) / "backups/orders-0.seglog-exchange").read_text()
    body = json.loads(text)
    text = text.replace(body["proof"], "0123456789abcdef" * 4).replace(f'{body["crc32c"]}', "1234567890")
    note = "in place; `proof` and checksum are made up"
    return block(f"kafka.tar.gz: cases/{name}/{name}-0", text.splitlines(), note)


def quarantine():
    name = "v2-none-ct-k411--flip-earlier-seg"
    damaged = unpack("kafka") / "corrupt" / name / f"{name}-0"
    with tempfile.TemporaryDirectory() as log_dir:
        target = Path(log_dir) / "orders-0"
        recover(damaged, target, mode="quarantine")
        found = sorted(path.name for path in (target / "quarantine").iterdir())
        text = (target / "quarantine/index.json").read_text()
    lines = [*(f"quarantine/{file}" for file in found), "", *text.splitlines()]
    return block(f"kafka.tar.gz: corrupt/{name}/{name}-0", lines, "recovered; the files, and the index")


def log_settings():
    with tempfile.TemporaryDirectory() as log_dir:
        with seglog.open(Path(log_dir) / "orders-0", config={"message.format.version": "0.10.0"}) as log:
            log.configure({"segment.bytes": "64MiB", "min.insync.replicas": "2"})
        raw = (Path(log_dir) / "orders-0" / SETTINGS_FILE).read_text()
    text = "".join(f"    {line}\n" for line in json.dumps(json.loads(raw), indent=1, sort_keys=True).splitlines())
    opened = "message.format.version=0.10.0"
    return f"`orders-0/.seglog.config` of a log that was opened with {opened}, then configured:\n\n{text}"


def coordinator_records():
    shown = []
    for name, place in (("__consumer_offsets-0", 9), ("__transaction_state-7", 3)):
        with seglog.open_partition(LOG_DIR.parents[1] / "groups" / name) as partition:
            record = partition[place]
            topic = name.rpartition("-")[0]
            key = decode_key(topic, bytes(record.key))
            value = decode_value(topic, key.type, bytes(record.value))
            lines = [f"`tests/golden/groups/{name}`, offset {place}:\n\n"]
            for raw, number, message in (
                (bytes(record.key), key.type, key.message), (bytes(record.value), value.version, value.message),
            ):
                lines += [f"    {raw.hex(' ')}\n", f"    {type(message).__name__} {number}\n"]
                lines += [f"      {name} = {getattr(message, name)!r}\n" for name in message.__slots__]
            shown.append("".join(lines))
    return "\n".join(shown)


def metadata_record():
    path = kraft("4.1.1") / "__cluster_metadata-0"
    with seglog.open_partition(path) as partition:
        record = next(record for record in partition if (record.value or b"")[1:2] == b"\2")
    stored = decode_metadata("__cluster_metadata", record.value)
    lines = [f"`tests/golden/kraft.tar.gz`, 4.1.1, `__cluster_metadata-0`, offset {record.offset}:\n\n"]
    lines += [f"    {record.value.hex(' ')}\n", f"    type {stored.type}, version {stored.version}: TopicRecord\n"]
    lines += [f"      {name} = {getattr(stored.message, name)!r}\n" for name in stored.message.__slots__]
    return "".join(lines)


def producer_ids():
    with tempfile.TemporaryDirectory() as log_dir:
        ProducerIds(log_dir, OsFileSystem(), ManualClock(1_700_000_000_000)).next()
        raw = (Path(log_dir) / PRODUCER_IDS_FILE).read_text()
    text = "".join(f"    {line}\n" for line in json.dumps(json.loads(raw), indent=1, sort_keys=True).splitlines())
    return f"After the first producer of a directory came, on 14 November 2023:\n\n{text}"


def cluster_id():
    with tempfile.TemporaryDirectory() as log_dir:
        write_atomically(OsFileSystem(), Path(log_dir) / CLUSTER_ID_FILE, format_json(
            CLUSTER_ID_FORMAT, 1, cluster_id="luiW-m1uQL628wOzy_7ttQ"))
        assert made_cluster_id(OsFileSystem(), Path(log_dir)) == "luiW-m1uQL628wOzy_7ttQ"
        raw = (Path(log_dir) / CLUSTER_ID_FILE).read_text()
    text = "".join(f"    {line}\n" for line in json.dumps(json.loads(raw), indent=1, sort_keys=True).splitlines())
    return f"Of a log dir that was served:\n\n{text}"


def users():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = Credential.of_password(Mechanism.SCRAM_SHA_256, b"pencil", salt)
    with tempfile.TemporaryDirectory() as log_dir:
        write_users(OsFileSystem(), Path(log_dir), {"user": {Mechanism.SCRAM_SHA_256: credential}})
        raw = (Path(log_dir) / USERS_FILE).read_text()
    text = "".join(f"    {line}\n" for line in json.dumps(json.loads(raw), indent=1, sort_keys=True).splitlines())
    return f"A user `user` with the password `pencil` and the salt of RFC 7677's example:\n\n{text}"


def acls():
    acl = Acl(ResourceType.TOPIC, "orders-", PatternType.PREFIXED, "User:alice", "*", Operation.READ, Permission.ALLOW)
    with tempfile.TemporaryDirectory() as log_dir:
        write_acls(OsFileSystem(), Path(log_dir), [acl])
        raw = (Path(log_dir) / ACLS_FILE).read_text()
    text = "".join(f"    {line}\n" for line in json.dumps(json.loads(raw), indent=1, sort_keys=True).splitlines())
    return f"`alice` may read every topic whose name begins with `orders-`:\n\n{text}"


def groups_settings():
    with tempfile.TemporaryDirectory() as log_dir:
        group_settings.write_group_settings(OsFileSystem(), Path(log_dir), {
            "billing": {group_settings.SESSION_TIMEOUT: 60_000, group_settings.HEARTBEAT_INTERVAL: 10_000}})
        raw = (Path(log_dir) / group_settings.FILE_NAME).read_text()
    text = "".join(f"    {line}\n" for line in json.dumps(json.loads(raw), indent=1, sort_keys=True).splitlines())
    return f"Members of `billing` may be silent for a minute:\n\n{text}"


def creation():
    topic_id = uuid.UUID("6b5a1c5e-93d4-4a33-8f0a-5f7a0c2d9e11").bytes
    with tempfile.TemporaryDirectory() as log_dir:
        what = topic_creation.Creation("orders", topic_id, 0, 3, {"cleanup.policy": "compact"})
        topic_creation.mark(OsFileSystem(), Path(log_dir), [what])
        raw = (Path(log_dir) / topic_creation.FILE_NAME).read_text()
    text = "".join(f"    {line}\n" for line in json.dumps(json.loads(raw), indent=1, sort_keys=True).splitlines())
    return f"While `orders` is created with three partitions:\n\n{text}"


def topic_deletion():
    with tempfile.TemporaryDirectory() as directory:
        mark(OsFileSystem(), Path(directory), [
            Deletion("orders", uuid.UUID("6b5a1c5e-93d4-4a33-8f0a-5f7a0c2d9e11").bytes)])
        raw = (Path(directory) / DELETION_FILE).read_text()
    text = "".join(f"    {line}\n" for line in json.dumps(json.loads(raw), indent=1, sort_keys=True).splitlines())
    return f"While `orders` is deleted:\n\n{text}"


def live_ends():
    with tempfile.TemporaryDirectory() as log_dir:
        path = Path(log_dir) / "orders-0"
        with seglog.open(path, fsync="never") as log:
            for value in (b"one", b"two", b"three"):
                log.append(value)
            log.flush()
            log.truncate_to(2)
            log.append(b"more")
            log._tail.tell_growth()
            ends = latest_of((path / LIVE_FILE).read_bytes(), "")
    walk = HexWalk(ends._replace(boot_id=bytes(16)).to_slot(8))
    walk.bytes(8, "magic")
    walk.take("I", "version")
    checksum = walk.take("I", "checksum")
    assert checksum == crc32c(walk.raw[:12] + walk.raw[walk.pos :])
    walk.take("Q", "sequence", "so the slot lies at byte 0")
    walk.bytes(16, "boot id", "made up", show=False)
    walk.take("I", "flags", "open; readers see `written`")
    truncations = walk.take("I", "truncations")
    walk.take("q", "epoch")
    walk.take("q", "log start offset")
    walk.take("q", "last stable offset")
    walk.take("q", "base offset of the active segment")
    for name in ("written", "durable"):
        walk.heading(name)
        for number in ("position", "next offset", "offset entries", "time entries", "minute entries"):
            walk.take("q", number)
    for n in range(truncations):
        walk.heading(f"truncation {n}")
        walk.take("q", "epoch", "" if n else "an opening that found nothing beyond the end")
        walk.take("q", "log end offset")
    walk.skip(len(walk.raw) - walk.pos, "zeros")
    text = "".join(f"    {line}\n" for line in walk.done())
    return f"`orders-0/.seglog.live` of a log with three records that was truncated to two, then appended to:\n\n{text}"


def partition_lock():
    with tempfile.TemporaryDirectory() as scratch, lock_partition(OsFileSystem(), scratch) as lock:
        raw = lock.note
    assert len(raw) == 128
    (pid, host), number = raw.split(b"\n")[0].split(b" "), raw.split(b"\n")[1]
    assert int(pid) == os.getpid()
    assert host
    assert re.fullmatch(rb"[0-9a-f]{16}", number)
    assert not raw.split(b"\n")[2].strip(b" ")
    return (
        "`orders-0/.seglog.lock` of a log that was opened; process, host and number are made up:\n\n"
        "    4711 mail-1\n    0123456789abcdef\n"
    )


def reader_cursor():
    with tempfile.TemporaryDirectory() as log_dir:
        clock = ManualClock(1_790_000_000_000)
        with seglog.open(Path(log_dir) / "orders-0", clock=clock) as log, log.cursor("mailer") as cursor:
            log.append_many([(None, b"v")] * 3)
            cursor.commit(1)
            cursor.commit(2)
        raw = (Path(log_dir) / "orders-0" / ".seglog.cursor-mailer").read_text()
    assert len(raw) == 1024
    text = "".join(
        f"    {line}\n" for slot in (raw[:512], raw[512:])
        for line in json.dumps(json.loads(slot), indent=1, sort_keys=True).splitlines()
    )
    return f"`orders-0/.seglog.cursor-mailer` of a reader that committed 1, then 2; without trailing spaces:\n\n{text}"


def checkpoint():
    source, raw = log_dir("recovery-point-offset-checkpoint")
    return block(source, text_lines(raw))


def log_dir_marks():
    parts = []
    for file in ("meta.properties", ".kafka_cleanshutdown"):
        source, raw = log_dir(file)
        parts.append(block(source, text_lines(raw)))
    return "\n".join(parts)


# --- compression -----------------------------------------------------------------------------------


def payload_of(name):
    """The payload of the first compressed batch of a case."""
    source, log = golden(name, "00000000000000000000.log")
    batch = next(split_batches(log))
    if batch[16] == 2:
        return source, batch[61:]
    size_pos = 26 if batch[16] == 1 else 18
    (key_size,) = struct.unpack_from(">i", batch, size_pos)
    return source, batch[size_pos + 8 + max(key_size, 0) :]


def xerial():
    source, payload = payload_of("v1-snappy-ct-k391")
    walk = HexWalk(payload)
    walk.bytes(8, "magic")
    walk.take("i", "version")
    walk.take("i", "oldest version that can read it")
    while walk.pos < len(payload):
        size = walk.take("i", "block size")
        first = payload[walk.pos : walk.pos + 2]
        announced = (first[0] & 0x7F) | first[1] << 7
        walk.skip(size, f"a raw snappy block that opens to {announced} bytes")
    assert announced == len(memoryview(decompress(Codec.SNAPPY, 1, payload, 1 << 20)))
    return block(source, walk.done(), "the payload of the first batch")


def lz4_frame(name, magic):
    source, payload = payload_of(name)
    walk = HexWalk(payload)
    walk.bytes(4, "magic", show=False)
    walk.take("B", "flags", "version 1, independent blocks, no sizes, no checksums")
    walk.take("B", "block descriptor", "blocks of at most 64 KiB")
    walk.take("B", "header checksum", "of bytes 0 to 5: KAFKA-3160" if magic == 0 else "of bytes 4 and 5")
    (size,) = struct.unpack_from("<I", payload, walk.pos)
    walk.bytes(4, f"block size: {size}, little-endian", show=False)
    walk.skip(size & 0x7FFFFFFF, "the block")
    walk.bytes(4, "end of the frame", show=False)
    return block(source, walk.done(), "the payload of the first batch")


def tiered_manifest():
    tier = unpack("tiered") / "compressed/tier"
    (path,) = tier.glob("txn-v2-k411-*/0/00000000000000000077-*.rsm-manifest")
    body = json.loads(path.read_bytes())
    raw = decompress(Codec.ZSTD, 2, base64.b64decode(body["chunkIndex"]["transformedChunks"]), 100)
    lines = textwrap.wrap(path.read_text(), 112, break_on_hyphens=False)
    walk = HexWalk(bytes(raw))
    walk.take("i", "count")
    walk.take("i", "size")
    sizes = ["", "the sizes of its chunks, decompressed", *walk.done()]
    return block(f"tiered.tar.gz: {path.relative_to(unpack('tiered'))}", [*lines, *sizes], "long lines are wrapped")


EXAMPLES = {
    "tiered_segments.md": {"tiered-manifest": tiered_manifest},
    "record_batch.md": {"record-batch": record_batch},
    "message.md": {
        "message-v1": message_v1,
        "wrapper-v1": lambda: wrapper("v1-gzip-ct-k411"),
        "wrapper-v0": lambda: wrapper("v0-lz4-ct-k411"),
    },
    "control_records.md": {"end-transaction": control_batch, "leader-change": leader_change_record},
    "compression.md": {
        "xerial": xerial,
        "lz4-v0": lambda: lz4_frame("v0-lz4-ct-k411", 0),
        "lz4-v1": lambda: lz4_frame("v1-lz4-ct-k391", 1),
    },
    "offset_index.md": {"offset-index": offset_index, "preallocated-tail": preallocated_tail},
    "tagged_index.md": {"tagged-index": tagged_index},
    "minute_index.md": {"minute-index": minute_index},
    "time_index.md": {"time-index": time_index},
    "time_ranges.md": {"time-ranges": time_ranges},
    "column_stats.md": {"column-stats": column_stats},
    "transaction_index.md": {"transaction-index": transaction_index},
    "producer_snapshot.md": {"producer-snapshot": producer_snapshot},
    "leader_epoch_checkpoint.md": {"leader-epochs": leader_epochs},
    "partition_metadata.md": {"partition-metadata": partition_metadata},
    "conversion_proof.md": {"conversion-proof": conversion_proof},
    "tagged_message.md": {"tagged-message": tagged_message},
    "exchange_journal.md": {"exchange-journal": exchange_journal},
    "conversion_notes.md": {"conversion-notes": conversion_notes},
    "conversion_report.md": {"conversion-report": conversion_report},
    "spark_workplace.md": {"workplace": workplace},
    "spark_sink.md": {"spark-sink": spark_sink},
    "topics_manifest.md": {"manifest": topics_manifest},
    "backup.md": {"backup": backup_store},
    "clean_marks.md": {"clean-marks": clean_marks},
    "quarantine.md": {"quarantine": quarantine},
    "live_ends.md": {"live-ends": live_ends},
    "log_settings.md": {"log-settings": log_settings},
    "producer_ids.md": {"producer-ids": producer_ids},
    "cluster_id.md": {"cluster-id": cluster_id},
    "users.md": {"users": users},
    "acls.md": {"acls": acls},
    "group_settings.md": {"group-settings": groups_settings},
    "topic_creation.md": {"topic-creation": creation},
    "topic_deletion.md": {"topic-deletion": topic_deletion},
    "coordinator_topics.md": {"coordinator-records": coordinator_records},
    "cluster_metadata.md": {"metadata-record": metadata_record},
    "partition_lock.md": {"partition-lock": partition_lock},
    "reader_cursor.md": {"reader-cursor": reader_cursor},
    "checkpoints.md": {"recovery-points": checkpoint, "log-dir": log_dir_marks},
}


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_of_a_page_are_made_from_golden_bytes(page):
    check_examples(PAGES / page, "tests/docs/test_format_pages.py", EXAMPLES[page])


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.name)
def test_a_page_answers_what_a_reader_asks(page):
    headings = re.findall(r"(?m)^## (.+)$", page.read_text())
    assert [heading for heading in headings if heading in HEADINGS] == HEADINGS


def test_every_golden_file_that_a_page_names_exists():
    for page in PAGES.glob("*.md"):
        for name in re.findall(r"`tests/golden/kafka\.tar\.gz: ([^`,]+)", page.read_text()):
            assert list(unpack("kafka").glob(name)), (page.name, name)
        for name in re.findall(r"`tests/golden/(log_dir/[^`,]+)", page.read_text()):
            assert list((LOG_DIR.parents[1]).glob(name)), (page.name, name)


def test_long_values_are_cut():
    assert readable(b"x" * 41) == f"{b'x' * 40!r}... (41 bytes)"
