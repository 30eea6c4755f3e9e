"""Restores into a log dir that others use at the same time: another restore, a writer, a broker, a server."""
import re
import subprocess
import sys

import pytest

import seglog
from seglog.archive.restoring import JOURNAL_FILE
from seglog.clock import ManualClock
from seglog.errors import InvalidArgumentError, LogLockedError
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from support.backed_log import CONFIG, NOW, fill

TOPICS = "orders", "bills", "items"


@pytest.fixture
def store(data, store):
    for topic in TOPICS:
        with seglog.open(data / f"{topic}-0", config=CONFIG, clock=ManualClock(NOW)) as log:
            fill(log)
    seglog.backup(data, store)
    return store


def ends(back):
    found = {}
    for path in sorted(back.glob("*-0")):
        with seglog.open_partition(path) as partition:
            found[path.name.removesuffix("-0")] = partition.log_end_offset
    return found


def restore_by_command(store, back, *more):
    command = [sys.executable, "-m", "seglog.tools", "restore", store, back, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_two_restores_into_one_log_dir_exclude_each_other(store, in_memory):
    """The second one used to replace the journal of the first, which then ended with an error."""
    back, refused = in_memory / "back", []

    def progress(done_bytes, total_bytes):
        if not refused:
            refused.append(None)
            with pytest.raises(LogLockedError, match="another restore is under way, in this process"):
                seglog.restore(store, back, topics=["items"])
            other = restore_by_command(store, back, "--topic", "items")
            assert other.returncode == 5
            assert "another restore is under way, by process" in other.stderr

    seglog.restore(store, back, topics=["orders", "bills"], progress=progress)
    assert refused
    assert not (back / JOURNAL_FILE).exists()
    seglog.restore(store, back, topics=["items"])
    assert ends(back) == dict.fromkeys(TOPICS, 20)


def test_of_many_restores_at_once_each_ends_whole_or_refused(store, in_memory):
    back = in_memory / "back"
    script = (
        "import sys, seglog\n"
        "from seglog.errors import LogLockedError\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
        "while True:\n"
        "    try:\n"
        "        seglog.restore(sys.argv[1], sys.argv[2], topics=[sys.argv[3]])\n"
        "        break\n"
        "    except LogLockedError:\n"
        "        pass\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, store, back, topic], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for topic in TOPICS
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.close()
        child.stdin = None
    for child in children:
        _, said = child.communicate(timeout=60)
        assert (said, child.returncode) == ("", 0)
    assert ends(back) == dict.fromkeys(TOPICS, 20)
    assert not (back / JOURNAL_FILE).exists()


def test_a_restore_that_is_refused_leaves_nothing_behind(store, in_memory):
    new = in_memory / "new"
    new.mkdir()
    (new / "bills-0").mkdir()
    for given in ({"topics": ["bills"]}, {"topics": ["orders"], "adopt": True}, {}):
        with pytest.raises(InvalidArgumentError):
            seglog.restore(store, new, **given)
        assert [path.name for path in new.rglob("*")] == ["bills-0"]
    with pytest.raises(InvalidArgumentError):
        seglog.restore(store, in_memory / "nowhere", adopt=True)
    assert not (in_memory / "nowhere").exists()


def test_a_broker_that_runs_finds_no_file_of_ours_in_its_log_dir(store, in_memory):
    new = in_memory / "new"
    (new / "orders-0").mkdir(parents=True)
    (new / "orders-0" / f"{0:020}.log").touch()
    with lock_log_dir(OsFileSystem(), new):
        for given in ({"topics": ["bills"]}, {"topics": ["orders"], "adopt": True}):
            assert restore_by_command(store, new, *words(given)).returncode == 5
        files = sorted(path.name for path in new.rglob("*"))
    assert files == [".lock", f"{0:020}.log", "orders-0"]


def words(given):
    return ["--topic", *given["topics"], *(["--adopt"] if "adopt" in given else [])]


def test_a_writer_in_the_log_dir_goes_on(store, in_memory):
    back = in_memory / "back"
    with seglog.open(back / "others-0", config=CONFIG) as log:
        def progress(done_bytes, total_bytes):
            log.append(b"beside")

        seglog.restore(store, back, progress=progress)
        count = log.append(b"after") + 1
        with pytest.raises(InvalidArgumentError, match="exists already"):
            seglog.restore(store, back, topics=["orders"])
    assert ends(back) == {**dict.fromkeys(TOPICS, 20), "others": count}


def test_a_killed_run_is_not_continued_up_to_another_end(store, in_memory):
    """Some partitions would end here and others there."""
    back = in_memory / "back"

    class KilledError(Exception):
        pass

    def killed(done_bytes, total_bytes):
        if (back / "bills-0").exists():
            raise KilledError

    with pytest.raises(KilledError):
        seglog.restore(store, back, topics=TOPICS, until_offset=5, progress=killed)
    for given in ({"until_offset": 9}, {}):
        for dry_run in (True, False):
            with pytest.raises(InvalidArgumentError, match="up to another end was begun here"):
                seglog.restore(store, back, topics=TOPICS, dry_run=dry_run, **given)
    would = seglog.restore(store, back, topics=TOPICS, until_offset=5, dry_run=True)
    assert (would.found_whole, len(would.partitions)) == (["bills-0"], 2)
    done = seglog.restore(store, back, topics=TOPICS, until_offset=5)
    assert done.found_whole == ["bills-0"]
    assert ends(back) == dict.fromkeys(TOPICS, 5)


def test_a_killed_run_up_to_a_time_before_now_can_be_finished(store, in_memory):
    """`--until -1h` is another time in each run: the refusal tells which one it was."""
    back = in_memory / "back"

    class KilledError(Exception):
        pass

    def killed(done_bytes, total_bytes):
        if (back / "bills-0").exists():
            raise KilledError

    with pytest.raises(KilledError):
        seglog.restore(store, back, topics=TOPICS, until="-1h", progress=killed)
    again = restore_by_command(store, back, *(f"--topic={topic}" for topic in TOPICS), "--until=-1h")
    assert again.returncode == 2
    until = re.search(r"--until ([0-9]{13})\b", again.stderr)[1]
    again = restore_by_command(store, back, *(f"--topic={topic}" for topic in TOPICS), f"--until={until}")
    assert again.returncode == 0, again.stderr
    assert ends(back) == dict.fromkeys(TOPICS, 20)
