"""`seglog backup` and `seglog restore` on the command line."""
import pytest

import seglog
from support.command import seglog as run
from support.command import seglog_json


@pytest.fixture
def data(tmp_path):
    with seglog.open_dir(tmp_path / "data") as log_dir:
        for topic, partition in (("orders", 0), ("orders", 1), ("bills", 0)):
            for n in range(5):
                log_dir.log(topic, partition).append(b"%d" % n)
    return tmp_path / "data"


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def test_create_ls_and_restore(data, store, tmp_path):
    (made,) = seglog_json("backup", "create", data, store)
    assert (made["type"], made["partitions"], made["left_out"], made["dry_run"]) == ("backup", 3, {}, False)
    (again,) = seglog_json("backup", "create", data, store)
    assert (again["unchanged_partitions"], again["stored_objects"], again["read_bytes"]) == (3, 0, 0)
    snapshots = seglog_json("backup", "ls", store)
    assert [snapshot["snapshot"] for snapshot in snapshots] == [made["snapshot"], again["snapshot"]]
    parts = seglog_json("backup", "ls", store, "--snapshot", "latest")
    assert [(part["partition"], part["next_offset"]) for part in parts] == [
        ("bills-0", 5), ("orders-0", 5), ("orders-1", 5)]
    restored = seglog_json("restore", store, tmp_path / "back", "--topic", "orders")
    assert [line["partition"] for line in restored[:-1]] == ["orders-0", "orders-1"]
    assert restored[-1]["snapshot"] == again["snapshot"]
    refused = run("restore", store, tmp_path / "back", "--partition", "orders-1", status=2)
    assert "exists already" in refused.stderr
    run("restore", store, tmp_path / "back", "--partition", "bills-0", "--snapshot", made["snapshot"])
    assert seglog.verify(tmp_path / "back/bills-0").ok


def test_damage_with_whole_batches_behind_it_is_named(data, store, tmp_path):
    path = data / "orders-0" / f"{0:020}.log"
    raw = bytearray(path.read_bytes())
    raw[60] ^= 0x40
    path.write_bytes(raw)
    (made,) = seglog_json("backup", "create", data, store, status=7)
    assert (list(made["damaged"]), made["left_out"]) == (["orders-0"], {})
    refused = run("backup", "create", data, store, status=7)
    assert f"damaged in the source, and stored as it is: orders-0/{path.name}: byte 0: " in refused.stderr
    *_, summary = seglog_json("restore", store, tmp_path / "back", status=7)
    assert summary["damaged"] == [f"orders-0/{path.name}"]
    assert (tmp_path / "back/orders-0" / path.name).read_bytes() == raw


def test_text_says_what_was_done(data, store, tmp_path):
    text = run("backup", "create", data, store).stdout
    assert text.startswith("3 partitions, 0 unchanged; ")
    assert seglog.BackupStore(store).snapshot().id in text
    assert "3 partitions" in run("restore", store, tmp_path / "back").stdout
    listed = run("backup", "ls", store).stdout
    assert f":{data}" in listed
    assert "orders-1" in run("backup", "ls", store, "--snapshot", "latest").stdout
    assert "nothing is damaged" in run("backup", "check", store, "--read-data").stdout


def test_dry_runs(data, store, tmp_path):
    text = run("backup", "create", data, store, "--dry-run", status=1).stdout
    assert "would be stored" in text
    assert f"To do it: seglog backup create {data} {store}\n" in text
    assert not store.exists()
    for _ in range(3):
        run("backup", "create", data, store)
    run("restore", store, tmp_path / "back", "--dry-run", status=1)
    assert not (tmp_path / "back").exists()
    text = run("backup", "forget", store, "--keep-last", 1, status=1).stdout
    assert "2 snapshots would be removed, 1 kept" in text
    assert "--keep-last 1 --apply" in text
    assert len(seglog_json("backup", "ls", store)) == 3
    run("backup", "forget", store, "--keep-last", 1, "--apply")
    assert len(seglog_json("backup", "ls", store)) == 1
    assert "nothing to do" in run("backup", "forget", store, "--keep-daily", 1).stdout
    (store / "objects/aa" / ("aa" + "0" * 62)).write_bytes(b"of a killed run")
    (found,) = seglog_json("backup", "prune", store, status=1)
    assert (found["objects"], found["size_bytes"]) == (1, 15)
    run("backup", "prune", store, "--apply")
    assert "nothing to do" in run("backup", "prune", store).stdout


def test_check_names_what_is_damaged_and_who_needs_it(data, store):
    run("backup", "create", data, store)
    victim = next(path for path in (store / "objects").rglob("*") if path.is_file())
    raw = victim.read_bytes()
    victim.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    finding, summary = seglog_json("backup", "check", store, "--read-data", status=1)
    assert finding["file"] == str(victim)
    assert finding["snapshots"] == [seglog.BackupStore(store).snapshot().id]
    assert summary["findings"] == 1


def test_what_is_no_store_and_what_is_no_choice(data, store, tmp_path):
    assert "no backups here" in run("backup", "ls", store, status=2).stderr
    run("backup", "create", tmp_path / "nothing", store, status=3)
    run("backup", "create", data, store)
    assert "nothing would be kept" in run("backup", "forget", store, status=2).stderr
    run("backup", "forget", store, "--keep-last", "-1", status=2)
    run("backup", "create", data, store, "--compression", "lz4", status=2)
    assert "no topic 'x'" in run("restore", store, tmp_path / "back", "--topic", "x", status=2).stderr


def test_a_partition_that_is_left_out_is_named(data, store):
    for path in (data / "bills-0").iterdir():
        if not path.name.endswith(".log"):
            path.unlink()
    (log,) = (data / "bills-0").glob("*.log")
    log.unlink()
    log.symlink_to("nowhere")
    done = run("backup", "create", data, store, status=7)
    assert "left out: bills-0" in done.stderr


def test_create_checks_the_checksums_of_what_it_reads(tmp_path):
    """Red: status 0 and no word; only `restore` said it."""
    data = tmp_path / "data"
    with seglog.open(data / "orders-0") as log:
        for n in range(3):
            log.append_many([(None, b"v%d" % n)] * 3)
            log.roll()
    sealed = data / "orders-0/00000000000000000003.log"
    raw = bytearray(sealed.read_bytes())
    raw[-1] ^= 1
    sealed.write_bytes(raw)
    result = run("backup", "create", data, tmp_path / "store", status=7)
    assert f"orders-0/{sealed.name}: byte 0: the checksum does not match; run `seglog verify`" in result.stderr
    # What the store has is not read again; what is new is.
    assert "damaged" not in run("backup", "create", data, tmp_path / "store").stderr
    with seglog.open(data / "orders-0") as log:
        log.append(b"more")
    assert "damaged" not in run("backup", "create", data, tmp_path / "store").stderr
    active = sorted((data / "orders-0").glob("*.log"))[-1]
    raw = bytearray(active.read_bytes())
    with seglog.open(data / "orders-0") as log:
        log.append(b"still more")
        log.append(b"at its end, a damaged batch is an unfinished write")
    whole = bytearray(active.read_bytes())
    whole[len(raw) + 70] ^= 1
    active.write_bytes(whole)
    assert active.name in run("backup", "create", data, tmp_path / "store", status=7).stderr


def test_damaged_bytes_in_quarantine_are_in_no_backup_and_that_is_said(data, store):
    """Red: no word of it."""
    path = data / "orders-0" / f"{0:020}.log"
    raw = bytearray(path.read_bytes())
    raw[60] ^= 0x40
    path.write_bytes(raw)
    run("recover", data / "orders-0", "--mode", "quarantine", "--apply", status=1)
    kept, = (data / "orders-0/quarantine").glob("*.damaged")
    (made,) = seglog_json("backup", "create", data, store)
    assert made["quarantined"] == {"orders-0": kept.stat().st_size}
    told = run("backup", "create", data, store).stderr
    assert "in quarantine/ of orders-0; to keep these damaged bytes, copy" in told
