"""What recovery leaves, real Kafka opens as it is: neither a clean nor an unclean start changes a byte of it."""
import json
import os
import random
import shutil
from itertools import product
from typing import NamedTuple

import pytest

from seglog.config import LogConfig
from seglog.format.batch import build_batch
from seglog.format.names import RECOVERY_POINT_CHECKPOINT
from seglog.log.log import Log
from seglog.state.checkpoints import format_offset_checkpoint
from seglog.upkeep.recover import recover
from seglog.verification.next_start import NextStart
from support.golden import unpack
from support.kafka_oracle import VERSIONS
from support.killed_logs import WRITTEN_MS, Kill, meanings, program

pytestmark = pytest.mark.oracle

KILLED = 300 if os.environ.get("SEGLOG_TORTURE") else 60

KEYS = ("segment.bytes", "segment.index.bytes", "index.interval.bytes", "max.message.bytes")


@pytest.fixture(scope="module", params=["truncate", "quarantine"])
def recovered(request, tmp_path_factory):
    """Every damaged golden directory, recovered: directory -> what was said of it."""
    root, done = tmp_path_factory.mktemp(request.param), {}
    for case in sorted((unpack("kafka") / "corrupt").iterdir()):
        place = root / case.name
        place.mkdir()
        shutil.copy(case / "case.json", place)
        config = json.loads((case / "case.json").read_text())["config"]
        target = place / f"{case.name}-0"
        settings = {key: config[key] for key in KEYS if key in config}
        done[target] = recover(case / target.name, target, mode=request.param, config=settings)
    return done


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_opens_it_and_changes_nothing(kafka_oracle, recovered, version):
    for directory, found in kafka_oracle(version).check(recovered).items():
        for start in ("clean", "unclean"):
            answer = found[start]
            assert "open_failed" not in answer, (directory.name, answer)
            assert not answer["log_truncated_or_changed"], (directory.name, start)
            assert not answer["index_rebuilt_or_changed"], (directory.name, start, answer["files_changed"])
            assert answer["log_end_offset"] == recovered[directory].log_end_offset, directory.name
            assert all(segment["all_crc_valid"] for segment in answer["segments"]), directory.name


@pytest.fixture(scope="module")
def killed(kafka_oracle, tmp_path_factory):
    """Logs of six segments that a kill has left, and what ours made of each: directory -> (kill, log, files)."""
    root = tmp_path_factory.mktemp("killed")
    programs = {root / f"before/log{seed}-0": program(random.Random(seed)) for seed in range(KILLED)}
    for answers in kafka_oracle("4.1.1").run(programs).values():
        assert not any("refused" in answer for answer in answers)
    done = {}
    for seed, directory in enumerate(programs):
        kill = Kill.of(random.Random(1000 + seed), directory)
        ours = shutil.copytree(directory, root / "ours" / directory.name)
        done[directory] = kill, kill.recover(ours), meanings(ours)
    return done


@pytest.mark.parametrize("version", ["2.8.2", *VERSIONS])
def test_a_killed_log_of_six_segments_is_recovered_to_the_files_of_kafka(kafka_oracle, killed, version, tmp_path):
    copies = {shutil.copytree(directory, tmp_path / directory.name): directory for directory in killed}
    found = kafka_oracle(version).recover_in_place({copy: killed[d][0] for copy, d in copies.items()}, tmp_path)
    for copy, directory in copies.items():
        kill, loaded, ours = killed[directory]
        assert found[copy] == {"start": loaded.log_start_offset, "end": loaded.next_offset}, (directory.name, kill)
        kafkas = meanings(copy)
        if loaded.log_start_offset == loaded.next_offset:
            # Of an empty log Kafka keeps the last epoch at every other recovery.
            kafkas.pop("leader-epoch-checkpoint", None)
            ours.pop("leader-epoch-checkpoint", None)
        assert ours.keys() == kafkas.keys(), (directory.name, kill)
        assert not [name for name in ours if ours[name] != kafkas[name]], (directory.name, kill)


@pytest.mark.parametrize("version", ["2.8.2", *VERSIONS])
def test_an_offset_that_goes_back_stops_kafka_only_where_an_index_entry_is_due(kafka_oracle, version, tmp_path):
    def batch(offset):
        return build_batch([(b"k", b"v" * 40)], base_offset=offset, timestamp=WRITTEN_MS, leader_epoch=0)

    log = b"".join(map(batch, [0, 1, 2, 1, 3]))
    kills, entry_due = {}, {}
    for interval, is_due in {1_000_000: False, len(batch(0)) + 10: False, 1: True}.items():
        directory = tmp_path / f"every{interval}-0"
        directory.mkdir()
        (directory / f"{0:020d}.log").write_bytes(log)
        kills[directory] = Kill(0, 0, WRITTEN_MS, (), (("index.interval.bytes", interval),))
        entry_due[directory] = is_due
    for directory, answer in kafka_oracle(version).recover_in_place(kills, tmp_path).items():
        assert ("InvalidOffsetException" in answer.get("failed", "")) == entry_due[directory], answer
        assert (directory / f"{0:020d}.log").read_bytes() == log
        if not entry_due[directory]:
            assert answer == {"start": 0, "end": 4}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_aborted_transactions_of_a_compacted_log_are_those_that_kafka_recovers(kafka_oracle, version, tmp_path):
    """A cleaner leaves lines with the last stable offsets of its day; from what is left a recovery comes to others."""
    given = {}
    for case in sorted((unpack("kafka") / "pairs" / "compact").glob("v2-txn-*")):
        cleaned = f"after-{version}" if (case / f"after-{version}").exists() else "after-4.1.1"
        for part in ("before", cleaned):
            for has_snapshots in (True, False):
                directory = tmp_path / f"{case.name}-{part}-{has_snapshots}" / f"{case.name}-0"
                shutil.copytree(case / part / directory.name, directory)
                for snapshot in [] if has_snapshots else directory.glob("*.snapshot"):
                    snapshot.unlink()
                given[directory] = aborted_lines(directory)
    changed = 0
    for directory, theirs in kafka_oracle(version).recover(given).items():
        expected = aborted_lines(theirs)
        ours = directory.parent / "ours" / directory.name
        ours.parent.mkdir()
        recover(directory, ours, mode="truncate")
        assert aborted_lines(ours) == expected, directory
        with Log(directory, fsync="never"):
            assert aborted_lines(directory) == expected, directory
        changed += expected != given[directory]
    assert len(given) == 12
    assert changed > 0


def aborted_lines(directory):
    found = {path.name: path.read_bytes() for path in directory.glob("*.txnindex")}
    return {name: raw for name, raw in found.items() if raw}


class UncleanStop(NamedTuple):
    """A recovery point after a kill, as `recover_in_place` takes it."""

    recovery_point: int
    settings: dict

    def line(self, directory):
        config = " ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{directory} 0 {self.recovery_point} {WRITTEN_MS} retention.ms=-1 {config}".strip()


def test_a_start_cuts_what_verify_says(kafka_oracle, tmp_path):
    """Damage below the recovery point stays, unless its segment has no .index: then that segment alone is cut, wherever
    it is."""
    stops, foretold = {}, {}
    for case in sorted((unpack("kafka") / "corrupt").glob("*--flip-*")):
        config = json.loads((case / "case.json").read_text())["config"]
        settings = {key: config[key] for key in KEYS if key in config}
        bases = sorted(int(log.stem) for log in (case / f"{case.name}-0").glob("*.log"))
        points = [*bases, *(base + 1 for base in bases), bases[-1] + 10_000]
        for n, (recovery_point, lacks_index) in enumerate(product(points, (False, True))):
            directory = shutil.copytree(case / f"{case.name}-0", tmp_path / f"{case.name}-{n}/orders-0")
            if lacks_index:
                for index in directory.glob("*.index"):
                    index.unlink()
            (directory.parent / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
            (directory.parent / RECOVERY_POINT_CHECKPOINT).write_bytes(
                format_offset_checkpoint({("orders", 0): recovery_point}))
            sizes = {log.name: log.stat().st_size for log in directory.glob("*.log")}
            for cut in NextStart(directory, bases).cuts(LogConfig.of(settings)):
                name = os.path.basename(cut.file)
                sizes[name] = min(sizes[name], cut.position)
            foretold[directory] = {name: size for name, size in sizes.items() if size}
            stops[directory] = UncleanStop(recovery_point, settings)
    answers = kafka_oracle("4.1.1").recover_in_place(stops, tmp_path)
    assert not any("failed" in answer for answer in answers.values())
    left = {
        directory: {log.name: log.stat().st_size for log in directory.glob("*.log") if log.stat().st_size}
        for directory in stops
    }
    assert left == foretold
    assert len({tuple(sizes.items()) for sizes in left.values()}) > 12
