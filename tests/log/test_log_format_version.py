"""message.format.version: what is appended is stored in that record format, whatever format it came in."""
import json
import random
import shutil
import zlib

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.config import LogConfig
from seglog.errors import (
    CorruptSettingsError,
    InvalidConfigError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
)
from seglog.format import validate
from seglog.format.batch import end_marker
from seglog.format.checked_json import format_json
from seglog.format.compression import Codec, decompressor
from seglog.state.kept_settings import FILE_NAME, FORMAT
from support.made_logs import NOW, open_log
from support.models import plain_format

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = [(b"key %d" % n, b"value %d" % n * 5, (), NOW - 10 + n) for n in range(4)]


@pytest.fixture
def path(in_memory):
    return in_memory / "data" / "orders-0"


def batches(log):
    return [(batch.magic, Codec(batch.codec).name.lower()) for batch in log.batches()]


def rows(log):
    return [(r.offset, r.timestamp, r.key, r.value) for r in log]


def wanted(version, count, records=RECORDS):
    """`count` times the records, as a log of that version holds them."""
    many = [records[n % len(records)] for n in range(count)]
    return [(n, time if version else -1, key, value) for n, (key, value, _, time) in enumerate(many)]


# --- records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS[:4])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_are_stored_in_the_version_of_the_log(path, version, codec):
    with open_log(path, version, compression_type=codec) as log:
        assert log.append_many(RECORDS) == 3
        for key, value, headers, time in RECORDS:
            last = log.append(value, key=key, headers=headers, timestamp=time)
        assert last == 7
        assert log.append_many(RECORDS, atomic=False) == 11
        assert rows(log) == wanted(version, 12)
        assert set(batches(log)) == {(version, codec)}
    with open_log(path) as log:
        assert rows(log) == wanted(version, 12)


@pytest.mark.parametrize("codec", CODECS[:4])
@pytest.mark.parametrize("version", [0, 1])
def test_columns_are_stored_in_the_version_of_the_log_in_as_many_batches_as_fit(path, version, codec):
    arrow = pytest.importorskip("pyarrow")
    batch = arrow.record_batch({"key": [b"k%d" % n for n in range(900)], "value": [b""] * 900})
    with open_log(path, version, compression_type=codec, max_message_bytes=2000) as log:
        assert log.append_columns(batch) == 899
        assert [(r.offset, r.key) for r in log] == [(n, b"k%d" % n) for n in range(900)]
        assert all(len(b.raw()) <= 2000 and b.magic == version for b in log.batches())
        with pytest.raises(RecordTooLargeError):
            log.append(random.Random(1).randbytes(2100))
        assert log.log_end_offset == 900


def test_log_append_time_is_the_clocks_in_v1_and_nobodys_in_v0(path):
    with open_log(path, 1, message_timestamp_type="LogAppendTime", compression_type="lz4") as log:
        log.append_many([(b"k", b"v", (), 5), (b"k", b"v")])
        log.configure({"message.format.version": 0})
        log.append(b"v", timestamp=5)
        assert [(r.timestamp, r.timestamp_type) for r in log] == [(NOW, 1), (NOW, 1), (-1, -1)]


def test_a_compacted_log_asks_for_keys_in_every_version(path):
    with open_log(path, 1, cleanup_policy="compact") as log, pytest.raises(seglog.errors.InvalidRecordError):
        log.append(b"v")


@pytest.mark.parametrize("version", [0, 1])
def test_records_with_headers_have_no_place_below_v2(path, version):
    with open_log(path, version) as log:
        for append in (
            lambda: log.append(b"v", headers=[("h", b"x")]),
            lambda: log.append_many([(b"k", b"v"), (b"k", b"v", [("h", b"x")])]),
        ):
            with pytest.raises(UnsupportedForMessageFormatError, match="has headers"):
                append()
        assert log.append(b"v") == 0


def test_lingering_records_are_written_at_once_below_v2_and_before_the_version_changes(path):
    with open_log(path, 2, linger_ms=60_000) as log:
        log.append(b"waits")
        assert log.stats().lingering_records == 1
        log.configure({"message.format.version": 1})
        log.append(b"does not")
        assert batches(log) == [(2, "none"), (1, "none")]
        log.configure({"message.format.version": 2})
        log.append(b"waits")
        assert log.stats().lingering_records == 1
    with open_log(path) as log:
        assert len(rows(log)) == 3


# --- encoded batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("came", [0, 1, 2])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_encoded_batch_is_stored_in_the_version_of_the_log(path, version, came, codec):
    if codec == "zstd" and (came < 2 or version < 2):
        with open_log(path, version) as log, pytest.raises(UnsupportedCompressionTypeError):
            log.append_batch(_batch(2 if came == 2 else 1, codec, zstd_below_v2=came < 2))
        return
    with open_log(path, version) as log:
        result = [log.append_batch(_batch(came, codec)) for _ in range(2)]
        assert result == [(0, 3, False), (4, 7, False)]
        assert rows(log) == wanted(min(version, came), 8)
        assert set(batches(log)) == {(version, codec)}


def _batch(magic, codec, *, zstd_below_v2=False):
    if zstd_below_v2:       # no builder makes one
        made = bytearray(seglog.build_batch(RECORDS, magic=magic, codec="lz4"))
        made[17] = made[17] & ~7 | 4
        made[12:16] = _crc32(made[16:])
        return bytes(made)
    records = [record[:3] for record in RECORDS] if magic == 0 else RECORDS
    return seglog.build_batch(records, magic=magic, codec=codec)


def _crc32(data):
    return zlib.crc32(data).to_bytes(4, "big")


REFUSED = {
    "headers": {"records": [(b"k", b"v"), (b"k", b"v", [("h", b"x")])]},
    "an idempotent producer": {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0},
    "a transaction": {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True},
    "a marker": {"producer_id": 7, "producer_epoch": 0, "transactional": True, "control": True,
                 "records": [end_marker(True, 0)]},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_what_an_older_format_has_no_place_for_is_refused(path, name, codec):
    options = {"records": RECORDS, "timestamp": NOW, "codec": codec, **REFUSED[name]}
    raw = seglog.build_batch(options.pop("records"), **options)
    with open_log(path, 1) as log:
        with pytest.raises(UnsupportedForMessageFormatError, match=r"message\.format\.version is 1"):
            log.append_batch(raw)
        assert log.log_end_offset == 0
        log.configure({"message.format.version": 2})
        log.append_batch(raw)


def test_what_conversion_makes_too_large_is_refused_before_the_write(path):
    raw = seglog.build_batch([(b"%d" % n, None) for n in range(2000)], codec="gzip", timestamp=NOW)
    with open_log(path, 0, max_message_bytes=len(raw) + 10) as log:
        with pytest.raises(RecordTooLargeError, match=r"converted from format v2 to v0: .*max\.message\.bytes"):
            log.append_batch(raw)
        assert log.log_end_offset == 0
        assert log.append(b"goes on") == 0


def test_a_follower_keeps_the_leaders_format(path):
    with open_log(path, 1) as log:
        log.append_batch(seglog.build_batch(RECORDS), assign_offsets=False)
        assert batches(log) == [(2, "none")]


# --- on a living log ----------------------------------------------------------------------------------------


def test_one_segment_holds_every_version_and_recovers(path, in_memory):
    with open_log(path, "0.9.0") as log:
        for version in ("0.10.0", "2.8", 1, 0, "2"):
            log.append_many(RECORDS)
            log.append_batch(_batch(2, "gzip"))
            log.configure({"message.format.version": version})
        log.append_many(RECORDS)
        assert [magic for magic, _ in batches(log)] == [0] * 5 + [1] * 5 + [2] * 2 + [1] * 5 + [0] * 5 + [2]
        assert len(log.segments) == 1
        before = rows(log)
        copy = in_memory / "killed" / "orders-0"
        shutil.copytree(path, copy)
    with open_log(copy) as log:
        assert rows(log) == before
        assert log.recovery.lost == ()
        assert log.config.message_format_version == 2


def test_the_version_stays_with_the_log(path):
    with open_log(path, "0.10.2") as log:
        log.append(b"v")
    with open_log(path) as log:
        log.append(b"v")
        assert log.settings["message.format.version"] == (1, "kept", True)
        log.configure({"message.format.version": None})
        log.append(b"v")
    with open_log(path) as log:
        assert log.settings["message.format.version"] == (None, "default", True)
        assert [magic for magic, _ in batches(log)] == [1, 1, 2]


@pytest.mark.parametrize(("given", "meant"), [
    (0, 0), ("1", 1), ("0.8.2", 0), ("0.8.2.2", 0), ("0.9.0", 0), ("0.9", 0), ("0.10.0-IV0", 1), ("0.10.2", 1),
    ("0.11.0", 2), ("1.0", 2), ("1.1.1", 2), ("2.8", 2), ("2.8.2", 2), ("3.0-IV1", 2), ("3.9.1", 2), ("4.1.1", 2),
])
def test_kafkas_version_strings_name_a_format(given, meant):
    assert LogConfig.of({"message.format.version": given}).message_format_version == meant


@pytest.mark.parametrize("given", [
    3, -1, True, 1.0, "0.7.0", "v1", "", "9", "2.8.x", "0.12", "0.12.0", "0.9.1", "0.10.3", "0.11.1", "1.2", "2.9",
    "5.0", "2.80", "2.8.2.1.1.1", "2.\u0668",
])
def test_nothing_else_is_a_format(given):
    with pytest.raises(InvalidConfigError, match=r"message\.format\.version must be 0, 1, 2, or a Kafka version"):
        LogConfig.of({"message.format.version": given})


def test_a_batch_that_was_checked_for_another_version_is_checked_again(path, monkeypatch):
    check, changes = validate.assign, iter([1])

    def assign(*args, **options):
        found = check(*args, **options)
        version = next(changes, None)
        if version is not None:     # behind the check and before the write, as another thread may
            log.configure({"message.format.version": version})
        return found

    monkeypatch.setattr("seglog.format.batch.assign", assign)
    with open_log(path, 2) as log:
        log.append_batch(_batch(2, "none"))     # checked for v2, again for v1, and stored so
        assert batches(log) == [(1, "none")] * 4


def test_records_that_were_made_for_another_version_are_made_again(path, monkeypatch):
    with open_log(path, 2) as log:
        many, versions = type(log._tail.encoder).many, iter([1])

        def made(*args):
            found = many(*args)
            for version in versions:
                log.configure({"message.format.version": version})
            return found

        monkeypatch.setattr(type(log._tail.encoder), "many", made)
        assert log.append_many(RECORDS) == 3
        assert batches(log) == [(1, "none")] * 4


# --- the settings that a log keeps --------------------------------------------------------------------------


def test_settings_last_and_those_of_kafka_that_are_not_known_are_kept(path):
    with open_log(path, segment_bytes="1MiB") as log:
        log.configure({"min.insync.replicas": 2, "segment.bytes": "64k", "linger_ms": "5"})
        assert log.settings["min.insync.replicas"] == ("2", "kept", False)
        for _ in range(20):
            log.append(b"v" * 10_000)
        assert len(log.segments) == 4       # 64 KiB, and not the 1 MiB that it was opened with
    with open_log(path) as log:
        assert (log.config.segment_bytes, log.config.linger_ms) == (64 << 10, 5)
        assert log.settings["segment.bytes"].source == "kept"
        log.configure({"segment.bytes": None, "min.insync.replicas": None})
        assert log.config.segment_bytes == 1 << 30
        assert "min.insync.replicas" not in log.settings
    with open_log(path, segment_bytes="32k") as log:        # what is given comes first
        assert log.config.segment_bytes == 32 << 10


@pytest.mark.parametrize("door", ["open", "open_dir"])
def test_settings_of_kafka_that_are_not_known_may_be_given_at_opening(path, door):
    """They were refused as no keys, although `configure` takes them."""
    given = {"min.insync.replicas": 2, "preallocate": True, "unclean_leader_election_enable": None, "linger.ms": 0}
    for _ in range(2):
        where = path if door == "open" else path.parent
        with getattr(seglog, door)(where, config=given) as opened:
            log = opened if door == "open" else opened.log("orders", 0)
            assert log.settings["min.insync.replicas"] == ("2", "given", False)
            assert [name for name, setting in log.settings.items() if not setting.is_used] == [
                "min.insync.replicas", "preallocate"]
            assert log.settings["linger.ms"].source == "given"
            assert len(log.settings) == len(list(log.settings))
            log.configure({"preallocate": False})
            assert log.settings["preallocate"] == ("false", "kept", False)
            log.configure({"preallocate": None})
            assert "preallocate" not in log.settings
    with seglog.open(path) as log:
        assert "min.insync.replicas" not in log.settings       # it was given, not kept
    with pytest.raises(InvalidConfigError, match=r"no such key: min\.insync\.replica"):
        seglog.open(path, config={"min.insync.replica ": 2})


@pytest.mark.parametrize("wrong", [
    {"segment.bytes": 1}, {"segmnt.bytes": 100}, {"message.format.version": "0.7"}, {"seglog.linger.bytes": -5}, {5: 6},
])
def test_all_settings_are_changed_or_none(path, wrong):
    with open_log(path) as log:
        before = dict(log.settings)
        with pytest.raises(InvalidConfigError):
            log.configure({"segment.ms": 5000, **wrong})
        assert log.settings == before
        assert not (path / FILE_NAME).exists()
        log.append(b"goes on")


def test_settings_go_with_a_backup(path, in_memory):
    with open_log(path, 0) as log:
        log.append(b"v")
        log.snapshot(in_memory / "backup" / "orders-0")
    with open_log(in_memory / "backup" / "orders-0") as log:
        assert log.config.message_format_version == 0


@pytest.mark.parametrize(("raw", "error"), [
    (b"{}", CorruptSettingsError),
    (format_json(FORMAT, 1, settings={"segment.bytes": "100"})[:-9], CorruptSettingsError),
    (format_json(FORMAT, 1, settings={"segment.bytes": 100}), CorruptSettingsError),
    (format_json(FORMAT, 2, settings={}), UnsupportedVersionError),
    (format_json(FORMAT, 1, settings={"segment.bytes": "1"}), InvalidConfigError),
])
def test_settings_that_cannot_be_read_keep_the_log_from_opening(path, raw, error):
    open_log(path).close()
    (path / FILE_NAME).write_bytes(raw)
    with pytest.raises(error) as raised:
        open_log(path)
    assert raised.value.file == str(path / FILE_NAME)
    (path / FILE_NAME).unlink()
    open_log(path).close()


def test_golden_batches_are_stored_through_the_log_as_kafkas_log_validator_made_them(golden_kafka, in_memory):
    """All that LogValidator 3.9.1 was given: its offsets, its bytes where no codec made others, its answer, counted."""
    exact = 0
    for case in sorted((golden_kafka / "convert/up").iterdir()):
        meta = json.loads((case / "meta.json").read_text())
        config = {
            "compression.type": meta["target_codec"], "message.timestamp.type": meta["timestamp_type"],
            "message.timestamp.after.max.ms": 2**63 - 1, "message.timestamp.before.max.ms": 2**63 - 1,
            "message.format.version": meta["to_magic"],
        }
        clock = ManualClock(meta["log_append_time"])
        path = in_memory / case.name / "orders-0"
        with seglog.open(path, config=config, clock=clock, fsync="never") as log:
            before = seglog.build_batch([(b"k", b"v")], base_offset=meta["first_offset"] - 1, leader_epoch=0)
            log.append_batch(before, assign_offsets=False)
            found = log.append_batch((case / "input.log").read_bytes(), leader_epoch=meta["leader_epoch"])
            assert found.last_offset == meta["next_offset"] - 1
            stored = bytes(log.fetch(meta["first_offset"]).view())
            counters = log.format_counters
            counts = [
                sum(one.value for one in counter) for counter in (
                    counters.append_converted_batches, counters.append_recompressed_batches)]
        expected = (case / "output.log").read_bytes()
        assert opened(stored) == opened(expected), case.name
        rebuilt = meta["message_size_maybe_changed"]
        is_converted, is_packed = meta["from_magic"] != meta["to_magic"], meta["target_codec"] != "none"
        assert [count > 0 for count in counts] == [rebuilt and is_converted, rebuilt and is_packed], case.name
        if not rebuilt or meta["target_codec"] in ("none", "lz4"):
            assert stored == expected, case.name
            exact += 1
        shutil.rmtree(path.parent)
    assert exact == 74


def opened(raw):
    """Every record of every batch, by the plain decoder."""
    return [
        record for batch in plain_format.split_batches(raw)
        for record in plain_format.decode_batch(batch, lambda *a: bytes(decompressor()(*a)))
    ]
