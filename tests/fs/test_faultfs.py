"""The double must catch what it is there to catch: protocols broken on purpose, and only those."""
import errno
import itertools
import os
import threading
from pathlib import Path

import pytest

from seglog.errors import StorageError
from seglog.fs.aside import make_directories, write_atomically
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir, lock_partition
from seglog.fs.staging import Staging, leftovers, remove_leftovers
from support.faultfs import FailingFs, RecordingFs

OLD, NEW = b"old " * 200, b"new " * 300      # more than a sector, so that a write can tear


@pytest.fixture
def disk(tmp_path):
    root = tmp_path / "disk"
    root.mkdir()
    return root


@pytest.fixture
def record(disk):
    (disk / "state").write_bytes(OLD)
    return RecordingFs(disk)


def contents(record, name="state", **how):
    """Every content that the file may have after a crash; None where it may be gone."""
    return {state.files.get(name) for state in record.crash_states(limit=5000, **how)}


def after_promise(record, name="state"):
    return {state.files.get(name) for state in record.crash_states(limit=5000) if state.marks}


# --- protocols ---------------------------------------------------------------------------


def test_write_atomically_leaves_old_or_new_and_keeps_its_promise(record, disk):
    write_atomically(record, disk / "state", NEW)
    record.mark("promised")
    assert contents(record) == {OLD, NEW}
    assert after_promise(record) == {NEW}


def test_write_atomically_with_a_backup_does_so_too(record, disk):
    write_atomically(record, disk / "state", NEW, backup=disk / "state.bak")
    record.mark("promised")
    assert contents(record) == {OLD, NEW}
    assert after_promise(record, "state.bak") == {OLD}
    # The backup is the whole old file as soon as it is there.
    assert contents(record, "state.bak") == {None, OLD}


def test_a_missing_sync_of_the_file_before_the_rename_is_caught(record, disk):
    with record.create(disk / "state.tmp") as file:
        file.append(NEW)
    record.replace(disk / "state.tmp", disk / "state")
    record.sync_directory(disk)
    record.mark("promised")
    found = after_promise(record)
    assert b"" in found                             # the well-known file of length zero
    assert bytes(len(NEW)) in found                 # the length without the bytes
    assert NEW[:512] in found                       # torn
    assert NEW in found


def test_a_missing_sync_of_the_directory_is_caught(record, disk):
    with record.create(disk / "state.tmp") as file:
        file.append(NEW)
        file.sync()
    record.replace(disk / "state.tmp", disk / "state")
    record.mark("promised")
    assert after_promise(record) == {OLD, NEW}


def test_a_sync_of_a_new_file_does_not_save_its_name(record, disk):
    with record.create(disk / "new") as file:
        file.append(NEW)
        file.sync()
    record.mark("promised")
    assert after_promise(record, "new") == {None, NEW}


def test_overwriting_in_place_is_caught(record, disk):
    with record.open_write(disk / "state") as file:
        file.write_at(0, NEW)
        file.sync()
    found = contents(record)
    assert {OLD, NEW, NEW[:512] + OLD[512:]} <= found
    assert OLD[:512] + NEW[512:] in found           # the later sector first


def test_names_that_depend_on_each_other_are_lost_apart(record, disk):
    # Rename the data away, put the new one in its place: without a sync between, the first may be lost alone.
    with record.create(disk / "new") as file:
        file.append(NEW)
        file.sync()
    record.sync_directory(disk)
    record.rename(disk / "state", disk / "state.bak")
    record.rename(disk / "new", disk / "state")
    record.sync_directory(disk)
    seen = {frozenset(state.files.items()) for state in record.crash_states(limit=5000)}
    assert frozenset({("new", NEW), ("state.bak", OLD)}) in seen       # only the first
    assert frozenset({("state", NEW)}) in seen                         # only the second: the old data is gone


def test_a_second_sync_saves_only_what_came_before_it(record, disk):
    with record.open_write(disk / "state") as file:
        file.append(b"1")
        file.sync()
        record.mark(1)
        file.append(b"2")
        file.sync_data()
        record.mark(2)
        file.append(b"3")
    for state in record.crash_states():
        assert state.files["state"].startswith(OLD + b"12"[: len(state.marks)]), state.story()


def test_a_sync_does_not_cover_what_was_written_while_it_ran(disk):
    class SlowSync(OsFileSystem):
        def create(self, path, within=None, mode=0o666):
            file = super().create(path, within, mode)
            file.sync = lambda: (began.set(), go_on.wait(60))
            return file

    began, go_on = threading.Event(), threading.Event()
    record = RecordingFs(disk, SlowSync())
    with record.create(disk / "log") as file:
        record.sync_directory(disk)
        file.append(b"before")
        syncing = threading.Thread(target=file.sync)
        syncing.start()
        assert began.wait(60)
        file.append(b", beside")
        go_on.set()
        syncing.join()
        record.mark("synced")
    assert after_promise(record, "log") == {b"before", b"before, beside", b"before" + bytes(8)}


def test_a_grown_length_may_be_there_or_not(record, disk):
    with record.open_write(disk / "state") as file:
        file.preallocate(len(OLD) + 100)
    assert contents(record) == {OLD, OLD + bytes(100)}


def test_a_time_is_safe_after_a_sync_and_not_after_a_sync_of_data(record, disk):
    record.set_mtime(disk / "state", 10**18)
    with record.open_write(disk / "state") as file:
        file.sync_data()
        record.mark("data")
        file.sync()
        record.mark("all")
    times = {0: set(), 1: set(), 2: set()}
    for state in record.crash_states():
        with state.materialise() as root:
            times[len(state.marks)].add((root / "state").stat().st_mtime_ns == 10**18)
    assert times == {0: {False, True}, 1: {False, True}, 2: {True}}


def test_two_names_of_one_file_stay_one_file(record, disk):
    record.link(disk / "state", disk / "second")
    record.sync_directory(disk)
    record.mark("linked")
    with record.open_write(disk / "second") as file:
        file.append(NEW)
        file.sync()
    for state in record.crash_states():
        if state.marks:
            with state.materialise() as root:
                assert (root / "second").samefile(root / "state")
                assert (root / "second").read_bytes() == (root / "state").read_bytes()


def test_a_directory_never_stands_in_two_places(record, disk):
    record.mkdir(disk / "a")
    record.rename(disk / "a", disk / "b")
    record.rename(disk / "b", disk / "c")
    record.mkdir(disk / "c/in")
    found = {tuple(state.directories) for state in record.crash_states()}
    assert {(), ("a",), ("b",), ("c",), ("c", "c/in")} <= found
    assert all(sum(d in "abc" for d in directories) <= 1 for directories in found)


def test_what_is_in_a_directory_goes_with_its_name(record, disk):
    make_directories(record, disk / "a/b")
    record.mark("made")
    write_atomically(record, disk / "a/b/state", NEW)
    record.mark("written")
    for state in record.crash_states():
        assert len(state.marks) < 1 or state.directories == ["a", "a/b"], state.story()
        assert len(state.marks) < 2 or state.files["a/b/state"] == NEW, state.story()


def test_an_exchange_is_done_or_not_done(disk):
    for name in ("one", "other"):
        (disk / name).mkdir()
        (disk / name / "who").write_text(name)
    record = RecordingFs(disk)
    try:
        record.exchange(disk / "one", disk / "other")
    except StorageError as refusal:
        pytest.skip(str(refusal))
    found = {tuple(sorted(state.files.items())) for state in record.crash_states()}
    assert found == {
        (("one/who", b"one"), ("other/who", b"other")),
        (("one/who", b"other"), ("other/who", b"one")),
    }
    record.unlink(disk / "one/who")
    record.rmdir(disk / "one")
    assert sorted(path.name for path in disk.iterdir()) == ["other"]


# --- our own protocols over it -----------------------------------------------------------


@pytest.mark.parametrize("above_is_another_file_system", [False, True])
def test_a_staging_s_target_is_whole_or_absent_in_every_crash(disk, above_is_another_file_system):
    class Os(OsFileSystem):
        def rename(self, source, target):
            if above_is_another_file_system and os.path.dirname(source) != os.path.dirname(target):
                raise StorageError("cannot rename", file=source, errno=errno.EXDEV)
            super().rename(source, target)

    log_dir = disk / "kafka"
    log_dir.mkdir()
    (log_dir / "orders-0").mkdir()
    (log_dir / "orders-0/00000000000000000000.log").write_bytes(OLD)
    record = RecordingFs(disk, Os())
    files = {f"{base:020}.{kind}": NEW for base in (0, 100) for kind in ("log", "index")}
    with Staging.of_partition(record, log_dir / "orders-1") as staging:
        for name, content in files.items():
            with staging.create(name) as file:
                file.append(content[:700])
                file.append(content[700:])
        staging.publish()
    record.mark("published")
    whole = {f"kafka/orders-1/{name}": content for name, content in files.items()}
    count = 0
    for state in record.crash_states(limit=1000, seed=1):
        count += 1
        target = {path: content for path, content in state.files.items() if path.startswith("kafka/orders-1/")}
        assert state.files["kafka/orders-0/00000000000000000000.log"] == OLD
        assert target in ({}, whole), state.story()
        assert ("kafka/orders-1" in state.directories) == bool(target), state.story()
        assert target or not state.marks, state.story()
        with state.materialise() as root:
            fs = OsFileSystem()
            with lock_log_dir(fs, root / "kafka"):
                left = leftovers(root / "kafka")
                assert remove_leftovers(fs, root / "kafka") == left
            there = sorted(path.name for path in (root / "kafka").iterdir())
            assert there == [".lock", "orders-0", *(["orders-1"] if target else [])], state.story()
            assert [path.name for path in root.iterdir()] == ["kafka"]
    assert count == 1000


def test_a_locked_directory_has_at_most_a_lock_file_more_after_a_crash(record, disk):
    with lock_log_dir(record, disk), lock_partition(record, disk):
        pass
    for state in record.crash_states():
        assert state.files.keys() <= {"state", ".lock", ".seglog.lock"}
        assert state.files["state"] == OLD


# --- the enumeration ---------------------------------------------------------------------


def some_work(record, disk):
    with record.create(disk / "log") as file:
        for n in range(10):
            file.append(bytes([n]) * 1000)
            if n % 4 == 3:
                file.sync()
    write_atomically(record, disk / "state", NEW)
    record.unlink(disk / "log")


def pictures(record, **how):
    return [(state.prefix, tuple(sorted(state.files.items()))) for state in record.crash_states(**how)]


def test_the_same_record_limit_and_seed_give_the_same_states(record, disk):
    some_work(record, disk)
    first = pictures(record, limit=150, seed=7)
    assert len(first) == 150
    assert pictures(record, limit=150, seed=7) == first
    assert pictures(record, limit=150, seed=8) != first


def test_no_state_is_given_twice(record, disk):
    some_work(record, disk)
    files = [files for _, files in pictures(record, limit=3000)]
    assert len(set(files)) == len(files)


def test_equal_content_is_another_state_where_more_was_promised(record, disk):
    record.mark(1)
    record.create(disk / "new").close()
    record.mark(2)
    found = {(len(state.marks), "new" in state.files) for state in record.crash_states()}
    assert found == {(1, False), (2, False), (2, True)}


def test_a_small_limit_is_spread_over_the_whole_run(record, disk):
    some_work(record, disk)
    prefixes = {prefix for prefix, _ in pictures(record, limit=10)}
    assert len(prefixes) >= 4
    assert max(prefixes) > len(record.operations) / 2


def test_a_finite_set_of_states_ends_before_the_limit(record, disk):
    record.create(disk / "new").close()
    assert pictures(record, limit=10**6) == [(0, (("state", OLD),)), (1, (("new", b""), ("state", OLD)))]


def test_a_killed_process_is_among_them(record, disk):
    some_work(record, disk)
    as_it_is = {path.name: path.read_bytes() for path in disk.iterdir()}
    assert as_it_is in [state.files for state in record.crash_states(limit=3000)]


def test_a_smaller_grain_tears_inside_a_sector(record, disk):
    with record.open_write(disk / "state") as file:
        file.append(b"abcdef")
    assert contents(record) == {OLD, OLD + b"abcdef", OLD + bytes(6)}
    assert {OLD + b"a", OLD + b"abc", OLD + b"abcde"} <= contents(record, grains=(1, 512))


def test_a_crash_during_recovery_is_a_record_over_a_state(record, disk):
    write_atomically(record, disk / "state", NEW)
    for state in record.crash_states():
        with state.materialise() as root:
            again = RecordingFs(root)
            write_atomically(again, root / "state", b"recovered")
            for second in again.crash_states():
                assert second.files["state"] in (OLD, NEW, b"recovered")


def test_a_materialised_state_is_what_it_says_and_goes_away(record, disk):
    some_work(record, disk)
    make_directories(record, disk / "empty/inner")
    for state in record.crash_states(limit=100):
        with state.materialise() as root:
            assert {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()} == state.files
            assert sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_dir()) == sorted(state.directories)
            (root / "more").mkdir()
            (root / "more/files").touch()
        assert not root.exists()


def test_the_story_says_what_became_of_each_step(record, disk):
    with record.create(disk / "log") as file:
        file.append(NEW)
        file.sync()
        record.mark("a promise")
        file.append(NEW)
    torn = next(state for state in record.crash_states() if state.files.get("log") == NEW + NEW[:336])
    assert torn.story().splitlines() == [
        "    0 create log   [kept]",
        "    1 write 1200 bytes at 0 of log   [safe]",
        "    2 sync log",
        "      mark 'a promise'",
        "    4 write 1200 bytes at 1200 of log   [torn after 0 writes at byte 1536]",
        f"crash after 5 of 5 steps, state {torn.number}",
    ]
    assert repr(torn) == f"<CrashState {torn.number} after 5 steps>"


def test_the_record_says_every_change_in_words(record, disk):
    write_atomically(record, disk / "state", b"12345")
    assert record.operations == [
        "create state.tmp",
        "write 5 bytes at 0 of state.tmp",
        "sync state.tmp",
        "replace state.tmp -> state",
        "sync directory .",
    ]


def test_changes_outside_of_the_root_are_refused(record, tmp_path):
    with pytest.raises(ValueError, match="outside of the recorded"):
        record.create(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_change_past_the_record_is_noticed(record, disk):
    (disk / "foreign").touch()
    with pytest.raises(ValueError, match="foreign came to be past the record"):
        record.rename(disk / "foreign", disk / "mine")


def test_a_tree_with_a_link_is_not_in_the_model(disk):
    (disk / "link").symlink_to("nowhere")
    with pytest.raises(ValueError, match="neither a file nor a directory"):
        RecordingFs(disk)


def test_errors_of_the_system_pass_through_unrecorded(record, disk):
    for change in (
        lambda: record.create(disk / "state"),
        lambda: record.create(disk / "gone/new"),
        lambda: record.open_write(disk / "gone"),
        lambda: record.unlink(disk / "gone"),
        lambda: record.rename(disk / "gone", disk / "x"),
        lambda: record.mkdir(disk / "state/x"),
        lambda: record.rmdir(disk / "state"),
        lambda: record.set_mtime(disk / "gone", 0),
    ):
        with pytest.raises(StorageError):
            change()
    assert record.operations == []


# --- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_change_leaves_old_or_new(tmp_path, error, once, short):
    count = FailingFs(OsFileSystem())
    (tmp_path / "count").write_bytes(OLD)
    write_atomically(count, tmp_path / "count", NEW, backup=tmp_path / "count.bak")
    assert not count.failed
    for k, call in enumerate(count.calls):
        path = tmp_path / f"state-{k}"
        path.write_bytes(OLD)
        fs = FailingFs(OsFileSystem(), fail_at=k, error=error, once=once, short=short)
        with pytest.raises(StorageError) as refusal:
            write_atomically(fs, path, NEW, backup=tmp_path / f"state-{k}.bak")
        assert fs.failed
        assert refusal.value.errno == error
        assert path.read_bytes() == (NEW if call.startswith("sync_directory") else OLD)
    assert [call.split()[0] for call in count.calls] == ["create", "write", "sync", "link", "replace", "sync_directory"]


def test_a_short_write_leaves_half(tmp_path):
    fs = FailingFs(OsFileSystem(), fail_at=1, error=errno.ENOSPC, short=True)
    with fs.create(tmp_path / "x") as file:
        with pytest.raises(StorageError, match="no space"):
            file.append(b"0123", b"4567")
        with pytest.raises(StorageError, match="cannot continue after an error"):
            file.sync()
    assert (tmp_path / "x").read_bytes() == b"0123"


def test_a_file_after_a_failed_sync_is_refused_by_the_double_too(tmp_path):
    fs = FailingFs(OsFileSystem(), fail_at=2, error=errno.EIO, once=True)
    with fs.create(tmp_path / "x") as file:
        file.append(b"x")
        with pytest.raises(StorageError, match="input/output"):
            file.sync()
        with pytest.raises(StorageError, match="cannot continue after an error"):
            file.sync()
        assert len(fs.calls) == 3       # the second was not even tried


def test_every_method_counts_and_can_fail(tmp_path):
    def work(fs, root):
        fs.mkdir(root)
        with fs.create(root / "a") as file:
            file.preallocate(10)
            file.sync_data()
            assert file.fileno() > 0
        fs.open_write(root / "a").close()
        fs.set_mtime(root / "a", 0)
        fs.sync_file(root / "a")
        fs.link(root / "a", root / "b")
        fs.rename(root / "b", root / "c")
        fs.replace(root / "c", root / "d")
        fs.exchange(root / "a", root / "d")
        fs.unlink(root / "d")
        fs.unlink(root / "a")
        fs.rmdir(root)

    count = FailingFs(OsFileSystem())
    work(count, tmp_path / "all")
    for k in range(len(count.calls)):
        with pytest.raises(StorageError, match="input/output"):
            work(FailingFs(OsFileSystem(), fail_at=k, error=errno.EIO), tmp_path / str(k))


def test_an_error_number_without_a_place_is_refused():
    with pytest.raises(ValueError, match="go together"):
        FailingFs(OsFileSystem(), fail_at=1)


def test_crash_states_of_a_run_that_met_an_error(record, disk):
    record._inner = FailingFs(OsFileSystem(), fail_at=1, error=errno.ENOSPC, short=True)
    with record.create(disk / "log") as file, pytest.raises(StorageError):
        file.append(NEW)
    assert record.operations[1] == f"write {len(NEW) // 2} bytes at 0 of log (failed)"
    assert contents(record, "log") == {None, b"", NEW[:512], NEW[:600], NEW[:512] + bytes(88), bytes(600),
                                       bytes(512) + NEW[512:600]}


def test_a_staging_that_meets_an_error_anywhere_leaves_nothing_or_says_what(tmp_path):
    def build(fs, log_dir):
        with Staging.of_partition(fs, log_dir / "orders-0") as staging:
            staging.write_file("00000000000000000000.log", NEW)
            staging.publish()

    def fresh(name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kafka").mkdir()
        return tmp_path / name / "kafka"

    count = FailingFs(OsFileSystem())
    build(count, fresh("count"))
    for once, k in itertools.product((False, True), range(len(count.calls))):
        log_dir = fresh(f"{once}-{k}")
        fs = FailingFs(OsFileSystem(), fail_at=k, error=errno.EIO, once=once)
        try:
            build(fs, log_dir)
        except StorageError as error:
            notes = error.__notes__[1:]     # behind the hint
        else:
            assert count.calls[k].startswith("rename"), count.calls[k]      # out of the log dir: inside is good, too
            notes = []
        left = leftovers(log_dir)
        assert bool(left) == bool(notes), (count.calls[k], left, notes)
        target = log_dir / "orders-0"
        assert not target.exists() or [p.read_bytes() for p in target.iterdir()] == [NEW]
        assert {p.name for p in Path(log_dir).iterdir()} <= {"orders-0", *(p.name for p in left)}
