"""A compaction died while its new segments took the place of the old ones: every reader sees what it would have left.

The next writer completes the exchange (state.leftovers, Kafka's LogLoader). Until then some segments have names that
end in `.swap`, and the segments that they replace are still there, or partly gone. Each state here comes from a round
of the cleaner whose file system failed at one change after the other; what a reader must see is what a writer finds
that opens a copy.
"""
import os
import shutil
import time

import pytest

import seglog
from seglog.conversion.directory import convert
from seglog.errors import UnfinishedChangeError
from seglog.format import names
from seglog.log.log import Log
from seglog.log.mirror import mirror
from seglog.reading.follower import Follower
from seglog.reading.listing import settled_log_files
from support.command import seglog as command
from support.command import seglog_json
from support.dead_swaps import CONFIG, dead_in_the_swap, quiet


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    found = list(dead_in_the_swap(tmp_path_factory.mktemp("swaps")))
    assert len(found) > 10
    return found


@pytest.fixture(scope="module")
def last_state(states):
    """The old segments are gone, and the new one has not got its name."""
    fewest = min(len(names.log_files(state)) for state in states)
    return next(
        state for state in states
        if len(names.log_files(state)) == fewest and any(path.stat().st_size for path in state.glob("*.log.swap"))
    )


def files(directory):
    return {p.name: p.read_bytes() for p in directory.iterdir()}


def content(records):
    return [(r.offset, r.key, r.value) for r in records]


def completed(directory, tmp_path):
    """The records, and those of read_committed, that a writer finds which completes the exchange in a copy."""
    copy = shutil.copytree(directory, tmp_path / "completed" / directory.parent.name / "orders-0")
    with Log(copy, config=CONFIG) as log:
        assert not log.recovery.lost
        return content(log.read()), content(log.read(isolation="read_committed"))


def test_every_state_is_read_as_the_next_writer_leaves_it(states, tmp_path):
    swapped, half = 0, 0
    for directory in states:
        before, (everything, committed) = files(directory), completed(directory, tmp_path)
        with seglog.open_partition(directory) as partition:
            assert content(partition.read()) == everything, directory
            assert content(partition.read(isolation="read_committed")) == committed, directory
            assert partition.log_end_offset == everything[-1][0] + 1
            for offset, key, value in everything[::7]:
                assert content([partition[offset]]) == [(offset, key, value)]
            now = [segment.path.name for segment in partition.segments]
            swapped += any(name.endswith(names.SWAP_SUFFIX) for name in now)
            half += not any(name.endswith(names.SWAP_SUFFIX) for name in now)
        assert files(directory) == before
    assert swapped
    assert half         # those where only an index has yet to get its name, too


# --- every door -----------------------------------------------------------------------------------


def dumped(directory, _):
    return [line["offset"] for line in seglog_json("dump", directory) if not line.get("control", True)]


def dumped_in_log_dir(directory, _):
    return dumped(directory.parent, _)


def followed(directory, _):
    with Follower(directory) as log:
        return [record.offset for record in log.read()]


def scanned(directory, _):
    return seglog.scan(directory).to_arrow()["offset"].to_pylist()


def scanned_in_log_dir(directory, _):
    return seglog.scan(directory.parent).to_arrow()["offset"].to_pylist()


def written_to_parquet(directory, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    seglog.write_table(directory, tmp_path / "lake", isolation="read_uncommitted")
    return sorted(parquet.read_table(tmp_path / "lake", columns=["offset"])["offset"].to_pylist())


def mirrored(directory, tmp_path):
    with seglog.open_partition(directory) as source, seglog.open(tmp_path / "copy" / "orders-0") as copy:
        mirror(source, copy)
        return [record.offset for record in copy.read()]


def converted(directory, tmp_path):
    (tmp_path / "converted").mkdir()
    convert(directory, tmp_path / "converted" / "orders-0", to=2)
    with seglog.open_partition(tmp_path / "converted" / "orders-0") as partition:
        return [record.offset for record in partition.read()]


def in_columns(directory, _):
    with seglog.open_partition(directory) as partition:
        return [offset for columns in partition.columns() for offset in columns.offset]


DOORS = [
    dumped, dumped_in_log_dir, followed, scanned, scanned_in_log_dir, written_to_parquet, mirrored, converted,
    in_columns,
]


@pytest.mark.parametrize("door", DOORS)
def test_every_door_shows_what_the_next_writer_would_leave(last_state, tmp_path, door):
    before, (everything, _) = files(last_state), completed(last_state, tmp_path)
    assert door(last_state, tmp_path) == [offset for offset, _, _ in everything]
    assert files(last_state) == before


def test_commands_count_what_the_next_writer_would_leave(last_state, tmp_path):
    everything, _ = completed(last_state, tmp_path)
    copy = tmp_path / "completed" / last_state.parent.name / "orders-0"
    of_swap, of_copy = seglog_json("ls", last_state), seglog_json("ls", copy)
    of_swap, of_copy = (
        [(line["base_offset"], line["next_offset"], line["bytes"]) for line in lines if line["type"] == "segment"]
        for lines in (of_swap, of_copy)
    )
    assert of_swap == of_copy
    records = [seglog_json("stats", path)[0]["records"] for path in (last_state, copy)]
    assert records[0] == records[1] >= len(everything)
    found = seglog_json("seek", last_state, "--offset", everything[0][0])
    assert found[0]["offset"] == everything[0][0]


def test_verify_reads_the_new_segments_and_names_what_is_left_to_do(last_state, tmp_path):
    everything, _ = completed(last_state, tmp_path)
    report = seglog.verify(last_state, level="deep")
    found = {finding.code for finding in report.findings}
    # An orphan is of a replaced segment.
    assert {"leftover"} <= found <= {"leftover", "orphan_index", "segment_gap_compacted"}
    assert report.records >= len(everything)
    assert report.log_end_offset == everything[-1][0] + 1


def test_a_directory_with_nothing_but_a_swap_is_a_partition(last_state, tmp_path):
    directory = shutil.copytree(last_state, tmp_path / "only" / "orders-0")
    for path in directory.iterdir():
        if not path.name.endswith(names.SWAP_SUFFIX):
            path.unlink()
    quiet(directory)
    expected = [offset for offset, _, _ in completed(directory, tmp_path)[0]]
    assert expected
    for door in (dumped, dumped_in_log_dir, scanned, scanned_in_log_dir):
        assert door(directory, None) == expected
    assert seglog_json("ls", directory.parent)[0]["partition"] == "orders-0"


# --- a .swap that cannot be what was to be put in place --------------------------------------------


@pytest.fixture
def damaged(last_state, tmp_path):
    directory = shutil.copytree(last_state, tmp_path / "damaged" / "orders-0")
    log = max(directory.glob("*.log.swap"), key=lambda path: path.stat().st_size)
    raw = bytearray(log.read_bytes())
    raw[-3] ^= 1
    log.write_bytes(raw)
    quiet(directory)
    return directory


@pytest.mark.parametrize("door", DOORS)
def test_no_door_reads_past_a_damaged_swap(damaged, tmp_path, door):
    if door in (dumped, dumped_in_log_dir):
        result = command("dump", damaged if door is dumped else damaged.parent, status=None)
        assert result.exit_code
        assert "seglog recover" in result.output
        assert "checksum" in result.output
        return
    with pytest.raises(UnfinishedChangeError) as error:
        door(damaged, tmp_path)
    assert error.value.file.endswith(".log.swap")
    assert error.value.position is not None


@pytest.mark.parametrize("words", [("ls",), ("stats",), ("verify",), ("seek", "--offset", "3")])
def test_no_command_passes_over_a_damaged_swap(damaged, words):
    result = command(words[0], damaged, *words[1:], status=None)
    assert result.exit_code
    assert "seglog recover" in result.output


def test_recover_completes_what_readers_refuse(damaged, tmp_path):
    command("recover", damaged, "--mode", "quarantine", "--apply", status=None)
    with seglog.open_partition(damaged) as partition:
        assert list(partition.read())
    assert not [name for name in os.listdir(damaged) if name.endswith(names.SWAP_SUFFIX)]


def test_explain_names_recover():
    assert "seglog recover" in command("explain", "unfinished_change").stdout


# --- readers that were there before the writer ------------------------------------------------------


def test_a_reader_keeps_its_segment_if_a_writer_completes_the_exchange(last_state, tmp_path):
    directory = shutil.copytree(last_state, tmp_path / "later" / "orders-0")
    quiet(directory)
    with seglog.open_partition(directory) as partition, Follower(directory) as follower:
        assert any(segment.path.name.endswith(names.SWAP_SUFFIX) for segment in partition.segments)
        everything = content(follower.read())
        with Log(directory, config=CONFIG) as log:
            assert content(log.read()) == everything
            assert content(partition.read()) == content(follower.read()) == everything
        partition.refresh()
        assert not any(segment.path.name.endswith(names.SWAP_SUFFIX) for segment in partition.segments)
        assert content(partition.read()) == content(follower.read()) == everything


def test_a_follower_does_not_check_a_swap_at_every_look(last_state, tmp_path, monkeypatch):
    settled_log_files(last_state)
    monkeypatch.setattr("seglog.reading.listing.Segment", None)
    began_s = time.thread_time()
    for _ in range(20):
        assert settled_log_files(last_state)
    assert time.thread_time() - began_s < 1
