"""A partition in a backup is read where it lies: `STORE#SNAPSHOT/orders-0` has the rows that a restore would have."""
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys

import pytest

import seglog
from seglog.backups.snapshot_store import SnapshotStore, path_in_backup
from seglog.clock import ManualClock
from seglog.errors import CorruptBackupError, InvalidArgumentError, NotALogError
from seglog.state.checkpoints import format_offset_checkpoint
from support.backed_log import NOW, fill
from support.command import partition_of
from support.command import seglog as command
from support.golden import golden_cases
from support.objects_on_disk import ObjectsOnDisk


def rows(path, **options):
    return seglog.scan(path, **options).to_arrow().to_pylist()


def test_each_snapshot_has_the_rows_of_its_moment(log, data, store):
    whole = []
    for _ in range(3):
        whole.append((seglog.backup(data, store).snapshot.id, rows(log.path)))
        fill(log)
    for snapshot_id, expected in whole:
        assert rows(f"{store}#{snapshot_id}/orders-0") == expected
    assert rows(f"{store}#latest") == whole[-1][1]


def test_a_whole_snapshot_is_read_also_if_its_id_ends_like_a_partition(log, data, store, monkeypatch):
    monkeypatch.setattr("seglog.backups.repository.secrets.token_hex", lambda size: "27302140")
    seglog.backup(data, store)
    assert rows(f"{store}#latest") == rows(log.path)


def test_the_checkpoint_of_a_snapshot_is_made_once_for_all_its_partitions(data, store, monkeypatch):
    for number in range(4):
        with seglog.open(data / f"orders-{number}") as log:
            log.append(b"x")
    seglog.backup(data, store)
    made = []
    monkeypatch.setattr(
        "seglog.backups.snapshot_store.format_offset_checkpoint",
        lambda offsets: made.append(len(offsets)) or format_offset_checkpoint(offsets),
    )
    assert len(rows(f"{store}#latest")) == 4
    assert made == [4]


def test_ranges_columns_and_filters_are_those_of_a_directory(log, data, store):
    seglog.backup(data, store, compression="zstd")
    for options in (
        {"from_offset": 7, "to_offset": 13}, {"since": NOW + 5, "until": NOW + 9}, {"columns": ["offset", "value"]},
        {"on_corrupt": "skip"}, {"isolation": "read_committed"},
    ):
        assert rows(f"{store}#latest/orders-0", **options) == rows(log.path, **options)


def test_the_log_starts_where_it_started_at_that_moment(log, data, store):
    log.delete_records(13)
    seglog.backup(data, store)
    assert [row["offset"] for row in rows(f"{store}#latest/orders-0")] == list(range(13, 20))


def test_aborted_and_open_transactions_stay_out_of_committed_rows(log, data, store):
    with log.producer(producer_id=1) as producer:
        producer.begin()
        producer.append(b"aborted")
        producer.abort()
        producer.begin()
        producer.append(b"open")
        seglog.backup(data, store)
        seen = rows(f"{store}#latest/orders-0", isolation="read_committed")
        assert seen == rows(log.path, isolation="read_committed")
        assert len(rows(f"{store}#latest/orders-0")) == len(seen) + 2
        producer.abort()


def test_directories_of_real_brokers_have_the_same_rows(in_memory):
    """Golden directories of Kafka 2.8.2, 3.9.1 and 4.1.1."""
    cases = golden_cases() if os.environ.get("SEGLOG_TORTURE") else golden_cases()[::6]
    for number, case in enumerate(cases):
        shutil.copytree(partition_of(case), in_memory / "kafka" / f"{case.name}-{number}")
    seglog.backup(in_memory / "kafka", in_memory / "store")
    seen = 0
    for original in sorted((in_memory / "kafka").iterdir()):
        expected = rows(original, on_corrupt="skip")
        assert rows(f"{in_memory / 'store'}#latest/{original.name}", on_corrupt="skip") == expected
        seen += len(expected)
    assert seen > len(cases)


def test_any_part_of_a_file_is_its_bytes_wherever_its_pieces_end(data, store):
    with seglog.open(data / "orders-0", clock=ManualClock(NOW)) as log:
        for _ in range(5):      # each run stores what the segment has grown by, as a piece
            fill(log)
            seglog.backup(data, store)
        [path] = data.glob("orders-0/*.log")
        raw = path.read_bytes()
    shown = pickle.loads(pickle.dumps(SnapshotStore(str(store), "latest", {})))
    where = f"{shown.root}/orders-0/{path.name}"
    assert shown.read(where) == raw
    draw = random.Random(1)
    for _ in range(300):
        begin = draw.randrange(len(raw) + 10)
        size_bytes = draw.randrange(1, len(raw))
        assert shown.part(where, begin, size_bytes) == raw[begin : begin + size_bytes]


def test_damage_in_the_store_is_named_and_never_read_as_records(log, data, store):
    seglog.backup(data, store)
    largest = max((store / "objects").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    raw = bytearray(largest.read_bytes())
    raw[len(raw) // 2] ^= 1
    largest.write_bytes(raw)
    with pytest.raises(CorruptBackupError, match="SHA-256") as caught:
        rows(f"{store}#latest/orders-0")
    assert caught.value.file == str(largest)


def test_a_table_that_is_ahead_of_the_backup_is_not_taken_for_its_copy(log, data, store, in_memory):
    seglog.backup(data, store)
    fill(log)
    seglog.write_table(log.path, in_memory / "lake")
    with pytest.raises(InvalidArgumentError, match="the log ends at offset 20"):
        seglog.write_table(f"{store}#latest/orders-0", in_memory / "lake")


def test_a_backup_in_a_bucket_is_read_where_it_lies(log, data, in_memory, monkeypatch):
    server = ObjectsOnDisk(in_memory / "cloud", monkeypatch)
    url = f"{server.bucket('backups')}/kafka"
    seglog.backup(data, url, options=server.options)
    assert rows(f"{url}#latest/orders-*", store_options=server.options) == rows(log.path)


@pytest.mark.parametrize(("inside", "error", "message"), [
    ("latest/orders-1", NotALogError, "no partition of this name"),
    ("latest/x*", NotALogError, "no partition"),
    ("1999/orders-0", InvalidArgumentError, "no snapshot"),
])
def test_what_is_not_in_the_backup_is_told(log, data, store, inside, error, message):
    seglog.backup(data, store)
    with pytest.raises(error, match=message):
        rows(f"{store}#{inside}")


def test_a_directory_with_such_a_name_is_itself(in_memory):
    path = in_memory / "a#latest/orders-0"
    with seglog.open(path) as log:
        log.append(b"x")
    assert path_in_backup(path) is None
    assert [row["value"] for row in rows(path)] == [b"x"]


@pytest.mark.parametrize("path", ["data/a#b/orders-0", "#latest/orders-0", "store#", "store#late/x-0", b"s#latest"])
def test_other_names_with_that_sign_are_paths(path):
    assert path_in_backup(path) is None


def test_export_reads_a_backup_and_other_commands_say_how_to_get_a_directory(log, data, store, in_memory):
    seglog.backup(data, store)
    done = command("export", f"{store}#latest/orders-0", "--into", in_memory / "lake")
    assert done.stdout == "orders-0: offsets 0 to 19, 20 rows\n"
    told = command("verify", f"{store}#latest/orders-0", status=2).stderr
    assert f"`seglog restore {store} DIR --snapshot latest --partition orders-0`" in told
    assert not os.path.exists("DIR")
    told = command("verify", "s3://backups/kafka#latest/orders-0", status=2).stderr
    assert "`seglog restore s3://backups/kafka DIR --snapshot latest --partition orders-0`" in told


@pytest.mark.parametrize("in_bucket", [False, True])
@pytest.mark.parametrize("arguments", [
    ["ls"], ["dump"], ["dump", "--batches", "--json"], ["dump", "--format", "csv", "--from-offset", "7"],
    ["dump", "--format", "%o %s\n"], ["seek", "--offset", "13"], ["seek", "--time", str(NOW + 5), "--json"], ["stats"],
    ["ls", "--json"], ["stats", "--json", "--now", str(NOW)],
], ids=" ".join)
def test_commands_that_look_say_of_a_backup_what_they_say_of_its_source(data, store, monkeypatch, arguments, in_bucket):
    options = []
    if in_bucket:
        server = ObjectsOnDisk(data.parent / "cloud", monkeypatch)
        store = f"{server.bucket('backups')}/kafka"
        options = [word for key, value in server.options.items() for word in ("--store-option", f"{key}={value}")]
    with seglog.open(data / "orders-0", clock=ManualClock(NOW)) as log:
        for _ in range(3):
            fill(log)
            log.append(bytes(5000))
            log.roll()
    snapshot_id = seglog.backup(data, store, options=server.options if in_bucket else None).snapshot.id
    expected = command(*arguments, data / "orders-0").stdout
    assert expected
    temporary = data.parent / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    shown = command(*arguments, f"{store}#latest/orders-0", *options).stdout
    assert shown.replace(f"{store}#{snapshot_id}/orders-0", str(data / "orders-0")) == expected
    assert list(temporary.iterdir()) == []


def test_a_reader_that_goes_away_leaves_no_copy_of_a_backup_behind(data, store, in_memory):
    with seglog.open(data / "orders-0") as log:
        for _ in range(200):
            log.append(b"x" * 2000)     # more than a pipe holds
    seglog.backup(data, store)
    temporary = in_memory / "temporary"
    temporary.mkdir()
    arguments = [sys.executable, "-m", "seglog.tools", "dump", "--json", f"{store}#latest/orders-0"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(temporary)}
    ) as running:
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == -signal.SIGPIPE
    assert list(temporary.iterdir()) == []


def test_a_whole_snapshot_is_listed_as_a_log_dir_and_what_is_damaged_is_named(log, data, store, monkeypatch):
    with seglog.open(data / "payments-0") as other:
        other.append(os.urandom(2000))
    seglog.backup(data, store)
    listed = command("ls", f"{store}#latest").stdout
    assert [line.split()[0] for line in listed.splitlines()[1:3]] == ["orders-0", "payments-0"]
    for path in (store / "objects").rglob("*"):     # the one with the 2 000 random bytes
        if path.is_file() and 2000 < path.stat().st_size < 2200:
            path.write_bytes(bytes(path.stat().st_size))
    told = command("ls", f"{store}#latest", status=7)
    assert "SHA-256" in told.stderr
    assert "orders-0" in told.stdout
    assert "SHA-256" in command("dump", f"{store}#latest/payments-0", status=1).stderr


def test_damage_of_the_source_is_named_by_its_place_in_the_backup(log, data, store):
    log.close()
    [first, *_] = sorted(data.glob("orders-0/*.log"))
    raw = bytearray(first.read_bytes())
    raw[len(raw) // 2] ^= 1
    first.write_bytes(raw)
    snapshot_id = seglog.backup(data, store).snapshot.id
    where = f"{store}#{snapshot_id}/orders-0/{first.name}"
    assert where in command("dump", f"{store}#latest/orders-0", status=1).stderr
    assert where in command("dump", f"{store}#latest/orders-0", "--on-corrupt", "skip", status=7).stderr
    assert "no partition of this name" in command("ls", f"{store}#latest/orders-1", status=4).stderr
