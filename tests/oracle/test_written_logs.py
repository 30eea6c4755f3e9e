"""What was written through seglog.open, real Kafka takes for its own: loaded after any stop, searched, read."""
import json

import pytest

import seglog
from support.conversion import kept, rows
from support.kafka_oracle import VERSIONS
from support.written_logs import WRITERS, topic_config, write

pytestmark = pytest.mark.oracle

EMPTY = "0:e3b0c44298fc1c14"        # size and digest of an empty file


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """{name: directory of the log}, each in a log dir of its own with its topic configuration beside it."""
    made = {}
    for name in WRITERS:
        log_dir = tmp_path_factory.mktemp(name)
        made[name] = log_dir / f"{name}-0"
        write(name, made[name])
        (log_dir / "case.json").write_text(json.dumps({"config": topic_config(name)}, separators=(",", ":")))
    return made


@pytest.fixture(params=VERSIONS)
def oracle(kafka_oracle, request):
    return kafka_oracle(request.param)


def test_the_logs_are_of_several_segments_with_index_entries(written):
    """Or what is held of them below would hold of next to nothing."""
    several = [name for name, directory in written.items() if len(list(directory.glob("*.log"))) > 1]
    assert len(several) > 25
    assert sum(path.stat().st_size for directory in written.values() for path in directory.glob("*.index")) > 3000
    assert list(written["minute-index"].glob("*.time.index"))
    assert list(written["time-ranges"].glob("*.ranges.index"))
    assert list((written["quarantined"] / "quarantine").iterdir())


def test_after_any_stop_kafka_loads_it_and_changes_nothing(oracle, written):
    for directory, found in oracle.check(written.values()).items():
        with seglog.open_partition(directory) as partition:
            end, segments = partition.log_end_offset, [s.base_offset for s in partition.segments]
        for start in ("clean", "unclean"):
            answer, where = found[start], (directory.name, start, found[start])
            assert "open_failed" not in answer, where
            # Nothing in logs and indexes. A snapshot of an earlier close goes, as with Kafka's own; a log without
            # epochs gets their empty file.
            changed = {file["file"] for file in answer["files_changed"]}
            assert all(name.endswith(".snapshot") or name == "leader-epoch-checkpoint" for name in changed), where
            if start == "clean":
                assert all(file["after"] in (None, EMPTY) for file in answer["files_changed"]), where
            assert answer["log_end_offset"] == end, where
            assert [segment["base_offset"] for segment in answer["segments"]] == segments, where
            assert all(s["all_crc_valid"] and s["index_sanity"] == "ok" for s in answer["segments"]), where
            assert not answer["kafka_log_messages"], where


def test_every_index_entry_is_one_that_kafka_would_make(oracle, written):
    for directory, found in oracle.index_check(written.values()).items():
        assert (found["bad"], found["notes"]) == ([], []), directory.name


def test_kafka_decodes_every_record_as_we_do(oracle, written):
    for directory, records in oracle.dump(written.values()).items():
        assert [kept(record) for record in records] == [kept(row) for row in rows(directory)], directory.name


def test_kafka_finds_offsets_and_times_where_we_do(oracle, written):
    for directory, answers in oracle.lookups(written.values()).items():
        with seglog.open(directory) as log:
            start = log.log_start_offset    # a line of the log dir, which the oracle does not read
            assert answers["log_end_offset"] == log.log_end_offset
            assert answers["last_stable_offset"] == log.last_stable_offset, directory.name
            segments = {segment.base_offset: segment for segment in log.segments}
            for row in answers["by_offset_in_segment"]:
                found = segments[row["segment_base"]].find_offset(row["target"])
                kafkas = row["translate"] and (row["translate"]["position"], row["translate"]["size"])
                assert (found and (found.position, found.size_bytes)) == kafkas, (directory.name, row)
            for row in answers["whole_log_by_timestamp"]:
                if start == answers["log_start_offset"]:
                    found = log.offset_for_time(row["target"])
                    assert (found and found._asdict()) == row["result"], (directory.name, row)


def test_kafka_reads_our_epochs_aborted_transactions_and_snapshots(oracle, written):
    for directory, found in oracle.index(written.values()).items():
        with seglog.open(directory) as log:
            epochs = "".join(f"{e.epoch} {e.start_offset}\n" for e in log.leader_epochs)
            text = f"0\n{len(log.leader_epochs)}\n{epochs}"
            assert (found.get("leader_epoch_checkpoint") or "0\n0\n") == text, directory.name
        for segment in found["segments"]:
            sane = [segment[key] for key in ("index_sane", "timeindex_sane") if key in segment]
            assert all(answer is True for answer in sane), (directory.name, segment)
        assert all("producers" in snapshot for snapshot in found["producer_snapshots"]), directory.name
