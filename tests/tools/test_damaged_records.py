"""Records of damaged batches, marked as unproven; and records of transactions, with what became of them."""
import os
import shutil

import pytest

import seglog as engine
from seglog.format.batch import build_batch
from seglog.format.batch_layout import MAGIC_POS
from support.command import partition_of, seglog, seglog_json
from support.internal_topics import kraft


@pytest.fixture
def orders(tmp_path):
    """Batches of the offsets 0…2, 3…5, 6…8; in the second, the last byte of a value is wrong."""
    path = tmp_path / "data/orders-0"
    with engine.open(path) as log:
        for n in range(3):
            log.append_batch(build_batch([(b"k%d" % m, b"value %d" % m, ()) for m in range(3 * n, 3 * n + 3)]))
    log, = path.glob("*.log")
    raw = bytearray(log.read_bytes())
    raw[raw.index(b"value 4") + 6] ^= 1
    log.write_bytes(raw)
    return path


def offsets(lines):
    return [(line["offset"], line.get("unproven", False)) for line in lines if "offset" in line]


ALL = [*((n, False) for n in range(3)), *((n, True) for n in range(3, 6)), *((n, False) for n in range(6, 9))]


def test_records_of_a_damaged_batch_are_shown_in_their_place_and_marked(orders):
    """Red: no such value of --on-corrupt; nothing showed them."""
    lines = seglog_json("dump", orders, "--on-corrupt", "show", status=7)
    assert offsets(lines) == ALL
    assert [line["type"] for line in lines if "type" in line] == ["lost_range"]
    rows = list(seglog("dump", orders, "--on-corrupt", "show", status=7).stdout.splitlines()[1:])
    assert [row.endswith("  [unproven]") for row in rows] == [unproven for _, unproven in ALL]
    assert '"value 5"' in rows[4]       # the wrong byte
    assert offsets(seglog_json("dump", orders, "--on-corrupt", "skip", status=7)) == [
        one for one in ALL if not one[1]]


@pytest.mark.parametrize(("options", "expected"), [
    (["--from-offset", 4], ALL[4:]), (["--to-offset", 4], ALL[:4]), (["--key", "k5"], [(5, True)]),
    (["--limit", 4], ALL[:4]),
])
def test_conditions_hold_for_unproven_records_too(orders, options, expected):
    assert offsets(seglog_json("dump", orders, "--on-corrupt", "show", *options, status=7)) == expected


SECOND = 109        # where the second of these batches begins


@pytest.fixture
def disguised(tmp_path):
    """The same batches, intact; but the second gets another magic, which no checksum of it covers."""
    path = tmp_path / "data/orders-0"
    with engine.open(path) as log:
        for n in range(3):
            log.append_batch(build_batch([(b"k%d" % m, b"value %d" % m, ()) for m in range(3 * n, 3 * n + 3)]))

    def with_magic(magic):
        log, = path.glob("*.log")
        raw = bytearray(log.read_bytes())
        raw[SECOND + MAGIC_POS] = magic
        log.write_bytes(raw)
        return path

    return with_magic


@pytest.mark.parametrize("magic", [0, 1])
def test_a_batch_of_which_the_magic_alone_is_wrong_is_shown_with_the_right_one(disguised, magic):
    """Red: it was read by the other format's header, and nothing of it was shown, nor from quarantine."""
    path = disguised(magic)
    assert offsets(seglog_json("dump", path, "--on-corrupt", "show", status=7)) == ALL
    rows = seglog_json("dump", "--batches", path, "--on-corrupt", "show", status=7)
    assert [(row["magic"], row["position"]) for row in rows if row.get("unproven")] == [(2, SECOND)]
    dry = seglog("recover", path, "--mode", "quarantine", status=1).stdout
    assert "3 records of it can still be read" in dry
    seglog("recover", path, "--mode", "quarantine", "--apply", status=1)
    kept, = (path / "quarantine").glob("*.damaged")
    assert offsets(seglog_json("dump", kept)) == [(3, True), (4, True), (5, True)]


@pytest.mark.parametrize("magic", [3, 9, 127])
def test_verify_says_of_a_magic_that_brokers_accept_what_they_do(disguised, magic):
    """Red: "it cuts nothing, and ; make a copy first"."""
    path = disguised(magic)
    assert offsets(seglog_json("dump", path, "--on-corrupt", "show", status=7)) == ALL
    text = seglog("verify", path, status=1).stdout
    assert "loses 0 records; a broker leaves this as it is; make a copy first" in text


def test_a_message_of_which_the_magic_alone_is_wrong_is_shown_too(golden_kafka, tmp_path):
    """Its checksum covers the magic, with which alone it is right."""
    path = shutil.copytree(partition_of(golden_kafka / "cases/v1-none-ct-k391"), tmp_path / "orders-0")
    log = min(path.glob("*.log"))
    raw = bytearray(log.read_bytes())
    raw[MAGIC_POS] = 0
    log.write_bytes(raw)
    shown = [line for line in seglog_json("dump", path, "--on-corrupt", "show", status=7) if "offset" in line]
    whole = seglog_json("dump", partition_of(golden_kafka / "cases/v1-none-ct-k391"))
    assert shown == [{**whole[0], "unproven": True}, *whole[1:]]


def test_headers_of_damaged_batches_are_shown_too(orders):
    rows = [line for line in seglog_json("dump", "--batches", orders, "--on-corrupt", "show", status=7)
            if "base_offset" in line]
    assert [(row["base_offset"], row.get("unproven", False), row["crc_valid"]) for row in rows] == [
        (0, False, True), (3, True, False), (6, False, True)]


@pytest.mark.parametrize("format_", ["csv", "jsonl", "raw", "%o\\n"])
def test_no_table_and_no_template_gets_them(orders, format_):
    assert "cannot be combined with --format" in seglog(
        "dump", orders, "--on-corrupt", "show", "--format", format_, status=2).stderr
    assert "invalid_argument" not in seglog("export", orders, "--into", orders.parent / "x", "--on-corrupt", "show",
                                            status=2).stdout


def test_what_a_recovery_kept_is_shown_from_quarantine(orders):
    dry = seglog("recover", orders, "--mode", "quarantine", status=1).stdout
    assert f"3 records of it can still be read, unproven: `seglog dump --on-corrupt show {orders}`" in dry
    done = seglog("recover", orders, "--mode", "quarantine", "--apply", status=1).stdout
    assert f"`seglog dump {orders}/quarantine/*.damaged` shows what can still be read of it, unproven" in done
    assert "the log then has offsets 0…8 (3…5 missing)" in done
    kept, = (orders / "quarantine").glob("*.damaged")
    lines = seglog_json("dump", kept)
    assert offsets(lines) == [(3, True), (4, True), (5, True)]
    assert {line["partition"] for line in lines} == {"orders-0"}
    assert seglog("dump", kept).stdout.count("[unproven]") == 3
    refused = seglog("dump", kept, "--limit", 1, status=2).stderr
    assert f"--limit selects records of a log, and {kept} is shown whole" in refused


def test_what_recovery_took_out_is_no_failure_of_later_commands(tmp_path):
    """Red: status 7 of export and of a table, 0 of dump as text."""
    pytest.importorskip("pyarrow")
    orders = tmp_path / "data/orders-0"
    with engine.open(orders) as log:
        for _n in range(3):
            log.append_batch(build_batch([(None, b"v", ())] * 3))
            log.roll()
    log = orders / "00000000000000000003.log"
    raw = bytearray(log.read_bytes())
    raw[-1] ^= 1
    log.write_bytes(raw)
    seglog("recover", orders, "--mode", "quarantine", "--apply", status=1)
    words = "offsets 3…5 are in quarantine: a recovery took them out"
    assert words in seglog("dump", orders, "--format", "csv").stderr
    assert words in seglog("export", orders, "--into", tmp_path / "lake").stderr
    (orders / "quarantine/index.json").unlink()
    assert "offsets 3…5 are in no segment" in seglog("dump", orders, "--format", "csv", status=7).stderr


def test_hostile_bytes_end_and_take_no_memory(orders, tmp_path):
    """Every flipped byte of the damaged batch, and noise: each dump ends by itself, with all sound records."""
    log, = orders.glob("*.log")
    whole = bytearray(log.read_bytes())
    size = len(whole) // 3
    for at in range(size, 2 * size, 3):
        raw = bytearray(whole)
        raw[at] ^= 0xFF
        log.write_bytes(raw)
        lines = seglog_json("dump", orders, "--on-corrupt", "show", status=None)
        sound = {line["offset"] for line in lines if "offset" in line and not line.get("unproven")}
        assert {0, 1, 2} <= sound, at
        assert sum(1 for line in lines if line.get("unproven")) <= 3 + size, at
    noise = tmp_path / "noise.damaged"
    noise.write_bytes(os.urandom(4096))
    assert "nothing in it can be decoded" in seglog("dump", noise).stderr


# --- transactions ----------------------------------------------------------------------------------


def test_aborted_and_open_records_are_marked():
    """Red: they looked committed."""
    data = kraft("4.1.1")
    lines = {(line["partition"], line["offset"]): line.get("transaction")
             for line in seglog_json("dump", data, "--topic", "orders") if "offset" in line}
    assert {where: what for where, what in lines.items() if what} == {
        ("orders-0", 20): "committed", ("orders-0", 22): "open", ("orders-1", 4): "aborted",
    }
    text = seglog("dump", data / "orders-0", data / "orders-1").stdout
    assert [line.split()[0] for line in text.splitlines() if line.endswith("  [open]")] == ["22"]
    assert [line.split()[0] for line in text.splitlines() if line.endswith("  [aborted]")] == ["4"]


def test_committed_records_are_those_of_scan():
    data = kraft("4.1.1")
    for name in ("orders-0", "orders-1"):
        with engine.open_partition(data / name) as partition:
            expected = [record.offset for record in partition.read(isolation="read_committed")]
        lines = seglog_json("dump", data / name, "--isolation", "read_committed")
        assert [line["offset"] for line in lines if not line["control"]] == expected
        assert [int(n) for n in seglog(
            "dump", data / name, "--isolation", "read_committed", "--format", "%o\\n").stdout.split()] == expected
    assert [line["offset"] for line in seglog_json(
        "dump", data / "orders-0", "--isolation", "read_committed", "--tail", 1)] == [21]
    assert "--follow" in seglog("dump", data / "orders-0", "--follow", "--isolation", "read_committed", status=2).stderr


def test_every_outcome_is_that_of_the_markers(golden_kafka):
    """Of every golden log with transactions: as a plain walk over its control records says."""
    seen = set()
    for case in sorted((golden_kafka / "cases").glob("txn-*")):
        path = case / f"{case.name}-0"
        lines = list(seglog_json("dump", path))
        ends = [(line["offset"], line["producer_id"], line["control_type"]) for line in lines if line["control"]]
        for line in lines:
            if line["transactional"] and not line["control"]:
                end = next((what for at, producer, what in ends
                            if at > line["offset"] and producer == line["producer_id"]), None)
                expected = {"ABORT": "aborted", "COMMIT": "committed", None: "open"}[end]
                assert line.get("transaction") == expected, (path, line["offset"])
                seen.add(expected)
    assert seen >= {"aborted", "committed"}


# --- topics ----------------------------------------------------------------------------------------


def test_topics_of_a_log_dir_are_chosen_by_name_in_dump_and_export(tmp_path):
    data = kraft("4.1.1")
    lines = seglog_json("dump", data, "--topic", "ord*", "--topic", "table")
    assert {line["partition"] for line in lines} == {"orders-0", "orders-1", "table-0"}
    result = seglog("dump", data, "--topic", "nope", status=4)
    assert "no partition of a topic that matches 'nope'" in result.stderr
    pytest.importorskip("pyarrow")
    written = seglog("export", data, "--topic", "orders", "--into", tmp_path / "lake").stdout
    assert [line.split(":")[0] for line in written.splitlines()] == ["orders-0", "orders-1"]
    assert "--topic takes log dirs" in seglog(
        "export", f"{data}/orders-*", "--topic", "orders", "--into", tmp_path / "other", status=2).stderr
    rows = seglog("dump", data, "--topic", "table", "--format", "csv", "--columns", "topic").stdout.splitlines()
    assert set(rows[1:]) == {'"table"'}


# --- hints -----------------------------------------------------------------------------------------


def test_hints_name_what_helps(orders):
    assert "choose --mode quarantine or --mode truncate" in seglog("recover", orders, status=2).stderr
    assert "did you mean 'backup create'?" in seglog("backup", orders, "store", status=2).stderr
    with engine.open(orders.parent / "text-0") as log:
        log.append(b"no JSON")
    error = seglog_json("dump", orders.parent / "text-0", "--decode", "json", status=2)[-1]
    assert error["offset"] == 0
    assert error["file"].endswith("text-0")
    assert "--decode utf8" in error["fix"]
