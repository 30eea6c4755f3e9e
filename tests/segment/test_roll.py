"""When a segment is left, and what the next one is called: as real Kafka did it, append for append."""
import json

import pytest

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.fs.files import OsFileSystem
from seglog.segment.appender import SegmentAppender
from seglog.segment.indexes import index_bytes
from seglog.segment.roll import new_base_offset
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
