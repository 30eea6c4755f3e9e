"""Restores into a log dir that others use at the same time: another restore, a writer, a broker, a server."""
import re
import subprocess
import sys

import pytest

import seglog
from seglog.archive import restoring
from seglog.archive.restore_journal import JOURNAL_FILE
from seglog.clock import ManualClock
from seglog.errors import CorruptCheckpointError, InvalidArgumentError, LogLockedError, UnsupportedVersionError
from seglog.format.checked_json import format_json, parse_json
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


class KilledError(Exception):
    pass


def kill(store, back, **given):
    """A restore that is killed before it has restored anything."""
    def killed(fs, *arguments, **more):
        raise KilledError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(restoring, "_restore", killed)
        with pytest.raises(KilledError):
            seglog.restore(store, back, **given)
    return (back / JOURNAL_FILE).read_bytes()


def test_a_killed_run_that_was_to_fill_partitions_is_not_finished_without_filling_them(store, in_memory):
    """It said that they were there already: they were, and empty."""
    new = in_memory / "new"
    (new / "orders-0").mkdir(parents=True)
    (new / "orders-0" / f"{0:020}.log").touch()
    kill(store, new, topics=["orders"], adopt=True)
    again = restore_by_command(store, new, "--topic", "orders")
    assert again.returncode == 2
    assert re.search(r"this snapshot with --adopt was begun here.*--snapshot \S+ --adopt", again.stderr, re.DOTALL)
    done = seglog.restore(store, new, topics=["orders"], adopt=True)
    assert (len(done.partitions), done.found_whole) == (1, [])
    assert ends(new) == {"orders": 20}


def test_a_killed_run_without_adopt_is_not_finished_with_it(store, in_memory):
    back = in_memory / "back"
    kill(store, back, topics=["orders"])
    (back / "orders-0").mkdir()
    with pytest.raises(InvalidArgumentError, match="this snapshot without --adopt was begun here"):
        seglog.restore(store, back, topics=["orders"], adopt=True)


def test_a_killed_run_is_not_finished_with_other_names(data, store, in_memory):
    """`orders-0`, which has the records of another topic by now, counted as restored."""
    with seglog.open(data / "bills-0", config=CONFIG, clock=ManualClock(NOW)) as log:
        fill(log)
    seglog.backup(data, store)
    back = in_memory / "back"

    def killed(done_bytes, total_bytes):
        if (back / "orders-0").exists():
            raise KilledError

    given = {"topics": ["bills", "items"], "rename": {"bills": "orders"}}
    with pytest.raises(KilledError):
        seglog.restore(store, back, **given, progress=killed)
    with pytest.raises(InvalidArgumentError, match="this snapshot, with bills-0 as orders-0, was begun") as refused:
        seglog.restore(store, back, topics=["orders"])
    assert "the same --rename" in refused.value.hint
    done = seglog.restore(store, back, **given)
    assert done.found_whole == ["orders-0"]
    assert ends(back) == {"orders": 40, "items": 20}


def test_a_journal_tells_older_programs_that_they_cannot_finish_it(store, in_memory):
    """A program that knows version 1 only knows no end, no names and no created partitions."""
    def version(number, given):
        number += 1
        back = in_memory / f"back-{number}"
        (back / "orders-0").mkdir(parents=True)
        (back / "orders-0" / f"{0:020}.log").touch()
        if not given.get("adopt"):
            (back / "orders-0").rename(back / "mine-0")
        return parse_json(kill(store, back, topics=["orders"], **given), "seglog-restore", 2, None, dict, oldest=1)

    plain, *others = (version(number, given) for number, given in enumerate((
        {}, {"until_offset": 3}, {"until": NOW}, {"rename": {"orders": "before"}}, {"adopt": True})))
    assert (plain["version"], plain.keys() & {"end", "renamed", "adopt", "filled"}) == (1, set())
    assert {body["version"] for body in others} == {2}
    back = in_memory / "newer"
    back.mkdir()
    (back / JOURNAL_FILE).write_bytes(format_json("seglog-restore", 3, snapshot="x", partitions=[]))
    with pytest.raises(UnsupportedVersionError, match="version 3 of seglog-restore"):
        seglog.restore(store, back)
    assert sorted(path.name for path in back.iterdir()) == [JOURNAL_FILE]


def test_a_journal_of_version_1_is_read_with_all_that_it_may_have(store, in_memory):
    """Before version 2, ends and filled partitions were told in version 1."""
    back = in_memory / "back"
    body = parse_json(kill(store, back, topics=["orders"]), "seglog-restore", 1, None, dict)
    members = {"snapshot": body["snapshot"], "partitions": ["orders-0"]}
    (back / "orders-0").mkdir()
    for more, differs in (({"end": [None, 7]}, "another end"), ({"filled": {"orders-0": 9}}, "with --adopt")):
        (back / JOURNAL_FILE).write_bytes(format_json("seglog-restore", 1, **members, **more))
        with pytest.raises(InvalidArgumentError, match=differs):
            seglog.restore(store, back, topics=["orders"])
    for end in ([], [1], ["1", None], 7):
        (back / JOURNAL_FILE).write_bytes(format_json("seglog-restore", 1, **members, end=end))
        with pytest.raises(CorruptCheckpointError):
            seglog.restore(store, back, topics=["orders"])
