"""Compaction against Kafka's own cleaner: `pairs/compact`, before and after by 3.9.1, and with the upgrade by 4.1.1.

Every file of a cleaned segment is the same byte for byte; where a batch was compressed again, header for header and
record for record, for codec libraries differ from version to version.
"""
import json
import os
import shutil

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.format import names
from seglog.log.log import Log
from seglog.state.checkpoints import format_offset_checkpoint
from seglog.upkeep.cleaner import clean
from seglog.upkeep.cleaning_round import CleaningLimits
from support.golden import unpack

CASES = sorted(path.name for path in (unpack("kafka") / "pairs" / "compact").iterdir())


def case_of(name):
    return unpack("kafka") / "pairs" / "compact" / name


class Case:
    """A golden case, laid out in a log dir of its own with the file times that it is about."""

    def __init__(self, name, root, **config):
        self.name = name
        self.path = case_of(name)
        self.meta = json.loads((self.path / "meta.json").read_text())
        self.options = self.meta["options"]
        self.directory = root / f"{name}-0"
        shutil.copytree(self.path / "before" / f"{name}-0", self.directory)
        (root / names.CLEAN_SHUTDOWN).touch()
        for segment in self.meta["results"]["3.9.1"]["segments_before"]:
            if segment["mtime"] is not None:        # of a segment that was rolled in the run
                self.set_time(segment["base_offset"], segment["mtime"])
        self.put("first.dirty", names.CLEANER_CHECKPOINT)
        self.put("log.start.offset", names.LOG_START_OFFSET_CHECKPOINT)
        self.config = self.meta["config"] | config

    @staticmethod
    def results(name):
        return json.loads((case_of(name) / "meta.json").read_text())["results"]

    def set_time(self, base_offset, mtime_ms):
        for file in self.directory.glob(f"{base_offset:020d}.*"):
            os.utime(file, ns=(mtime_ms * 1_000_000,) * 2)

    def put(self, option, checkpoint):
        if option in self.options:
            raw = format_offset_checkpoint({(self.name, 0): int(self.options[option])})
            (self.directory.parent / checkpoint).write_bytes(raw)

    def open(self):
        """Not by `seglog.open`: such a log cleans itself in a thread."""
        return Log(
            self.directory, config=self.config, fsync="never", clock=ManualClock(self.meta["now"]), create=False
        )

    def clean(self, **settings):
        """As the real one was told to."""
        high_watermark = self.options.get("hw")
        with self.open() as log:
            if self.options.get("roll") == "1":
                log.roll()
            return clean(
                log, high_watermark=None if high_watermark is None else int(high_watermark), **settings
            )

    def expected(self, version):
        return self.path / f"after-{version}" / f"{self.name}-0"


def batches_of(directory, name):
    with seglog.open_partition(directory) as partition:
        segment = next(s for s in partition.segments if s.path.name == name)
        return [(header_of(batch), [record_of(r) for r in batch]) for batch in segment.batches()]


def header_of(batch):
    return (
        batch.base_offset, batch.last_offset, batch.magic, batch.codec, batch.timestamp_type, batch.base_timestamp,
        batch.max_timestamp, batch.delete_horizon_ms, batch.producer_id, batch.producer_epoch, batch.base_sequence,
        batch.leader_epoch, batch.is_transactional, batch.is_control,
    )


def record_of(record):
    return record.offset, record.timestamp, record.key, record.value, tuple(record.headers)


def files_of(directory):
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
        for path in directory.iterdir() if names.parse_file_name(path.name) is not None
    }


def check_equal(case, version):
    expected, found = case.expected(version), case.directory
    logs = sorted(path.name for path in expected.glob("*.log"))
    assert sorted(path.name for path in found.glob("*.log")) == logs
    exact = 0
    for log in logs[:-1]:
        theirs, ours = batches_of(expected, log), batches_of(found, log)
        assert ours == theirs, log
        is_plain = (expected / log).read_bytes() == (found / log).read_bytes()
        exact += is_plain
        assert is_plain or any(header[3] != 0 for header, _ in theirs), log
        stem = log.removesuffix(".log")
        for suffix in (".index", ".timeindex", ".txnindex"):
            theirs, ours = expected / (stem + suffix), found / (stem + suffix)
            if suffix == ".txnindex" or is_plain:
                assert ours.exists() == theirs.exists(), (log, suffix)
                assert not ours.exists() or ours.read_bytes() == theirs.read_bytes(), (log, suffix)
        assert (found / log).stat().st_mtime_ns // 10**6 == next(
            s["mtime"] or (found / log).stat().st_mtime_ns // 10**6
            for s in case.meta["results"][version]["segments_after"] if s["base_offset"] == int(stem)
        )
    assert (expected / logs[-1]).read_bytes() == (found / logs[-1]).read_bytes()
    return exact


@pytest.mark.parametrize("name", [name for name in CASES if name != "v2-dedupe-full"])
def test_what_is_left_is_what_3_9_1_leaves_and_a_second_run_changes_nothing(name, in_memory):
    case = Case(name, in_memory)
    done = case.clean()
    real = case.meta["results"]["3.9.1"]
    assert done.first_dirty_offset == real["first_dirty_offset"]
    if real["end_offset"] >= 0:
        assert done.end_offset == real["end_offset"]
    else:
        assert done.outcome == "nothing"
    check_equal(case, "3.9.1")
    before = files_of(case.directory)
    case.options.pop("roll", None)
    assert case.clean().outcome == "nothing"
    assert files_of(case.directory) == before


# 4.1.1 itself fails on two of them (below).
UPGRADED = [name for name in CASES if name != "v2-dedupe-full" and "error" not in Case.results(name)["4.1.1"]]


@pytest.mark.parametrize("name", UPGRADED)
def test_with_the_upgrade_it_is_what_4_1_1_leaves(name, in_memory):
    case = Case(name, in_memory, **{"seglog.compaction.upgrade.format": "true"})
    case.clean()
    check_equal(case, "4.1.1")


@pytest.mark.parametrize("name", ["v1-last-tombstone-r2", "v1-null-keys"])
def test_where_4_1_1_fails_the_upgrade_goes_on(name, in_memory):
    """The last v0 or v1 batch of the round loses all its records (MemoryRecords.java:193)."""
    assert "Empty batches" in Case.results(name)["4.1.1"]["error"]
    case = Case(name, in_memory, **{"seglog.compaction.upgrade.format": "true"})
    assert case.clean().outcome == "cleaned"
    with seglog.open_partition(case.directory) as ours, seglog.open_partition(case.expected("3.9.1")) as theirs:
        active = ours.segments[-1].base_offset
        assert all(batch.magic == 2 for batch in ours.batches() if batch.last_offset < active)
        assert [record_of(r) for r in ours] == [record_of(r) for r in theirs]


def test_a_full_map_takes_more_rounds_and_cleans_to_the_end(in_memory):
    """Kafka stops at the record that fills the map, and at offset 34 of 70 the round ends."""
    case = Case("v2-dedupe-full", in_memory)
    dedupe_bytes = int(case.options["dedupe.bytes"])
    done = case.clean(limits=CleaningLimits(dedupe_buffer_bytes=dedupe_bytes))
    real = case.meta["results"]["3.9.1"]
    assert real["end_offset"] < real["first_uncleanable_offset"] == done.end_offset
    assert done.rounds > 1
    with seglog.open_partition(case.path / "before" / case.directory.name) as before:
        records = [r for r in before if r.offset < done.end_offset]
    last = {r.key: r.offset for r in records}
    with seglog.open_partition(case.directory) as after:
        kept = [r for r in after if r.offset < done.end_offset]
    assert [record_of(r) for r in kept] == [record_of(r) for r in records if last[r.key] == r.offset]
