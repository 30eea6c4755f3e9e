"""One damaged directory for each code of KINDS, and the lowest level of `verify` that finds it.

A finding that is switched off, or that somebody adds without a way to provoke it, fails here.
"""
import json
import shutil
import struct
from contextlib import closing
from functools import partial

import pytest

import seglog
from seglog._kernels.crc import crc32c
from seglog.clock import ManualClock
from seglog.format.checked_json import format_json
from seglog.ledger.entry import Entry
from seglog.ledger.managed.manifest import FILE_NAME
from seglog.ledger.managed.relocated_entries import FORMAT_PROPERTY, RelocatedEntries
from seglog.pulsar import ManagedLedger
from seglog.segment.column_stats import column_stats_bytes, column_stats_path
from seglog.segment.indexes import time_ranges_bytes
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import time_ranges_path
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from seglog.verification import witness_check
from seglog.verification.findings import KINDS
from seglog.verification.ledger_check import check_entries, check_managed_ledger
from seglog.verification.verify import LEVELS, verify
from support import plain_format as plain
from support import plain_tagged
from support.golden import unpack
from support.topics import batch, message

SETTINGS = {"index.interval.bytes": 256, "segment.index.bytes": 8192}
FIRST = "00000000000000000000"
T0 = 1_700_000_000_000


def golden(directory, case="v2-none-ct-k391"):
    return shutil.copytree(unpack("kafka") / "cases" / case / f"{case}-0", directory / f"{case}-0")


def patch(path, position, raw):
    data = bytearray(path.read_bytes())
    data[position : position + len(raw)] = raw
    path.write_bytes(data)


def written(directory, **logs):
    """A partition directory of segments, `_<base offset>=[batches]`, each with an empty .index and one time entry."""
    partition = directory / "orders-0"
    partition.mkdir()
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    for name, batches in logs.items():
        base = int(name[1:])
        stem = partition / f"{base:020d}"
        stem.with_suffix(".log").write_bytes(b"".join(batches))
        stem.with_suffix(".index").write_bytes(b"")
        stem.with_suffix(".timeindex").write_bytes(struct.pack(">qi", T0, 0))
    return partition


def of_one(offset, *, value=b"v", **fields):
    fields = {"base_timestamp": T0, "max_timestamp": T0} | fields
    return plain.batch_v2(plain.record_v2(value=value), base_offset=offset, **fields)


def middle_segment_removed(directory):
    return written(directory, _0=[of_one(0)], _2=[of_one(2)])


def first_log(directory):
    return min(directory.glob("*.log"))


def second_batch(log):
    return 12 + struct.unpack_from(">i", log.read_bytes(), 8)[0]


# --- makers: each gives the directory, and the settings if they are not SETTINGS ------------------


def changed(name, change, case="v2-none-ct-k391"):
    """A golden directory in which `change` was done to the file `name`, whether or not there is one.

    `case`: the default has two segments, snapshots 81 and 147, leader epochs; TXN a .txnindex beside each .log, too.
    """
    def make(directory):
        partition = golden(directory, case)
        change(partition / name)
        return partition
    return make


def cut(size_bytes):
    return lambda path: path.write_bytes(path.read_bytes()[:size_bytes])


def added(raw):
    return lambda path: path.write_bytes((path.read_bytes() if path.exists() else b"") + raw)


def of_last_log(change):
    def make(directory):
        partition = golden(directory)
        change(max(partition.glob("*.log")))
        return partition
    return make


def header_flipped(directory):
    partition = golden(directory)
    log = first_log(partition)
    patch(log, second_batch(log) + 16, b"\x07")     # its magic
    return partition


def fewer_records_said(directory):
    partition = golden(directory)
    log = first_log(partition)
    raw = bytearray(log.read_bytes()[: second_batch(log)])
    count, = struct.unpack_from(">i", raw, 57)
    struct.pack_into(">i", raw, 57, count - 1)
    struct.pack_into(">I", raw, 17, plain.computed_crc(bytes(raw)))
    patch(log, 0, raw)
    return partition


def base_offset_of_second_batch(offset):
    def make(directory):
        partition = golden(directory)
        log = first_log(partition)
        patch(log, second_batch(log), struct.pack(">q", offset))
        return partition
    return make


def below_its_base(directory):
    return written(directory, _0=[of_one(0)], _10=[of_one(5), of_one(11)])


def far_from_its_base(directory):
    return written(directory, _0=[of_one(0), of_one(2**31)])


def segments_that_overlap(directory):
    return written(directory, _0=[of_one(0), of_one(20)], _10=[of_one(30)])


def large_batch(directory):
    return written(directory, _0=[of_one(0, value=bytes(200))]), SETTINGS | {"max.message.bytes": 100}


def record_later_than_its_batch(directory):
    return written(directory, _0=[of_one(0), of_one(1, base_timestamp=T0 + 1)])


def of_a_client(name):
    """What somebody's client sent through an old broker."""
    source = unpack("old_brokers") / "clients" / name / f"{name}-0"
    return lambda directory: shutil.copytree(source, directory / source.name)


def epoch_of_second_batch(epoch, case):
    def make(directory):
        partition = golden(directory, case)
        log = first_log(partition)
        patch(log, second_batch(log) + 12, struct.pack(">i", epoch))
        return partition
    return make


def preallocated_too_far(directory):
    return golden(directory), SETTINGS | {"segment.index.bytes": 8}


def index_emptied(directory):
    partition = golden(directory)
    (partition / f"{FIRST}.index").write_bytes(b"")
    return partition


def index_emptied_of_an_unknown_interval(directory):
    partition = golden(directory, "big-v1-lz4-k391")
    (partition / f"{FIRST}.index").write_bytes(b"")
    (partition / f"{FIRST}.timeindex").write_bytes(b"")
    return partition, {"segment.index.bytes": 8192}


def index_between_batches(path):
    offset, position = struct.unpack_from(">ii", path.read_bytes(), 8)
    patch(path, 8, struct.pack(">ii", offset, position + 1))


def time_entry_moved(by_ms):
    def change(path):
        timestamp, offset = struct.unpack_from(">qi", path.read_bytes())
        patch(path, 0, struct.pack(">qi", timestamp + by_ms, offset))
    return change


def of_0_10_0(directory):
    partition = golden(directory, "v1-none-ct-k391")
    for path in partition.iterdir():
        if path.suffix not in (".log", ".index"):
            path.unlink()
    return partition


def listed_wrongly(path):
    path.write_bytes(path.read_bytes() + struct.pack(">hqqqq", 0, 2001, 60, 61, 60))


def directory_for_file(path):
    path.unlink()
    path.mkdir()


TXN = "txn-v2-k391"


def beside_first_log(path_of, bytes_of, change):
    """A small file of the first segment, changed."""
    def make(directory):
        made = golden(directory)
        log = first_log(made)
        with closing(Segment(log)) as segment:
            path_of(log).write_bytes(change(bytes_of(segment)))
        return made
    return make


time_ranges = partial(beside_first_log, time_ranges_path, time_ranges_bytes)
column_stats = partial(beside_first_log, column_stats_path, column_stats_bytes)


def sealed(raw):
    return raw[:8] + struct.pack(">I", crc32c(raw[12:])) + raw[12:]


def tagged(*beside, with_ms=True):
    """A log of messages with tags, and empty files of these names."""
    def make(directory):
        partition = directory / "orders-0"
        with seglog.open(
            partition, config={"seglog.message.dialect": "tagged", "seglog.message.tagged.timestamp.ms": with_ms}
        ) as log:
            log.append(b"v")
        for name in beside:
            (partition / name).touch()
        return partition
    return make


def miscounted(directory):
    """A log of messages with tags, one a wrapper that says that it holds two messages."""
    partition = directory / "orders-0"
    with seglog.open(partition, config={"seglog.message.dialect": "tagged"}) as log:
        raw = plain_tagged.wrapper(0, 1, [plain_tagged.message(0, b"k", b"v")], tags=[(32, 2), (33, 1)])
        log.append_batch(raw, assign_offsets=False)
    return partition


def first_segment_removed(directory):
    partition = written(directory, _0=[of_one(0)], _2=[of_one(2)])
    for path in partition.glob(f"{FIRST}.*"):
        path.unlink()
    return partition


def damaged_and_recovered(directory):
    partition = golden(directory)
    log = first_log(partition)
    patch(log, 100, bytes([log.read_bytes()[100] ^ 1]))
    seglog.recover(partition, mode="quarantine", apply=True)
    return partition


def quarantine_damaged(directory):
    partition = damaged_and_recovered(directory)
    added(b"{}")(partition / "quarantine/index.json")
    return partition


MAKERS = {
    "unreadable": changed(f"{FIRST}.log", directory_for_file),
    "start_missing": first_segment_removed,
    "end_missing": changed("leader-epoch-checkpoint", lambda path: path.write_text("0\n2\n0 0\n1 99999\n")),
    "quarantined": damaged_and_recovered,
    "quarantine_corrupt": quarantine_damaged,
    "epochs_corrupt": changed("leader-epoch-checkpoint", lambda path: path.write_text("0\n1\n")),
    "timeindex_none": of_0_10_0,
    "crc_mismatch": changed(f"{FIRST}.log", lambda path: patch(path, 100, bytes([path.read_bytes()[100] ^ 1]))),
    "bad_batch": header_flipped,
    "bad_records": fewer_records_said,
    "garbage_tail": of_last_log(added(b"\xff" * 100)),
    "offset_back": base_offset_of_second_batch(0),
    "offset_below_base": below_its_base,
    "offset_span": far_from_its_base,
    "segment_gap": middle_segment_removed,
    "segment_gap_compacted": lambda directory: golden(directory, "compact-v2-none-pass1-k391"),
    "segment_overlap": segments_that_overlap,
    "epoch_back": epoch_of_second_batch(7, "epochs-v2-k391"),
    "epochs_differ": epoch_of_second_batch(99, "v2-none-ct-k391"),
    "torn_tail": of_last_log(cut(-7)),
    "zero_tail": of_last_log(added(bytes(512))),
    "large_batch": large_batch,
    "tags_missing": tagged(with_ms=False),
    "wrapper_time": of_a_client("franz-go-gzip"),
    "wrapper_format": of_a_client("kafka-node-gzip"),
    "batch_time": record_later_than_its_batch,
    "tags_wrong": miscounted,
    "index_missing": changed(f"{FIRST}.index", lambda path: path.unlink()),
    "index_corrupt": changed(f"{FIRST}.index", cut(-3)),
    "index_misleads": changed(f"{FIRST}.index", index_between_batches),
    "index_zero_tail": changed(f"{FIRST}.index", added(bytes(80))),
    "index_too_large": preallocated_too_far,
    "timeindex_missing": changed(f"{FIRST}.timeindex", lambda path: path.unlink()),
    "timeindex_corrupt": changed(f"{FIRST}.timeindex", cut(-3)),
    "timeindex_empty": changed(f"{FIRST}.timeindex", cut(0)),
    "timeindex_misleads": changed(f"{FIRST}.timeindex", time_entry_moved(-1), "v1-none-ct-k391"),
    "timeindex_behind": changed(f"{FIRST}.timeindex", cut(12)),
    "timeindex_loose": changed(f"{FIRST}.timeindex", time_entry_moved(1), "v1-none-ct-k391"),
    "minuteindex_corrupt": changed(f"{FIRST}.time.index", added(b"\x7f" * 240)),
    "minuteindex_misleads": changed(f"{FIRST}.time.index", added(struct.pack(">qi", T0, 3))),
    "timeranges_corrupt": time_ranges(lambda raw: raw[:-1]),
    "timeranges_stale": time_ranges(lambda raw: sealed(raw[:20] + b"????" + raw[24:])),
    "timeranges_mislead": time_ranges(lambda raw: sealed(raw[:88] + raw[80:88] + raw[96:])),
    "timeranges_newer": time_ranges(lambda raw: raw[:4] + struct.pack(">i", 2) + raw[8:]),
    "stats_corrupt": column_stats(lambda raw: raw[:-1]),
    "stats_stale": column_stats(lambda raw: sealed(raw[:20] + b"????" + raw[24:])),
    "stats_mislead": column_stats(lambda raw: sealed(raw[:88] + raw[80:88] + raw[96:])),
    "stats_newer": column_stats(lambda raw: raw[:4] + struct.pack(">i", 2) + raw[8:]),
    "index_empty": index_emptied,
    "index_undecided": index_emptied_of_an_unknown_interval,
    "txnindex_corrupt": changed(f"{FIRST}.txnindex", cut(-1), TXN),
    "txnindex_misleads": changed(f"{FIRST}.txnindex", listed_wrongly, TXN),
    "txnindex_incomplete": changed(f"{FIRST}.txnindex", lambda path: path.write_bytes(path.read_bytes()[34:]), TXN),
    "snapshot_corrupt": changed("00000000000000000100.snapshot", added(b"no snapshot")),
    "epochs_missing": changed("leader-epoch-checkpoint", lambda path: path.unlink()),
    "metadata_corrupt": changed("partition.metadata", lambda path: path.write_text("version: 0\n")),
    "settings_corrupt": changed(".seglog.config", added(b"{}")),
    "foreign_log": tagged(f"{FIRST}.log"),
    "leftover": changed(f"{FIRST}.log.cleaned", added(b"")),
    "orphan_index": changed("00000000000000009999.index", added(b"")),
}


def found_at(level, directory, settings):
    return {finding.code for finding in verify(directory, level=level, config=settings).findings}


@pytest.mark.parametrize("code", MAKERS)
def test_a_directory_is_found_from_its_level_on(tmp_path, code):
    made = MAKERS[code](tmp_path)
    directory, settings = made if isinstance(made, tuple) else (made, SETTINGS)
    finds = [code in found_at(level, directory, settings) for level in LEVELS]
    lowest = LEVELS.index(KINDS[code].level)
    assert finds == [n >= lowest for n in range(len(LEVELS))]


@pytest.mark.parametrize("case", ["v2-none-ct-k391", "v1-none-ct-k391", "big-v1-lz4-k391", TXN, "epochs-v2-k391"])
def test_undamaged_nothing_of_the_kind_is_found(tmp_path, case):
    assert found_at("deep", golden(tmp_path, case), SETTINGS) == set()


# --- managed ledgers -------------------------------------------------------------------------

LEDGERS = {
    "managedLedgerMaxEntriesPerLedger": 3, "brokerEntryMetadataInterceptors": "timestamp,index",
    "topicCompactionRetainNullKey": True,
}


def relocated(topic, cursor):
    """Let the cursor set an entry aside, of which there is a copy."""
    entry = topic.read(topic.first_position)
    entries = RelocatedEntries(topic)
    entries.add(cursor.name, [(entry.position, T0, entry.data)])
    entries.close()
    cursor.set_aside([(entry.position, 2)])


def relocated_log(topic):
    return next(topic.glob(f"relocated/billing/*/{FIRST}.log"))


@pytest.fixture
def topic(tmp_path):
    """Two sealed ledgers, and one whose writer died; one cursor, for which an entry was relocated."""
    path = tmp_path / "live" / "orders"
    path.parent.mkdir()
    with ManagedLedger(path, config=LEDGERS, clock=ManualClock(T0)) as topic:
        for n in range(5):
            topic.add_entry(batch(n, 2, T0 + n))
        cursor = topic.open_cursor("billing", "earliest")
        PulsarTopicCompactionService(topic).compact()
        relocated(topic, cursor)
    live = ManagedLedger(path, config=LEDGERS)
    live.add_entries(message(n) for n in range(3))
    copy = shutil.copytree(path, tmp_path / "dead" / "orders")
    live.close()
    return copy


def flipped(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def signed_anew(path, **changes):
    body = json.loads(path.read_text()) | changes
    name, version = body.pop("format"), body.pop("version")
    body.pop("crc32c")
    path.write_bytes(format_json(name, version, **body))


LEDGER_DAMAGES = {
    "manifest_corrupt": lambda topic: flipped(topic / FILE_NAME),
    "ledger_corrupt": lambda topic: flipped(topic / "ledger-0/ledger.json"),
    "ledger_length": lambda topic: cut(-1)(topic / "ledger-1" / f"{FIRST}.log"),
    "ledger_damaged": lambda topic: flipped(topic / "ledger-0" / f"{FIRST}.log"),
    "ledger_differs": lambda topic: signed_anew(topic / "ledger-0/ledger.json", created_ms=5, end=None),
    "ledger_tail": lambda topic: added(bytes(70))(topic / "ledger-4" / f"{FIRST}.log"),
    "ledger_open": lambda topic: None,
    "ledger_stray": lambda topic: (topic / "ledger-9").mkdir(),
    "cursor_corrupt": lambda topic: flipped(topic / "cursors/billing.cursor"),
}
COMPACTED_DAMAGES = {
    "compacted_lost": lambda topic: (topic / "cursors/__compaction.cursor").unlink(),
    "compacted_damaged": lambda topic: flipped(next((topic / "compacted").iterdir()) / f"{FIRST}.log"),
    "compacted_stray": lambda topic: (topic / "compacted/ledger-99.new").mkdir(),
}
RELOCATED_DAMAGES = {
    "relocated_lost": lambda topic: shutil.rmtree(topic / "relocated"),
    "relocated_damaged": lambda topic: flipped(relocated_log(topic)),
    "relocated_stray": lambda topic: (topic / "relocated/billing/ledger-99").mkdir(),
}
LEDGER_DAMAGES |= COMPACTED_DAMAGES | RELOCATED_DAMAGES
CHECKS = ("ledger_check.py", "compacted_check.py", "relocated_check.py")
ENTRIES = {
    "entry_corrupt": [message(0), message(1)[:15]],
    "entry_index": [bytes(Entry(message(n)).with_broker_metadata(T0, index).raw()) for n, index in ((0, 0), (1, 5))],
    "entry_time": [bytes(Entry(message(n)).with_broker_metadata(T0 - n, n).raw()) for n in range(2)],
}


@pytest.mark.parametrize("code", LEDGER_DAMAGES)
def test_a_managed_ledger_that_is_damaged(topic, code):
    before = {finding.code for finding in check_managed_ledger(topic).findings}
    assert before == {"ledger_open"}
    LEDGER_DAMAGES[code](topic)
    assert code in {finding.code for finding in check_managed_ledger(topic).findings}


@pytest.mark.parametrize(("change", "codes"), [
    (lambda topic: relocated_log(topic).write_bytes(b""), {"relocated_damaged", "relocated_lost"}),
    (lambda topic: signed_anew(relocated_log(topic).parent / "ledger.json", properties={FORMAT_PROPERTY: "2"}),
     {"relocated_damaged", "relocated_lost"}),
    (lambda topic: relocated_log(topic).parent.rename(topic / "relocated/billing/ledger-4.deleted"),
     {"relocated_stray", "relocated_lost"}),
    (lambda topic: signed_anew(topic / "cursors/billing.cursor", aside=[], batches=[]), {"relocated_stray"}),
    (lambda topic: relocated_log(topic).parents[1].rename(topic / "relocated/other"), set()),
])
def test_what_was_relocated_is_held_against_the_cursors(topic, change, codes):
    change(topic)
    assert {finding.code for finding in check_managed_ledger(topic).findings} == {"ledger_open"} | codes


@pytest.mark.parametrize("code", ENTRIES)
def test_entries_that_are_damaged(tmp_path, code):
    report = check_entries(tmp_path, [(0, n, entry) for n, entry in enumerate(ENTRIES[code])])
    assert {finding.code for finding in report.findings} == {code}


def test_a_kernel_that_differs_from_the_witness(tmp_path, monkeypatch):
    monkeypatch.setattr(witness_check.WitnessCheck, "_ours", lambda self, table: (0, "of a wrong kernel"))
    report = verify(golden(tmp_path), config=SETTINGS, witness_every=1)
    assert {finding.code for finding in report.findings} == {"witness_differs"}


def test_every_code_is_provoked_here():
    elsewhere = ["witness_differs", *(code for code, kind in KINDS.items() if kind.found_in == "disk_check.py")]
    assert sorted([*MAKERS, *LEDGER_DAMAGES, *ENTRIES, *elsewhere]) == sorted(KINDS)
    assert sorted([*LEDGER_DAMAGES, *ENTRIES]) == [
        *sorted(code for code, kind in KINDS.items() if kind.found_in in CHECKS),
    ]


@pytest.mark.parametrize("change", [
    lambda texts: texts | {"seglog/last": "0:0:0:1"},
    lambda texts: texts | {"seglog/horizon": "0:1"},
])
def test_a_compacted_ledger_that_says_what_it_is_wrongly(topic, change):
    (directory,) = (topic / "compacted").iterdir()
    texts = json.loads((directory / "ledger.json").read_text())["properties"]
    signed_anew(directory / "ledger.json", properties=change(texts))
    assert "compacted_damaged" in {finding.code for finding in check_managed_ledger(topic).findings}
