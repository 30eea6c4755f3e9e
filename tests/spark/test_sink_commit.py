"""How staged partitions come into a log dir: once, whatever step the driver dies at, and whoever comes next."""
import os
import shutil
import signal
import subprocess
import sys

import pyarrow
import pytest

import seglog
from seglog.errors import (
    CorruptCheckpointError,
    InvalidArgumentError,
    LogLockedError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format.checked_json import format_json
from seglog.format.names import OFFSET_CHECKPOINTS, REPLICATION_CHECKPOINT
from seglog.fs.lock import lock_log_dir
from seglog.spark.sink import write_rows
from seglog.spark.sink_commit import SinkCommit, complete_commit, drop_commit, unfinished_commit
from seglog.spark.sink_journal import SinkJournal
from seglog.spark.sink_options import SinkOptions
from seglog.spark.sink_steps import SinkSteps
from support.command import seglog as seglog_command
from support.command import seglog_json
from support.conversion import UnsyncedFs


class Died(BaseException):
    """kill -9: nothing runs any more."""


class MortalFs(UnsyncedFs):
    """Does `steps` changes of names on the disk; the one after that finds the process dead."""

    def __init__(self, steps):
        self.left = steps

    def _count(self):
        self.left -= 1
        if self.left < 0:
            raise Died

    def replace(self, source, target):
        self._count()
        super().replace(source, target)

    def rename(self, source, target):
        self._count()
        super().rename(source, target)

    def unlink(self, path, within=None):
        self._count()
        super().unlink(path, within)


@pytest.fixture
def path(in_memory):
    return in_memory / "data"


def options(path, **more):
    return SinkOptions(**{
        "path": str(path), "topic": "orders", "partitions": None, "may_exist": True, "query": "q", "config": (), **more
    })


def staged(path, *tasks, place="stream-q", **more):
    """Each task: {partition: values}."""
    found = []
    for rows in tasks:
        batches = [
            pyarrow.RecordBatch.from_pydict({
                "value": pyarrow.array(values, pyarrow.binary()),
                "partition": pyarrow.array([partition] * len(values), pyarrow.int32()),
            }) for partition, values in rows.items()
        ]
        found += write_rows(options(path, **more), place, iter(batches)).partitions
    return found


def commit(path, place="stream-q", fs=None, **more):
    return SinkCommit(options(path, **more), place, fs or UnsyncedFs())


def values(path):
    """{partition: values} of the topic."""
    found = {}
    for directory in sorted(path.glob("orders-*")):
        with seglog.open_partition(directory) as log:
            found[int(directory.name[7:])] = [record.value for record in log.read()]
            assert log.log_end_offset == len(found[int(directory.name[7:])])
    return found


def test_epochs_are_appended_once(path):
    for epoch in range(3):
        for _ in range(2):      # Spark tries an epoch again whose commit it did not hear of
            commit(path).publish(staged(path, {0: [b"%d" % epoch]}, {1: [b"x%d" % epoch] * 2}), epoch=epoch)
    assert values(path) == {0: [b"0", b"1", b"2"], 1: [b"x0", b"x0", b"x1", b"x1", b"x2", b"x2"]}
    # Another stream counts for itself.
    commit(path, "stream-r", query="r").publish(staged(path, {0: [b"r"]}, place="stream-r"), epoch=0)
    assert values(path)[0] == [b"0", b"1", b"2", b"r"]
    assert not [entry for entry in path.with_name("data.seglog-sink").iterdir() if entry.is_dir()]


def test_a_driver_may_die_at_any_step_of_a_commit(path, in_memory, tmp_path):
    """What it had begun is ended by the next one, which appends the same epoch again or another one."""
    commit(path).publish(staged(path, {0: [b"a"] * 3}), epoch=0)
    shutil.copytree(in_memory, tmp_path / "kept")
    steps = 0
    while True:
        for name in ("data", "data.seglog-sink"):
            shutil.rmtree(in_memory / name)
            shutil.copytree(tmp_path / "kept" / name, in_memory / name)
        rows = [{0: [b"b", b"c"]}, {1: [b"d"]}, {2: [b"e"]}]
        try:
            commit(path, fs=MortalFs(steps)).publish(staged(path, *rows), epoch=1)
            break
        except Died:
            pass
        # Readers see whole partitions, of the epoch before or of this one.
        seen = values(path)
        assert seen[0] in ([b"a"] * 3, [b"a"] * 3 + [b"b", b"c"])
        assert {partition: seen[partition] for partition in seen if partition} in (
            {}, {1: [b"d"]}, {1: [b"d"], 2: [b"e"]}
        )
        commit(path).publish(staged(path, *rows), epoch=1)
        commit(path).publish(staged(path, {0: [b"f"]}), epoch=2)
        assert values(path) == {0: [b"a", b"a", b"a", b"b", b"c", b"f"], 1: [b"d"], 2: [b"e"]}, steps
        steps += 1
    assert steps > 8


def test_an_append_that_was_done_in_part_is_ended_not_repeated(path, monkeypatch):
    commit(path).publish(staged(path, {0: [b"a"]}, {1: [b"a"]}), epoch=0)
    append, appended = SinkSteps._append, []

    def die_behind_the_first(self, step):
        if appended:
            raise Died
        append(self, step)
        appended.append(step.name)

    monkeypatch.setattr(SinkSteps, "_append", die_behind_the_first)
    with pytest.raises(Died):
        commit(path).publish(staged(path, {0: [b"b"]}, {1: [b"b"]}), epoch=1)
    monkeypatch.undo()
    assert values(path) == {0: [b"a", b"b"], 1: [b"a"]}
    commit(path).publish(staged(path, {0: [b"b"]}, {1: [b"b"]}), epoch=1)
    assert values(path) == {0: [b"a", b"b"], 1: [b"a", b"b"]}


def test_somebody_elses_records_between_are_found(path, monkeypatch):
    commit(path).publish(staged(path, {0: [b"a"]}), epoch=0)
    monkeypatch.setattr(SinkSteps, "carry_out", lambda *_: (_ for _ in ()).throw(Died))
    with pytest.raises(Died):
        commit(path).publish(staged(path, {0: [b"b"]}), epoch=1)
    monkeypatch.undo()
    with seglog.open(path / "orders-0") as log:
        for _ in range(3):
            log.append(b"mine")
    with pytest.raises(InvalidArgumentError, match="ended at 1, and now ends at 4: another program wrote"):
        commit(path).publish(staged(path, {0: [b"b"]}), epoch=1)


def test_two_tasks_with_one_partition_are_refused_and_nothing_is_changed(path):
    commit(path).publish(staged(path, {0: [b"a"]}), epoch=0)
    with pytest.raises(InvalidArgumentError, match="several tasks have rows of the same partition: orders-0"):
        commit(path).publish(staged(path, {0: [b"b"], 1: [b"b"]}, {0: [b"c"]}), epoch=1)
    assert values(path) == {0: [b"a"]}
    commit(path).discard()
    assert [entry.name for entry in path.with_name("data.seglog-sink").iterdir()] != []
    commit(path).publish(staged(path, {0: [b"b"]}), epoch=1)
    assert values(path) == {0: [b"a", b"b"]}


@pytest.mark.parametrize("number", [-1, -(2**31)])
def test_a_negative_partition_is_refused(path, number):
    """The name of its directory would be that of another topic's partition: orders--1."""
    with pytest.raises(InvalidArgumentError, match=f"from 0 to 2147483647, not {number}"):
        staged(path, {0: [b"a"], number: [b"b"]})
    assert not path.exists()


def test_a_log_that_somebody_writes_is_refused_before_anything_is_changed(path):
    commit(path).publish(staged(path, {0: [b"a"]}, {1: [b"a"]}), epoch=0)
    with seglog.open(path / "orders-1"):
        for overwrite in (False, True):
            with pytest.raises(LogLockedError):
                commit(path).publish(staged(path, {0: [b"b"]}, {1: [b"b"]}), overwrite=overwrite, epoch=1)
    assert values(path) == {0: [b"a"], 1: [b"a"]}


def test_overwriting_takes_the_place_of_the_topics_that_are_written(path):
    commit(path).publish(staged(path, {0: [b"a"]}, {1: [b"a"]}), epoch=0)
    with seglog.open(path / "other-0") as log:
        log.append(b"stays")
    commit(path, "batch-1").publish(staged(path, {0: [b"b"]}, place="batch-1"), overwrite=True)
    assert values(path) == {0: [b"b"]}
    assert (path / "other-0").is_dir()
    assert not seglog.verify(path / "orders-0").findings


def test_a_driver_may_die_at_any_step_of_an_overwrite(path, in_memory, tmp_path):
    """The next overwrite ends it and takes its place; what went aside is removed with the rest."""
    commit(path).publish(staged(path, {0: [b"a"]}, {1: [b"a"]}), epoch=0)
    shutil.copytree(in_memory, tmp_path / "kept")
    steps = 0
    while True:
        for name in ("data", "data.seglog-sink"):
            shutil.rmtree(in_memory / name)
            shutil.copytree(tmp_path / "kept" / name, in_memory / name)
        try:
            commit(path, "batch-1", fs=MortalFs(steps)).publish(
                staged(path, {0: [b"b"]}, place="batch-1"), overwrite=True
            )
            break
        except Died:
            pass
        journal = SinkJournal.parse((in_memory / "data.seglog-sink/journal.json").read_bytes(), "journal.json")
        commit(path, "batch-2").publish(staged(path, {0: [b"c"]}, place="batch-2"), overwrite=True)
        # Of a commit that did not begin, or was over, it stays: nobody can tell whether its tasks still write.
        left = [entry.name for entry in path.with_name("data.seglog-sink").iterdir() if entry.is_dir()]
        assert values(path) == {0: [b"c"]}, steps
        assert not left or not journal.steps, (steps, left)
        steps += 1
    assert steps > 5


def test_an_overwrite_that_died_waits_for_a_writer_who_came_since(path, monkeypatch):
    commit(path).publish(staged(path, {0: [b"a"]}), epoch=0)
    monkeypatch.setattr(SinkSteps, "carry_out", lambda *_: (_ for _ in ()).throw(Died))
    with pytest.raises(Died):
        commit(path, "batch-1").publish(staged(path, {0: [b"b"]}, place="batch-1"), overwrite=True)
    monkeypatch.undo()
    with seglog.open(path / "orders-0") as log:
        with pytest.raises(LogLockedError):
            commit(path).publish(staged(path, {1: [b"c"]}), epoch=1)
        log.append(b"mine")
    assert values(path) == {0: [b"a", b"mine"]}
    commit(path).publish(staged(path, {1: [b"c"]}), epoch=1)
    assert values(path) == {0: [b"b"], 1: [b"c"]}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_batch_that_a_broker_refuses_is_not_put_in_place_later(path, overwrite):
    commit(path).publish(staged(path, {0: [b"a"]}), epoch=0)
    with lock_log_dir(UnsyncedFs(), path), pytest.raises(LogLockedError):
        commit(path, "batch-1").publish(staged(path, {1: [b"b"]}, place="batch-1"), overwrite=overwrite)
    commit(path, "batch-1").discard()
    commit(path).publish(staged(path, {2: [b"c"]}), epoch=1)
    assert values(path) == {0: [b"a"], 2: [b"c"]}


def test_a_partition_that_a_broker_is_about_to_delete_is_none(path):
    (path / f"orders-0.{'0' * 32}-delete").mkdir(parents=True)
    commit(path, may_exist=False).check(overwrite=False)


def test_a_directory_of_the_sink_that_is_a_link_is_refused(path, in_memory):
    (in_memory / "precious/batch-1").mkdir(parents=True)
    (in_memory / "precious/batch-1/file").touch()
    path.with_name("data.seglog-sink").symlink_to(in_memory / "precious")
    sink = commit(path, "batch-1")
    for end in (lambda: sink.check(overwrite=False), sink.discard, lambda: sink.publish([])):
        with pytest.raises(InvalidArgumentError, match="a symbolic link; nothing was changed"):
            end()
    assert [found.name for found in (in_memory / "precious").rglob("*")] == ["batch-1", "file"]


@pytest.mark.parametrize("change", ["flip", "cut", "version"])
def test_a_journal_that_is_not_whole_is_told_and_left(path, change):
    commit(path).publish(staged(path, {0: [b"a"]}), epoch=0)
    journal = path.with_name("data.seglog-sink") / "journal.json"
    raw = journal.read_bytes()
    journal.write_bytes({
        "flip": raw.replace(b'"q"', b'"r"'), "cut": raw[:-20],
        "version": format_json("seglog-spark-sink", 9, epochs={}, steps=[], stream=None, epoch=None),
    }[change])
    with pytest.raises(UnsupportedVersionError if change == "version" else CorruptCheckpointError):
        commit(path).publish(staged(path, {0: [b"b"]}), epoch=1)
    assert values(path) == {0: [b"a"]}
    assert SinkJournal.parse(raw, "journal.json").epochs == {"q": 0}


@pytest.mark.parametrize(("given", "words"), [
    ({}, "path is missing"), ({"path": "/x", "topics": "a"}, "no such key: topics .*options are path"),
    ({"path": "/x", "ifExists": "no"}, "ifExists"),
    ({"path": "/x", "topic": "a/b"}, "invalid topic name"), ({"path": "/x", "numPartitions": "many"}, "numPartitions"),
    ({"path": "/x", "compression.type": "best"}, "^compression.type must be "),
])
def test_options_that_cannot_be_meant_are_refused(given, words):
    with pytest.raises(InvalidArgumentError, match=words):
        SinkOptions.of(given)


def test_a_stream_is_known_by_its_checkpoint(path, tmp_path):
    with pytest.raises(InvalidArgumentError, match="the checkpointLocation"):
        SinkOptions.of({"path": str(path)}, is_stream=True)
    with pytest.raises(InvalidArgumentError, match="cannot read the query's id"):
        SinkOptions.of({"path": str(path), "checkpointLocation": str(tmp_path)}, is_stream=True)
    (tmp_path / "metadata").write_text('{"id":"5f3c1e6b"}')
    given = {"path": str(path), "checkpointLocation": f"file:{tmp_path}", "compression.type": "lz4"}
    assert SinkOptions.of(given, is_stream=True).query == "5f3c1e6b"
    assert SinkOptions.of({**given, "queryId": "mine"}, is_stream=True).query == "mine"


def test_a_worker_that_did_nothing_before_writes(tmp_path):
    """Nobody has imported pyarrow.compute there: a sink whose rows came from the JVM failed with AttributeError."""
    rows = pyarrow.RecordBatch.from_pydict({"value": [b"1", b"2"], "topic": ["orders", "orders"]})
    with pyarrow.OSFile(str(tmp_path / "rows"), "wb") as file, pyarrow.ipc.new_stream(file, rows.schema) as stream:
        stream.write_batch(rows)
    program = """
import sys
import pyarrow
from seglog.spark.sink import write_rows
from seglog.spark.sink_options import SinkOptions
rows = pyarrow.ipc.open_stream(sys.argv[1]).read_next_batch()
assert "pyarrow.compute" not in sys.modules
print(write_rows(SinkOptions.of({"path": sys.argv[2]}), "batch-1", iter([rows])).partitions[0].end_offset)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "rows", tmp_path / "logs"], check=False, capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


# --- a batch that runs again ---------------------------------------------------------------------


def write_batch(path, number, rows, fs=None, *, overwrite=False, **more):
    """A run of a batch, with its own place."""
    place = f"batch-{number}"
    batch = commit(path, place, fs, query=None, **more)
    batch.check(overwrite=overwrite)
    batch.publish(staged(path, *rows, place=place, query=None), overwrite=overwrite)


def files_of(path):
    """{partition: the bytes of its logs}, and the lines of the checkpoints, without order."""
    found = {
        directory.name: [log.read_bytes() for log in sorted(directory.glob("*.log"))]
        for directory in sorted(path.glob("orders-*"))
    }
    for name in set(OFFSET_CHECKPOINTS) - {REPLICATION_CHECKPOINT}:     # a log that is closed writes its line there
        lines = (path / name).read_bytes().splitlines()[2:] if (path / name).exists() else []
        found[name] = sorted(line for line in lines if not line.endswith(b" 0"))
    return found


def killed_at_each_step(path, in_memory, tmp_path, rows, before, **more):
    """Yield after each step at which a driver can die, with the log dir as it is then."""
    if before:
        write_batch(path, 0, before)
    else:
        commit(path, query=None).discard()
        path.mkdir()
        path.with_name("data.seglog-sink").mkdir()
    shutil.copytree(in_memory, tmp_path / "kept")
    steps = 0
    while True:
        for name in ("data", "data.seglog-sink"):
            shutil.rmtree(in_memory / name)
            shutil.copytree(tmp_path / "kept" / name, in_memory / name)
        try:
            write_batch(path, 1, rows, MortalFs(steps), **more)
            break
        except Died:
            yield steps
        steps += 1
    assert steps > 4


ROWS = [{0: [b"b", b"c"]}, {1: [b"d"]}, {2: [b"e"]}]
BEFORE = [{0: [b"a"]}]
BOTH = {0: [b"a", b"b", b"c"], 1: [b"d"], 2: [b"e"]}


@pytest.mark.parametrize("may_exist", [False, True])
@pytest.mark.parametrize("before", [[], BEFORE])
def test_a_batch_that_died_is_not_taken_for_another_one(path, in_memory, tmp_path, before, may_exist):
    """The next run, by the same job, gave every record twice."""
    if before and not may_exist:
        pytest.skip("the log dir has partitions before")
    refused = 0
    for step in killed_at_each_step(path, in_memory, tmp_path, ROWS, before, may_exist=may_exist):
        unfinished = unfinished_commit(path)
        if unfinished is None:      # it did not begin, or was complete
            continue
        assert (unfinished.batch, unfinished.epoch, unfinished.overwrites) == (None, None, False)
        refused += 1
        now = files_of(path)
        for more in ({}, {"batch": "b-1"}):
            with pytest.raises(InvalidArgumentError, match=r"the commit of 3 partitions .* is unfinished") as error:
                write_batch(path, 2, ROWS, may_exist=may_exist, **more)
            assert f"seglog spark sink {path} --complete" in str(error.value)
            assert "--drop to undo it" in str(error.value)
        assert files_of(path) == now, step
        assert complete_commit(path, fs=UnsyncedFs()) == ["orders-0", "orders-1", "orders-2"]
        assert values(path) == (BOTH if before else {**BOTH, 0: [b"b", b"c"]}), step
        assert complete_commit(path) == drop_commit(path) == []
    assert refused > 3


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("before", [[], BEFORE, [{0: [b"a"]}, {7: [b"a"]}]])
def test_a_batch_with_an_id_may_run_again(path, in_memory, tmp_path, before, overwrite):
    rows = [{0: [b"b", b"c"]}, {1: [b"d"]}, {2: [b"e"]}]
    more = {"batch": "2026-11-24", "overwrite": overwrite}
    former = {} if overwrite else {n: values for one in before for n, values in one.items()}
    for step in killed_at_each_step(path, in_memory, tmp_path, rows, before, **more):
        for number in (2, 3):
            write_batch(path, number, rows, **more)
            whole = {n: former.get(n, []) + found for n, found in {0: [b"b", b"c"], 1: [b"d"], 2: [b"e"]}.items()}
            assert values(path) == {**former, **whole}, (step, number)
    # Another one is another one.
    write_batch(path, 4, [{1: [b"x"]}], batch="2026-11-25")
    assert values(path)[1] == whole[1] + [b"x"]
    write_batch(path, 5, [{1: [b"x"]}], batch="2026-11-25", may_exist=False)
    assert values(path)[1] == whole[1] + [b"x"]
    with pytest.raises(InvalidArgumentError, match="already has partitions"):
        write_batch(path, 6, [{1: [b"x"]}], batch="2026-11-26", may_exist=False)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("before", [[], BEFORE, [{0: [b"a"]}, {7: [b"a"]}]])
def test_a_commit_that_died_is_dropped_alone(path, in_memory, tmp_path, before, overwrite):
    was = None
    for step in killed_at_each_step(path, in_memory, tmp_path, ROWS, before, overwrite=overwrite):
        if was is None:
            was = files_of(path)        # it did nothing yet
        if unfinished_commit(path) is None:
            continue
        drops = 0
        while True:     # the drop, killed as well
            try:
                drop_commit(path, fs=MortalFs(drops))
                break
            except Died:
                drops += 1
            # From its first step on, it can only be dropped.
            found = unfinished_commit(path)
            if found is not None and found.drops:
                with pytest.raises(InvalidArgumentError, match="the commit is being dropped"):
                    complete_commit(path)
        assert files_of(path) == was, (step, drops)
        assert unfinished_commit(path) is None
        write_batch(path, 2, [{1: [b"f"]}])
        assert values(path)[1] == [b"f"]


def test_a_drop_that_died_is_completed_by_the_next_batch(path, monkeypatch):
    write_batch(path, 0, BEFORE)
    monkeypatch.setattr(SinkSteps, "_append", die_at_once)
    with pytest.raises(Died):
        write_batch(path, 1, ROWS)
    monkeypatch.undo()
    monkeypatch.setattr(SinkSteps, "_undo", die_at_once)
    with pytest.raises(Died):
        drop_commit(path)
    monkeypatch.undo()
    write_batch(path, 2, ROWS, batch="b", may_exist=True)
    assert values(path) == BOTH


def die_at_once(*_):
    raise Died


@pytest.mark.parametrize("end", [complete_commit, drop_commit])
@pytest.mark.parametrize("theirs", [[b"x"], [b"b", b"x"], [b"b", b"c", b"x"]])
def test_records_of_another_program_are_not_taken_for_those_of_the_batch(path, monkeypatch, end, theirs):
    """As many as the batch has, or fewer: they were taken for its own, which were lost."""
    write_batch(path, 0, BEFORE)
    monkeypatch.setattr(SinkSteps, "carry_out", die_at_once)
    with pytest.raises(Died):
        write_batch(path, 1, ROWS)
    monkeypatch.undo()
    with seglog.open(path / "orders-0") as log:
        for value in theirs:
            log.append(value)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=rf"ended at 1, and now ends at {1 + len(theirs)}: another"):
            end(path)
    assert values(path)[0] == [b"a", *theirs]


def test_a_partition_that_was_written_to_since_is_not_dropped(path, monkeypatch):
    monkeypatch.setattr("seglog.spark.sink_steps.tell_log_dir", die_at_once)
    with pytest.raises(Died):
        write_batch(path, 1, ROWS)
    monkeypatch.undo()
    with seglog.open(path / "orders-1") as log:
        log.append(b"mine")
    with pytest.raises(InvalidArgumentError, match="it ended at 1, and now ends at 2: another program wrote to it"):
        drop_commit(path)
    complete_commit(path)
    assert values(path) == {0: [b"b", b"c"], 1: [b"d", b"mine"], 2: [b"e"]}


def test_an_overwrite_goes_over_a_batch_that_died(path, monkeypatch):
    write_batch(path, 0, BEFORE)
    monkeypatch.setattr("seglog.spark.sink_steps.tell_log_dir", die_at_once)
    with pytest.raises(Died):
        write_batch(path, 1, ROWS)
    monkeypatch.undo()
    write_batch(path, 2, ROWS, overwrite=True)
    assert values(path) == {0: [b"b", b"c"], 1: [b"d"], 2: [b"e"]}


def test_a_stream_goes_on_over_a_batch_that_died(path, monkeypatch):
    monkeypatch.setattr("seglog.spark.sink_steps.tell_log_dir", die_at_once)
    with pytest.raises(Died):
        write_batch(path, 1, ROWS)
    monkeypatch.undo()
    commit(path).publish(staged(path, {1: [b"s"]}), epoch=0)
    assert values(path) == {0: [b"b", b"c"], 1: [b"d", b"s"], 2: [b"e"]}


def test_what_is_staged_must_be_there_when_the_commit_begins(path):
    rows = staged(path, *ROWS, place="batch-1")
    shutil.rmtree(rows[1].directory)
    with pytest.raises(StorageError, match="what a task has staged is gone"):
        commit(path, "batch-1", query=None).publish(rows)
    assert values(path) == {}
    assert unfinished_commit(path) is None


def test_the_ids_of_batches_are_kept_for_a_while(path, monkeypatch):
    monkeypatch.setattr("seglog.spark.sink_journal._BATCHES_KEPT", 3)
    for number in range(5):
        write_batch(path, number, [{0: [b"%d" % number]}], batch=f"b-{number}")
    for number in (2, 3, 4):
        write_batch(path, number, [{0: [b"again"]}], batch=f"b-{number}")
    write_batch(path, 9, [], batch="empty")
    write_batch(path, 9, [{0: [b"again"]}], batch="empty")
    assert values(path) == {0: [b"0", b"1", b"2", b"3", b"4"]}


@pytest.mark.parametrize(("given", "words"), [
    ({"batchId": ""}, "1 to 200 characters, not 0"), ({"batchId": "x" * 201}, "1 to 200 characters, not 201"),
])
def test_an_id_that_cannot_be_one_is_refused(given, words):
    with pytest.raises(InvalidArgumentError, match=words):
        SinkOptions.of({"path": "/x", **given})
    assert SinkOptions.of({"path": "/x", "BATCHID": "b"}).batch == "b"
    with pytest.raises(InvalidArgumentError, match="a stream takes no batchId"):
        SinkOptions.of({"path": "/x", "batchId": "b", "queryId": "q"}, is_stream=True)


KILLED = """
import os, signal, sys
from support.command import seglog as seglog_command
from support.command import seglog_json
from support.conversion import UnsyncedFs
from test_sink_commit import staged, commit

class Mortal(UnsyncedFs):
    left = 106
    def rename(self, source, target):
        super().rename(source, target)
        self.left -= ".seglog-sink" in str(source)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

path = sys.argv[1]
rows = staged(path, {n: [b"x"] * 10 for n in range(400)}, place="batch-1", query=None)
commit(path, "batch-1", Mortal(), query=None, may_exist=False).publish(rows)
"""


def test_kill_9_between_the_renames_of_400_partitions(path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path], check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(values(path)) == 106
    rows = [{n: [b"x"] * 10 for n in range(400)}]
    for may_exist in (False, True):
        with pytest.raises(InvalidArgumentError, match="the commit of 400 partitions into this log dir is unfinished"):
            write_batch(path, 2, rows, may_exist=may_exist)
    (shown,) = seglog_json("spark", "sink", path, status=1)
    assert (len(shown["partitions"]), shown["batch"], shown["stream"]) == (400, None, None)
    told = seglog_command("spark", "sink", path, status=1).stdout
    assert "the commit of a batch without an id, of 400 partitions, is unfinished" in told
    assert "400 partitions are now complete" in seglog_command("spark", "sink", path, "--complete").stdout
    assert values(path) == {n: [b"x"] * 10 for n in range(400)}
    for flags in ([], ["--complete"], ["--drop"]):
        assert "no commit is unfinished" in seglog_command("spark", "sink", path, *flags).stdout
    assert "no commit is unfinished" in seglog_command("spark", "sink", path.with_name("none")).stdout
    assert not path.with_name("none.seglog-sink").exists()
