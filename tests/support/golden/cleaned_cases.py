"""The golden cases of Kafka's cleaner, `pairs/compact`: a log before and after one round, and ours held against it.

Every file of a cleaned segment is the same byte for byte; where a batch was compressed again, header for header and
record for record, for codec libraries differ from version to version.
"""
import json
import os
import shutil

import seglog
from seglog.clock import ManualClock
from seglog.format import names
from seglog.log.log import Log
from seglog.state.checkpoints import format_offset_checkpoint
from seglog.upkeep.cleaner import clean
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


def check_golden(case, version):
    check_equal(case, case.expected(version), case.meta["results"][version])


def check_equal(case, expected, result):
    """Our directory is what the real cleaner left in `expected`. Returns how many .log files are the same bytes."""
    found = case.directory
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
            for s in result["segments_after"] if s["base_offset"] == int(stem)
        )
    assert (expected / logs[-1]).read_bytes() == (found / logs[-1]).read_bytes()
    return exact
