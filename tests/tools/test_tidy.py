"""`seglog tidy`: what it lists, what it removes, and what it never touches."""
import os
import shutil

import pytest

import seglog as engine
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.fs.staging import Staging
from seglog.upkeep.tidy import tidy
from support.command import seglog, seglog_json
from support.golden import golden_cases
from support.internal_topics import kraft
from support.killed_command import killed

FIRST = f"{0:020}"
TOKEN = "0" * 32
LITTER = {
    f"orders-0/{FIRST}.index.bak": "backup",
    "orders-0/leader-epoch-checkpoint.bak": "backup",
    "recovery-point-offset-checkpoint.bak": "backup",
    f"orders-0/{FIRST}.log.deleted": "deleted file",
    f"orders-0/{FIRST}.snapshot.deleted": "deleted file",
    f"orders-0/{FIRST}.timeindex.tmp": "scratch",
    "orders-0/leader-epoch-checkpoint.tmp": "scratch",
    f"gone-3.{TOKEN}-delete/{FIRST}.log": "deleted partition",
}
STRAY = f"unknown-1.{TOKEN}-stray/{FIRST}.log"
# What a broker or a writer needs, and what is none of ours.
NEEDED = [
    f"orders-0/{5:020}.log.swap", f"orders-0/{9:020}.log.cleaned", f"moving-0.{TOKEN}-future/{FIRST}.log",
    "orders-0/quarantine/index.json", f"orders-0/{7:020}-0000000001.checkpoint.deleted", "orders-0/notes.bak",
    "notes.tmp", "elsewhere/orders.bak", f"elsewhere/{FIRST}.index.bak",
]


def files(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def data(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with engine.open(data / "orders-0") as log:
        log.append(b"1")
    return data


def put(data, *names):
    for name in names:
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")


def test_what_nobody_needs_is_listed_then_removed_and_all_else_stays(data):
    before = files(data)
    put(data, *LITTER, STRAY, *NEEDED)
    left = files(data)
    dry = seglog_json("tidy", data, status=1)
    assert files(data) == left
    found = {line["path"]: line["kind"] for line in dry[:-1]}
    assert found == {
        str(data / (name.split("/")[0] if kind == "deleted partition" else name)): kind for name, kind in LITTER.items()
    }
    assert (dry[-1]["items"], dry[-1]["size_bytes"]) == (len(LITTER), 5 * len(LITTER))
    assert dry[-1]["apply"] == f"seglog tidy {data} --apply"
    assert "8 items, 40 B, removed" in seglog("tidy", data, "--apply").stdout
    assert files(data).keys() == {*before, STRAY, *NEEDED}
    assert {name: raw for name, raw in files(data).items() if name in before} == before
    assert not (data / f"gone-3.{TOKEN}-delete").exists()
    assert "dry run: nothing to do" in seglog("tidy", data).stdout
    with engine.open(data / "orders-0", create=False) as log:
        assert [record.value for record in log.read()] == [b"1"]


def test_a_stray_partition_goes_only_if_asked(data):
    put(data, STRAY)
    assert tidy(data) == []
    assert [one.kind for one in tidy(data, with_stray=True, apply=True)] == ["stray partition"]
    assert not (data / STRAY).parent.exists()


def test_what_a_killed_run_was_building_goes(data):
    staging = Staging.of_partition(OsFileSystem(), data / "new-0")
    with staging:
        staging.write_file("x", b"12345")
        shutil.copytree(staging.path, data.parent / "kept")
        path = staging.path
    (data.parent / "kept").rename(path)
    assert [(one.path, one.kind) for one in tidy(data, apply=True)] == [(path, "staging")]
    assert not path.exists()


def test_what_seglog_was_writing_goes_once_no_writer_can_be_alive(data):
    names = ["orders-0/.seglog.config.tmp", ".seglog.cluster_id.tmp", ".seglog.users.tmp"]
    before = files(data)
    put(data, *names, "orders-0/.seglog.config")
    assert tidy(data) == []
    for name in [*names, "orders-0/.seglog.config"]:
        os.utime(data / name, (0, 0))
    assert {(str(one.path.relative_to(data)), one.kind) for one in tidy(data, apply=True)} == {
        (name, "scratch") for name in names
    }
    assert files(data).keys() == {*before, "orders-0/.seglog.config"}


def test_a_log_dir_in_use_is_left_alone(data):
    put(data, *LITTER)
    left = files(data).keys()
    with engine.open(data / "orders-0"):
        # (An opening removes the .deleted files of its partition itself.)
        now = files(data).keys()
        assert "locked" in seglog("tidy", data, "--apply", status=5).stderr
        assert files(data).keys() == now
        seglog("tidy", data, status=1)
    assert left - now == {name for name, kind in LITTER.items() if name.startswith("orders-0/") and kind != "backup"}


def test_links_are_removed_and_not_followed(data, tmp_path):
    outside = tmp_path / "outside"
    put(outside, f"{FIRST}.log")
    os.symlink(outside, data / f"gone-3.{TOKEN}-delete")
    os.symlink(outside / f"{FIRST}.log", data / f"orders-0/{FIRST}.index.bak")
    assert [one.kind for one in tidy(data, apply=True)] == ["deleted partition"]
    assert (outside / f"{FIRST}.log").exists()
    assert not os.path.lexists(data / f"gone-3.{TOKEN}-delete")


def test_nothing_of_a_brokers_disk_is_litter():
    for version in ("3.9.1", "4.1.1", "4.4.0"):
        assert tidy(kraft(version), with_stray=True) == []
    for case in golden_cases()[:20]:
        assert [one.kind for one in tidy(case, with_stray=True) if one.kind != "deleted file"] == []


def test_a_log_dir_whose_partitions_are_all_deleted_and_several_log_dirs(tmp_path):
    for name in ("disk1", "disk2"):
        put(tmp_path / name, f"gone-3.{TOKEN}-delete/{FIRST}.log", "meta.properties")
    assert seglog_json("tidy", tmp_path / "disk1", tmp_path / "disk2", status=1)[-1]["items"] == 2
    assert seglog_json("tidy", tmp_path, "--apply")[-1]["items"] == 2


# --- the backups of conversions in place ----------------------------------------------------


@pytest.fixture
def backups(data):
    """Where a conversion was rolled back: its directory and its lock stay."""
    backups = data.parent / "backups"
    convert(data, backups)
    seglog("convert", data / "orders-0", "--rollback", "--backup", backups)
    return backups


def records(data):
    return {name: raw for name, raw in files(data).items() if name.endswith(".log")}


def convert(data, backups, run=seglog, *die):
    run(*die, "convert", data / "orders-0", "--in-place", "--apply", "--repack", "64k", "--backup", backups)


@pytest.mark.parametrize(("method", "part", "kinds"), [
    ("create", ".log", ["staging"]),                                    # the result is being built
    ("create", ".seglog-exchange.tmp", ["staging"]),
    ("replace", ".seglog-exchange.tmp", ["scratch", "staging"]),        # the journal is written, and has no name
    ("rename", "backups/orders-0", ["exchange journal", "staging"]),    # it has one, and the result is complete
])
def test_what_a_killed_conversion_left_beside_its_backups_goes(data, backups, method, part, kinds):
    before = records(data)
    convert(data, backups, killed, method, part, 1)
    left = files(backups)
    assert sorted(line["kind"] for line in seglog_json("tidy", backups, status=1)[:-1]) == kinds
    assert files(backups) == left
    seglog("tidy", backups, "--apply")
    assert [path.name for path in backups.iterdir()] == [".lock"]
    assert records(data) == before
    convert(data, backups)


@pytest.mark.parametrize(("method", "part", "nth"), [
    ("exchange", "backups/orders-0", 3), ("sync_directory", "data", 1),     # two exchanges are a trial
])
def test_an_exchange_that_is_not_over_and_a_backup_stay(data, backups, method, part, nth):
    """The next conversion or rollback needs them."""
    before = records(data)
    convert(data, backups, killed, method, part, nth)
    left = files(backups)
    assert "orders-0.seglog-exchange" in left
    put(backups, *(f"orders-0/{name}" for name in (f"{FIRST}.index.bak", f"{FIRST}.log.deleted")))
    assert "nothing to do" in seglog("tidy", backups).stdout
    assert seglog_json("tidy", backups, "--apply")[-1]["items"] == 0
    for name in (f"{FIRST}.index.bak", f"{FIRST}.log.deleted"):
        (backups / "orders-0" / name).unlink()
    assert files(backups) == left
    seglog("convert", data / "orders-0", "--rollback", "--backup", backups)
    assert records(data) == before


def test_the_journal_of_a_backup_that_was_removed_goes(data, backups):
    convert(data, backups)
    converted = records(data)
    assert tidy(backups) == []
    shutil.rmtree(backups / "orders-0")
    assert [(one.path.name, one.kind) for one in tidy(backups)] == [("orders-0.seglog-exchange", "exchange journal")]
    tidy(backups, apply=True)
    assert [path.name for path in backups.iterdir()] == [".lock"]
    assert records(data) == converted


def test_backups_that_a_conversion_uses_are_left_alone(data, backups):
    convert(data, backups, killed, "create", ".log", 1)
    left = files(backups)
    with lock_log_dir(OsFileSystem(), backups):
        seglog("tidy", backups, "--apply", status=5)
    assert files(backups) == left


def test_links_in_the_place_of_exchanges_stay(data, backups, tmp_path):
    outside = tmp_path / "outside"
    put(outside, "precious")
    convert(data, backups, killed, "create", ".log", 1)
    [staging] = [path for path in backups.iterdir() if path.is_dir()]
    shutil.rmtree(staging)
    staging.symlink_to(outside)
    (backups / "orders-1.seglog-exchange").symlink_to(outside / "precious")
    assert tidy(backups, apply=True) == []
    assert files(outside) == {"precious": b"12345"}


def test_what_is_no_log_dir_is_refused(data):
    assert "not a log dir" in seglog("tidy", data / "orders-0", status=4).stderr
    (data.parent / "empty").mkdir()
    assert "not a log dir" in seglog("tidy", data.parent / "empty", status=4).stderr


def test_many_items_of_one_kind_are_folded_and_all_of_them_go(data):
    for n in range(25):
        (data / f"orders-0/{n:020}.index.tmp").write_bytes(b"123")
    found = [line for line in seglog_json("tidy", data, status=1) if line["type"] == "litter"]
    assert len(found) == 25
    text = seglog("tidy", data, status=1).stdout
    assert text.count(".index.tmp") == 10
    assert f"and 15 more in {data}/orders-0: --all" in text
    assert seglog("tidy", data, "--all", status=1).stdout.count(".index.tmp") == 25
    seglog("tidy", data, "--apply")
    assert list(data.rglob("*.tmp")) == []
