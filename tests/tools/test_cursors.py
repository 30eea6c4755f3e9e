"""`seglog cursors`: where named readers of a log go on."""
import json

import pytest

import seglog
from seglog.state.reader_cursor import cursor_path
from support.command import seglog as run

NOW = 1_790_000_000_000


@pytest.fixture
def path(in_memory):
    with seglog.open(in_memory / "orders-0", config={"seglog.timestamp.check": False}) as log:
        log.append_many([(b"k", b"v", None, NOW - 10_000 * (10 - n)) for n in range(10)])
        with log.cursor("mailer") as cursor, log.cursor("indexer") as other:
            cursor.commit(4)
            other.commit(10)
    return in_memory / "orders-0"


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_ls_tells_offsets_and_lags(path):
    done = run("cursors", "ls", path)
    first, second, summary = done.stdout.splitlines()
    assert first.startswith("orders-0  indexer  offset 10  lag 0  committed 20")
    assert second.startswith("orders-0  mailer  offset 4  lag 6  committed 20")
    assert summary == "2 cursors"
    *cursors, summary = lines(run("cursors", "ls", "--json", path.parent))
    assert [(c["partition"], c["name"], c["offset"], c["lag"], c["is_gone"]) for c in cursors] == [
        ("orders-0", "indexer", 10, 0, False), ("orders-0", "mailer", 4, 6, False)
    ]
    assert summary["cursors"] == 2


def test_ls_tells_of_a_position_outside_of_the_log(path):
    with seglog.open(path) as log:
        log.delete_records(6)
    assert "offset 4  lag 4" in run("cursors", "ls", path).stdout
    assert "outside the log" in run("cursors", "ls", path).stdout


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        (["--offset", "7"], 7), (["--earliest"], 0), (["--latest"], 10), (["--time", str(NOW - 30_000)], 7),
        (["--time", str(NOW)], 10),
    ],
)
def test_reset_puts_a_reader_elsewhere(path, to, offset):
    done = run("cursors", "reset", path, "mailer", *to)
    assert done.stdout == f"orders-0  mailer  continues at offset {offset}, lag {10 - offset}\n"
    with seglog.open(path) as log, log.cursor("mailer") as cursor:
        assert cursor.position == offset


def test_reset_mends_a_file_that_nobody_can_read(path):
    cursor_path(path, "mailer").write_bytes(b"torn")
    assert "seglog cursors reset" in run("cursors", "ls", path, status=1).stderr
    run("cursors", "reset", path, "mailer", "--earliest")
    run("cursors", "ls", path)


def test_a_reader_at_work_is_not_reset(path):
    with seglog.open_partition(path) as partition, partition.cursor("mailer"):
        done = run("cursors", "reset", path, "mailer", "--earliest", status=5)
    assert "locked" in done.stderr


@pytest.mark.parametrize(
    "words", [["mailer"], ["mailer", "--earliest", "--latest", "--offset", "3"], ["mailer", "--offset", "11"],
              ["a/b", "--earliest"]],
)
def test_a_wrong_use_is_told(path, words):
    run("cursors", "reset", path, *words, status=2)
