"""What open logs share with their log dir: checkpoint lines, and the marks that say who is clean."""
import os
import subprocess
import sys
import threading

import pytest

from seglog.errors import (
    CorruptCheckpointError,
    ForkedHandleError,
    InvalidArgumentError,
    LogClosedError,
    LogLockedError,
    NotALogError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.state.checkpoints import format_offset_checkpoint, read_offset_checkpoint
from seglog.state.clean_marks import CLEAN_MARK, PARTITION_MARK, PERIOD_FILE, PartitionMark, PartitionState, Period
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import PartitionHold

FS = OsFileSystem()
BROKERS_MARK = b'{"version":0,"brokerEpoch":31}'
# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
MERGES = 4000 if os.environ.get("SEGLOG_TORTURE") else 200


@pytest.fixture
def log_dir(tmp_path):
    """A log dir of three partitions, as a broker leaves it that stopped cleanly."""
    for number in range(3):
        (tmp_path / f"orders-{number}").mkdir()
    (tmp_path / names.CLEAN_SHUTDOWN).write_bytes(BROKERS_MARK)
    (tmp_path / names.LOG_START_OFFSET_CHECKPOINT).write_bytes(b"0\n0\n")
    return tmp_path


def hold(log_dir, number=0):
    return PartitionHold(FS, log_dir / f"orders-{number}")


def write(log_dir, number=0):
    """Open a partition and write to it."""
    held = hold(log_dir, number)
    held.before_first_write()
    return held


def crash(*holds):
    """Their process dies: locks go, files stay."""
    for held in holds:
        held.close(clean=False)


def broker_dies(log_dir, loaded=range(3)):
    """A broker starts over the log dir, and is killed: its mark is away, its checkpoint files are there.

    Of the partitions that it loaded it removed what is named as deleted (LogLoader).
    """
    (log_dir / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    (log_dir / names.LOG_START_OFFSET_CHECKPOINT).touch()
    for number in loaded:
        for path in (log_dir / f"orders-{number}").glob("*.deleted"):
            path.unlink()


def is_clean(log_dir, number):
    held = hold(log_dir, number)
    held.close(clean=False)
    return held.clean


def mark(log_dir):
    path = log_dir / names.CLEAN_SHUTDOWN
    return path.read_bytes() if path.exists() else None


def content(log_dir):
    files = (path for path in log_dir.rglob("*") if path.is_file() and "lock" not in path.name)
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in files}


# --- Kafka's clean-shutdown file --------------------------------------------------------------------------------


def test_opening_and_closing_changes_no_file_but_locks(log_dir):
    before = content(log_dir)
    held = hold(log_dir)
    assert held.clean
    held.close(clean=True)
    assert content(log_dir) == before


def test_the_first_write_takes_kafkas_mark_away_and_a_clean_close_puts_it_back_as_it_was(log_dir):
    held = write(log_dir)
    assert mark(log_dir) is None
    held.close(clean=True)
    assert mark(log_dir) == BROKERS_MARK
    assert not list(log_dir.rglob("*.seglog.[cm]*"))


def test_only_the_last_writer_puts_it_back(log_dir):
    one, two = write(log_dir, 0), write(log_dir, 1)
    one.close(clean=True)
    assert mark(log_dir) is None
    two.close(clean=True)
    assert mark(log_dir) == BROKERS_MARK


def test_who_opened_and_did_not_write_holds_it_up_no_longer_than_a_writer(log_dir):
    reader, writer = hold(log_dir, 1), write(log_dir, 0)
    writer.close(clean=True)
    assert mark(log_dir) == BROKERS_MARK
    reader.before_first_write()
    assert mark(log_dir) is None
    reader.close(clean=True)
    assert mark(log_dir) == BROKERS_MARK


def test_a_partition_is_clean_beside_one_that_is_being_written(log_dir):
    held = write(log_dir, 0)
    assert is_clean(log_dir, 1)
    held.close(clean=True)


def test_a_dead_writer_keeps_the_mark_away_until_its_partition_was_recovered(log_dir):
    dead, other = write(log_dir, 0), write(log_dir, 1)
    crash(dead)
    other.close(clean=True)
    assert mark(log_dir) is None
    write(log_dir, 1).close(clean=True)
    assert mark(log_dir) is None

    recovered = hold(log_dir, 0)
    assert not recovered.clean
    recovered.close(clean=True)
    assert mark(log_dir) == BROKERS_MARK


def test_after_the_only_writer_died_the_others_are_clean_all_the_same(log_dir):
    crash(write(log_dir, 0))
    assert [is_clean(log_dir, number) for number in range(3)] == [False, True, True]


def write_unordered(log_dir):
    held = write(log_dir)
    held.before_unordered_writes()
    return held


def test_who_recovers_learns_that_batches_were_written_unsynced_beside_each_other(log_dir):
    crash(write_unordered(log_dir))
    recovered = hold(log_dir)
    assert (recovered.clean, recovered.unordered) == (False, True)
    crash(recovered)
    assert hold(log_dir, 1).unordered is False


def test_it_is_forgotten_with_the_next_first_write_and_with_a_clean_close(log_dir):
    crash(write_unordered(log_dir))
    crash(write(log_dir))
    recovered = hold(log_dir)
    assert (recovered.clean, recovered.unordered) == (False, False)
    recovered.before_first_write()
    recovered.before_unordered_writes()
    recovered.close(clean=True)
    recovered = hold(log_dir)
    assert (recovered.clean, recovered.unordered) == (True, False)


def test_it_is_known_also_where_a_broker_may_have_been_here_since(log_dir):
    """A log dir with a log start cannot tell. A broker leaves batches unsynced beside each other, too."""
    crash(write_unordered(log_dir))
    broker_dies(log_dir)
    held = hold(log_dir)
    assert (held.clean, held.unordered) == (False, True)


def test_a_log_that_failed_stays_dirty(log_dir):
    write(log_dir, 0).close(clean=False)
    assert not is_clean(log_dir, 0)
    assert mark(log_dir) is None


def test_where_a_broker_died_all_are_unclean_until_each_was_recovered(log_dir):
    broker_dies(log_dir)
    for number in range(3):
        assert mark(log_dir) is None
        recovered = hold(log_dir, number)
        assert not recovered.clean
        recovered.before_first_write()
        recovered.close(clean=True)
        assert is_clean(log_dir, number)
    assert mark(log_dir) == b""     # nobody knows a broker's epoch; Kafka up to 3.6 wrote it so


def test_what_was_recovered_is_unclean_again_after_its_next_writer_died(log_dir):
    broker_dies(log_dir)
    hold(log_dir, 0).close(clean=True)
    crash(write(log_dir, 0))
    assert not is_clean(log_dir, 0)


def test_a_new_log_dir_gets_a_mark(tmp_path):
    held = write(tmp_path / "new", 0)
    assert held.created
    held.close(clean=True)
    assert mark(tmp_path / "new") == b""
    assert is_clean(tmp_path / "new", 0)


def test_deleted_partitions_and_the_metadata_log_do_not_count(tmp_path):
    for name in (f"orders-5.{0:032x}-delete", "__cluster_metadata-0", "no partition"):
        (tmp_path / name).mkdir()
    write(tmp_path).close(clean=True)
    assert mark(tmp_path) == b""


@pytest.mark.parametrize("kind", [names.FUTURE, names.STRAY])
def test_future_and_stray_partitions_count(tmp_path, kind):
    (tmp_path / f"orders-5.{0:032x}-{kind}").mkdir()
    write(tmp_path).close(clean=True)
    assert mark(tmp_path) is None


# --- a broker in between -------------------------------------------------------------------------


def test_a_broker_that_died_after_us_voids_what_we_knew(log_dir):
    crash(write(log_dir, 0))
    broker_dies(log_dir)
    assert [is_clean(log_dir, number) for number in range(3)] == [False] * 3
    hold(log_dir, 0).close(clean=True)
    assert mark(log_dir) is None


def test_a_broker_that_stopped_cleanly_after_us_is_believed(log_dir):
    crash(write(log_dir, 0))
    broker_dies(log_dir)
    (log_dir / names.CLEAN_SHUTDOWN).write_bytes(b"")
    assert is_clean(log_dir, 0)
    write(log_dir, 1).close(clean=True)
    assert mark(log_dir) == b""


LOG_START = b"0\n1\nother 7 12\n"


def test_a_log_start_checkpoint_with_lines_is_kept_and_costs_the_memory_of_a_crash(log_dir):
    (log_dir / names.LOG_START_OFFSET_CHECKPOINT).write_bytes(LOG_START)
    dead, other = write(log_dir, 0), hold(log_dir, 1)
    assert is_clean(log_dir, 2)
    crash(dead)
    assert is_clean(log_dir, 2)     # `other` was there all the time: no broker was
    other.close(clean=True)
    assert not is_clean(log_dir, 2)
    assert (log_dir / names.LOG_START_OFFSET_CHECKPOINT).read_bytes() == LOG_START


def test_partitions_that_are_recovered_one_after_the_other_stay_clean_also_above_a_log_start(log_dir):
    (log_dir / names.LOG_START_OFFSET_CHECKPOINT).write_bytes(LOG_START)
    crash(write(log_dir, 0))
    for number in range(3):
        assert mark(log_dir) is None
        recovered = hold(log_dir, number)
        assert not recovered.clean
        recovered.close(clean=True)
        assert [is_clean(log_dir, n) for n in range(3)] == [n <= number for n in range(3)]
    assert mark(log_dir) == b""
    assert (log_dir / names.LOG_START_OFFSET_CHECKPOINT).read_bytes() == LOG_START


@pytest.mark.parametrize("start", [b"", LOG_START], ids=["no log start", "a log start"])
def test_a_broker_voids_what_we_recovered_partition_by_partition(log_dir, start):
    broker_dies(log_dir)
    (log_dir / names.LOG_START_OFFSET_CHECKPOINT).write_bytes(start)
    for number in range(2):
        hold(log_dir, number).close(clean=True)
    broker_dies(log_dir, loaded=[1])
    assert [is_clean(log_dir, number) for number in range(3)] == [True, False, False]


def test_the_dirty_mark_speaks_before_the_clean_one(log_dir):
    broker_dies(log_dir)
    hold(log_dir, 0).close(clean=True)
    assert is_clean(log_dir, 0)
    crash(write(log_dir, 0))
    assert (log_dir / "orders-0" / CLEAN_MARK).exists()
    assert not is_clean(log_dir, 0)


# --- damaged files of ours -----------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000])
def test_an_unreadable_file_of_ours_makes_unclean_what_it_spoke_for(log_dir, damage):
    crash(write(log_dir, 0))
    (log_dir / "orders-1" / PARTITION_MARK).write_bytes(damage)
    assert [is_clean(log_dir, number) for number in range(3)] == [False, False, True]
    (log_dir / PERIOD_FILE).write_bytes(damage)
    assert [is_clean(log_dir, number) for number in range(3)] == [False] * 3


def test_an_unreadable_clean_mark_is_none(log_dir):
    broker_dies(log_dir)
    hold(log_dir, 0).close(clean=True)
    (log_dir / "orders-0" / CLEAN_MARK).write_bytes(b"{}")
    assert not is_clean(log_dir, 0)


@pytest.mark.parametrize(
    "value", [Period.new(stood=True, content=b"x"), PartitionMark("0" * 32, PartitionState.CLEAN)]
)
def test_a_flipped_bit_never_goes_unseen(value):
    raw = value.to_bytes()
    assert type(value).parse(raw) == value
    for bit in range(len(raw.rstrip()) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptCheckpointError):
            type(value).parse(bytes(flipped))


def test_files_of_a_newer_seglog_are_refused(log_dir, monkeypatch):
    monkeypatch.setattr("seglog.state.clean_marks.VERSION", 2)
    crash(write(log_dir, 0))
    monkeypatch.undo()
    with pytest.raises(UnsupportedVersionError, match="version 2 of seglog-clean-shutdown, expected 1"):
        hold(log_dir, 0)
    lock_log_dir(FS, log_dir).release()     # nothing stayed locked


# --- checkpoints ---------------------------------------------------------------------------------

OTHERS = {("orders", 7): 5, ("a.b_c-d", 0): 1 << 62, ("orders", 1): 0}


def test_only_the_own_line_changes(log_dir):
    for name in names.OFFSET_CHECKPOINTS:
        (log_dir / name).write_bytes(format_offset_checkpoint(OTHERS))
    held = hold(log_dir)
    assert (held.recovery_point, held.log_start_offset, held.high_watermark) == (None, None, None)
    held.put(recovery_point=10, high_watermark=9, log_start_offset=8)
    held.close(clean=True)
    for name, offset in ((names.RECOVERY_POINT_CHECKPOINT, 10), (names.REPLICATION_CHECKPOINT, 9),
                         (names.LOG_START_OFFSET_CHECKPOINT, 8)):
        assert read_offset_checkpoint(log_dir / name) == OTHERS | {("orders", 0): offset}
    assert read_offset_checkpoint(log_dir / names.CLEANER_CHECKPOINT) == OTHERS
    again = hold(log_dir)
    assert (again.recovery_point, again.log_start_offset, again.high_watermark) == (10, 8, 9)
    again.close(clean=True)


def test_the_log_start_has_a_line_only_above_the_first_segment(log_dir):
    held = hold(log_dir)
    for start, base, line in ((100, 0, 100), (100, 100, None), (101, 100, 101), (0, 0, None)):
        held.put(log_start_offset=start, first_base_offset=base)
        assert held.log_start_offset == line
        assert read_offset_checkpoint(log_dir / names.LOG_START_OFFSET_CHECKPOINT).get(("orders", 0)) == line
    held.close(clean=True)


def test_what_stands_already_is_not_written_again(log_dir):
    held = hold(log_dir)
    held.put(recovery_point=3)
    before = (log_dir / names.RECOVERY_POINT_CHECKPOINT).stat()
    held.put(recovery_point=3)
    after = (log_dir / names.RECOVERY_POINT_CHECKPOINT).stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    held.close(clean=True)


def test_a_damaged_checkpoint_is_ignored_and_kept_beside(log_dir, caplog):
    damaged = b"0\n3\norders 0 5\norders 1 x\n"
    (log_dir / names.RECOVERY_POINT_CHECKPOINT).write_bytes(damaged)
    held = hold(log_dir)
    assert held.recovery_point is None
    assert "count as 0" in caplog.text
    held.put(recovery_point=2)
    held.close(clean=True)
    assert (log_dir / (names.RECOVERY_POINT_CHECKPOINT + ".bak")).read_bytes() == damaged
    assert read_offset_checkpoint(log_dir / names.RECOVERY_POINT_CHECKPOINT) == {("orders", 0): 2}


MERGE_MANY = """
import random, sys
from seglog.fs.files import OsFileSystem
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import PartitionHold

path, number, merges = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chooser = random.Random(number)
hold = PartitionHold(OsFileSystem(), f"{path}/orders-{number}")
for n in range(merges):
    hold.put(**{chooser.choice(["recovery_point", "high_watermark"]): n})
hold.put(recovery_point=merges, high_watermark=merges)
hold.close(clean=True)
"""


def test_processes_merge_their_lines_into_one_file_and_none_is_lost(log_dir):
    (log_dir / names.RECOVERY_POINT_CHECKPOINT).write_bytes(format_offset_checkpoint({("other", 1): 77}))
    workers = [
        subprocess.Popen([sys.executable, "-c", MERGE_MANY, log_dir, str(number), str(MERGES)]) for number in range(3)
    ]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    expected = {("orders", number): MERGES for number in range(3)}
    assert read_offset_checkpoint(log_dir / names.RECOVERY_POINT_CHECKPOINT) == {("other", 1): 77} | expected
    assert read_offset_checkpoint(log_dir / names.REPLICATION_CHECKPOINT) == expected


# --- who may open --------------------------------------------------------------------------------


def test_a_partition_has_one_writer_and_a_log_dir_many(log_dir):
    held = hold(log_dir, 0)
    with pytest.raises(LogLockedError):
        hold(log_dir, 0)
    hold(log_dir, 1).close(clean=True)
    with pytest.raises(LogLockedError):
        lock_log_dir(FS, log_dir)
    held.close(clean=True)
    held.close(clean=True)
    lock_log_dir(FS, log_dir).release()


def test_a_log_dir_that_a_tool_holds_is_refused(log_dir):
    with lock_log_dir(FS, log_dir), pytest.raises(LogLockedError):
        hold(log_dir)


@pytest.mark.parametrize("name", ["orders", "orders-x", "orders-00", "orders-0.0123-delete", "or ders-0", ".-0"])
def test_a_name_that_kafka_would_not_give_is_refused(tmp_path, name):
    with pytest.raises(InvalidArgumentError):
        PartitionHold(FS, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_is_not_there_is_made_or_refused(tmp_path):
    with pytest.raises(StorageError, match="cannot open: no such file or directory"):
        PartitionHold(FS, tmp_path / "orders-0", create=False)
    (tmp_path / "orders-0").touch()
    with pytest.raises(NotALogError, match="a file"):
        PartitionHold(FS, tmp_path / "orders-0")


def test_a_child_after_fork_may_do_nothing_but_close(log_dir):
    held = write(log_dir)
    pid = os.fork()
    if pid == 0:
        failures = 0
        for what in (held.check, lambda: held.put(recovery_point=1)):
            try:
                what()
            except ForkedHandleError:
                failures += 1
        held.close(clean=True)
        os._exit(0 if failures == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    held.check()
    assert mark(log_dir) is None
    held.close(clean=True)
    with pytest.raises(StorageError):
        held.check()


def test_a_broker_is_named_only_if_there_was_one(log_dir, caplog):
    """A line of our own in log-start-offset-checkpoint stays after a crash; only a broker has meta.properties."""
    (log_dir / names.LOG_START_OFFSET_CHECKPOINT).write_bytes(format_offset_checkpoint({("orders", 0): 2}))
    crash(write(log_dir))
    crash(hold(log_dir))
    assert "its last writer did not stop cleanly" in caplog.text
    assert "a broker may" not in caplog.text
    (log_dir / "meta.properties").write_text("version=1\nbroker.id=1\n")
    (log_dir / names.CLEAN_SHUTDOWN).write_bytes(BROKERS_MARK)
    crash(write(log_dir))
    crash(hold(log_dir))
    assert "a broker may have used it since" in caplog.text


def test_a_line_that_waits_for_its_turn_is_not_written_once_the_partition_was_closed(log_dir):
    """A sync's leader moves the recovery point of a log that failed, was closed, deleted, and made again meanwhile."""
    with LogDirState(FS, log_dir) as state:
        held = PartitionHold(FS, log_dir / "orders-0", log_dir=state)
        told = []

        def put():
            with pytest.raises(LogClosedError):
                held.put(recovery_point=7)
            told.append(True)

        writer = threading.Thread(target=put)

        def turn():
            writer.start()
            writer.join(0.1)        # it waits for its turn
            held.close(clean=False)

        state._turns.run(turn)
        writer.join()
        assert told
        assert state.offset(names.RECOVERY_POINT_CHECKPOINT, ("orders", 0)) is None
