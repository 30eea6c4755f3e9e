"""When a segment is left, and what the next one is called: as real Kafka did it, append for append."""
import json

import pytest

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.fs.files import OsFileSystem
from seglog.segment.appender import SegmentAppender
from seglog.segment.indexes import index_bytes
from seglog.segment.roll import RELATIVE_OFFSET_MAX, RollRule, new_base_offset, segment_jitter_ms
from seglog.segment.segment import Segment
from support.golden import unpack

SEQUENCES = sorted(path.name for path in (unpack("kafka") / "pairs/roll").iterdir())
NOW = 1_700_000_000_000


class Replay:
    """Does with SegmentAppender what steps.json says; a leader's appends are those that Kafka's log holds."""

    def __init__(self, sequence, directory):
        self.steps = json.loads((sequence / "steps.json").read_text())
        self.raw = (sequence / "appends.bin").read_bytes()
        self.written = b"".join(p.read_bytes() for p in sorted((sequence / "after-4.1.1").glob("*-0/*.log")))
        self.config = LogConfig.of(self.steps["config"])
        self.directory = directory
        self.fs = OsFileSystem()
        self.bases = [0]
        self.active = SegmentAppender.create(
            self.fs, directory, 0, self.config, self.steps["log_created_at_clock"]
        )

    def run(self):
        done = 0
        for step in self.steps["steps"]:
            if step["op"] == "append":
                # What a leader appends gets its offsets there: the same bytes in number, so that their place tells.
                raw = self.written[done : done + step["length"]]
                if step["mode"] == "follower":
                    assert scan(Window(self.raw[step["position"] :][: step["length"]])).stop == 0
                self.append(raw, step)
                done += len(raw)
            elif step["op"] == "reopen":
                self.active.seal()
                self.active.close()
                self.active = SegmentAppender.open(
                    self.fs, self.directory, self.active.base_offset, self.config, self.active.size_bytes,
                    self.active.next_offset, step["clock"],
                )
            elif self.active.next_offset > self.active.base_offset:     # op "roll": an empty one is the new one
                self.roll(self.active.next_offset, step)
            yield step
        assert done == len(self.written)
        self.active.seal()
        self.active.close()

    def append(self, raw, step):
        window = Window(raw)
        table = scan(window)
        last = table[len(table) - 1]
        if self.active.should_roll(len(raw), table.max_timestamp, last.last_offset, step["clock"]):
            first = table[0].base_offset if table[0].magic == 2 or step["mode"] != "follower" else None
            base = new_base_offset(first, last.last_offset, self.active.next_offset)
            self.roll(base, step)
        self.active.append(window, table)

    def roll(self, base, step):
        self.active.seal()
        self.active.close()
        self.active = SegmentAppender.create(self.fs, self.directory, base, self.config, step["clock"])
        self.bases.append(base)


@pytest.mark.parametrize("version", ["3.9.1", "4.1.1"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_log_rolls_where_kafka_rolled_it(tmp_path, name, version):
    sequence = unpack("kafka") / "pairs/roll" / name
    result = json.loads((sequence / f"result-{version}.json").read_text())
    replay = Replay(sequence, tmp_path)
    for step, expected in zip(replay.run(), result["steps"], strict=True):
        assert replay.active.base_offset == expected["active_base_offset"], step
        assert replay.active.size_bytes == expected["active_size"], step
        assert len(replay.bases) == expected["segments"], step
        assert replay.active.next_offset == expected["log_end_offset"], step
    written = sequence / f"after-{version}" / f"{name}-0"
    theirs = {p.name: p.read_bytes() for p in written.iterdir() if p.suffix in (".log", ".index", ".timeindex")}
    ours = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    if name != "reopen":
        assert ours == theirs
        return
    # Kafka counts anew when it opens a log; ours stay what the log says.
    assert ours.keys() == theirs.keys()
    assert ours != theirs
    for log in tmp_path.glob("*.log"):
        assert ours[log.name] == theirs[log.name]
        right = index_bytes(Segment(log), replay.config)
        assert ours[log.with_suffix(".index").name] == right.offset_index
        assert ours[log.with_suffix(".timeindex").name] == right.time_index


# --- the rule by itself --------------------------------------------------------------------------


def is_due(rule, size_bytes=100, entries_left=5, append_bytes=10, max_timestamp=NOW, last_offset=7, now_ms=NOW):
    return rule.is_due(size_bytes, entries_left, append_bytes, max_timestamp, last_offset, now_ms)


def test_records_without_a_time_wait_by_the_clock():
    rule = RollRule(0, LogConfig.of({"segment.ms": 1000}), NOW)
    rule.first_timestamp = -1
    assert not is_due(rule, max_timestamp=NOW * 2, now_ms=NOW + 1000)
    assert is_due(rule, max_timestamp=-1, now_ms=NOW + 1001)
    rule.first_timestamp = NOW
    assert not is_due(rule, max_timestamp=NOW + 1000, now_ms=NOW * 2)
    assert is_due(rule, max_timestamp=NOW + 1001, now_ms=NOW)
    assert not is_due(rule, size_bytes=0, max_timestamp=NOW + 1001)


def test_offsets_that_no_entry_can_hold_begin_a_segment_also_below_the_base():
    rule = RollRule(10, LogConfig(), NOW)
    assert not is_due(rule, last_offset=10 + RELATIVE_OFFSET_MAX)
    assert is_due(rule, last_offset=11 + RELATIVE_OFFSET_MAX)
    assert is_due(rule, last_offset=9)
    assert is_due(rule, last_offset=10, entries_left=0)


def test_jitter_shortens_the_time_of_a_segment():
    config = LogConfig.of({"segment.ms": 1000, "segment.jitter.ms": 5000})
    asked = []
    assert segment_jitter_ms(config, lambda most: asked.append(most) or 300) == 300
    assert asked == [1000]
    assert segment_jitter_ms(LogConfig(), None) == 0
    rule = RollRule(0, config, NOW, jitter_ms=300)
    rule.first_timestamp = NOW
    assert not is_due(rule, max_timestamp=NOW + 700)
    assert is_due(rule, max_timestamp=NOW + 701)


def test_the_base_of_a_new_segment():
    assert new_base_offset(50, 60, 40) == 50
    assert new_base_offset(None, 60, 40) == 40
    assert new_base_offset(None, 40 + 2**31, 40) == 41


@pytest.mark.parametrize("idle_roll", [True, False])
def test_an_idle_segment_is_rolled_by_the_clock_where_it_is_asked_for(tmp_path, idle_roll):
    config = LogConfig.of({"segment.ms": 1000, "seglog.segment.idle.roll": idle_roll})
    fs = OsFileSystem()
    active = SegmentAppender.create(fs, tmp_path, 0, config, NOW)
    assert not active.idle_roll_is_due(NOW + 5000)      # it is empty
    builder = BatchBuilder(0)
    builder.append(0, 5, None, b"an old record")
    active.append_batch(bytes(builder.finish()), 0, 0, 5)
    assert not active.idle_roll_is_due(NOW + 1000)
    assert active.idle_roll_is_due(NOW + 1001) is idle_roll
    active.close()
    fs.set_mtime(active.path, (NOW - 2000) * 1_000_000)
    active = SegmentAppender.open(fs, tmp_path, 0, config, active.size_bytes, 1, NOW)
    assert active.idle_roll_is_due(NOW) is idle_roll
    active.close()
