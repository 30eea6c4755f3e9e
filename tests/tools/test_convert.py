"""`seglog convert`: what it says of a plan and of a result, and how it ends."""
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from seglog.conversion import directory
from seglog.conversion.directory import Options, plan_from_options
from seglog.conversion.losses import LOSS_KINDS
from seglog.conversion.resumption import NOTES_FILE
from seglog.conversion.throttle import Throttle
from seglog.format.checked_json import parse_json
from seglog.format.compression import decompressor
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.fs.staging import leftovers
from seglog.reading.partition import Partition
from seglog.tools import report
from support.command import golden_lines, partition_of, seglog, seglog_json
from support.golden import unpack
from support.killed_command import killed

ALL_LOSSES = ",".join(LOSS_KINDS)

DOWN = [pytest.param(d, id=d.name) for d in sorted((unpack("kafka") / "convert/down").iterdir())]
AT_REST = [pytest.param(d, id=d.name) for d in sorted((unpack("kafka") / "convert/up-at-rest").iterdir())]
SAME = ("offset", "timestamp", "key", "value", "headers")


@pytest.fixture
def case(golden_kafka):
    return golden_kafka / "cases/mixed-formats-k282"


@pytest.fixture
def source(case, tmp_path):
    return Path(shutil.copytree(partition_of(case), tmp_path / "old/orders-0"))


@pytest.fixture
def target(tmp_path):
    (tmp_path / "new").mkdir()
    return tmp_path / "new/orders-0"


def contents(directory):
    return {p.name: p.read_bytes() for p in directory.iterdir()}


def of_type(lines, name):
    return [line for line in lines if line["type"] == name]


def test_without_a_target_it_is_a_dry_run(source, tmp_path):
    before = contents(source)
    *segments, plan, summary = seglog_json("convert", source, status=1)
    assert summary["apply"] == f"seglog convert {source} DST"
    assert {line["type"] for line in segments} == {"plan_segment"}
    assert (plan["type"], plan["target"], plan["to"]) == ("plan", None, 2)
    assert plan["forecast_bytes"] == sum(s["forecast_bytes"] for s in segments) > 0
    assert plan["bytes"] == sum(f["bytes"] for s in segments for f in s["formats"])
    assert f"To do it: seglog convert {source} DST\n" in seglog("convert", source, status=1).stdout
    assert contents(source) == before
    assert sorted(p.name for p in source.parent.iterdir()) == ["orders-0"]


def test_with_a_target_every_record_is_the_same_in_v2(case, source, target):
    before = contents(source)
    lines = seglog_json("convert", source, target, "--to", 2)
    summary, = of_type(lines, "summary")
    records = golden_lines(case, "expected")
    assert (summary["proven"], summary["records"]) == (True, len(records))
    got = seglog_json("dump", target)
    assert [[r[f] for f in SAME] for r in got] == [[r[f] for f in SAME] for r in records]
    assert {r["magic"] for r in got} == {2}
    assert contents(source) == before


@pytest.mark.parametrize("arguments", [["convert"], ["recover", "--mode", "truncate", "--out"]])
def test_the_log_dir_of_the_target_is_made(source, tmp_path, arguments):
    target = tmp_path / "new/logs/orders-0"
    command, *options = arguments
    seglog(command, source, *options, target)
    assert seglog_json("stats", target)[0]["records"] == 101
    assert {path.name for path in target.parent.iterdir()} == {"orders-0", ".lock"}


@pytest.mark.parametrize("arguments", [["convert"], ["recover", "--mode", "truncate", "--out"]])
def test_what_is_in_the_way_of_the_log_dir_is_named_before_anything_is_made(source, tmp_path, arguments):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    command, *options = arguments
    for name, what in (("file", "a file"), ("link", "a broken symbolic link")):
        said = seglog(command, source, *options, tmp_path / name / "logs/orders-0", status=4).stderr
        assert f"expected a directory, found {what}" in said
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link", "old"}


def test_no_log_dir_is_made_for_a_plan_or_a_locked_source(source, tmp_path):
    target = tmp_path / "new/orders-0"
    plan_from_options(source, target, Options())
    with lock_log_dir(OsFileSystem(), source.parent):
        seglog("convert", source, target, status=5)
    assert not target.parent.exists()


def test_the_proof_is_printed_and_kept(source, target, tmp_path):
    lines = seglog_json("convert", source, target, "--proof", tmp_path / "proof.json")
    proofs = of_type(lines, "proof")
    assert all(p["holds"] and p["source_sha256"] == p["target_sha256"] for p in proofs)
    kept = json.loads((tmp_path / "proof.json").read_text())
    assert kept == json.loads(Path(of_type(lines, "summary")[0]["proof_file"]).read_text())
    assert [s["source"]["sha256"] for s in kept["segments"]] == [p["source_sha256"] for p in proofs]


def test_text_shows_the_proof(source, target):
    text = seglog("convert", source, target).stdout
    assert "digest" in text
    assert text.count("  same\n") == 2
    assert "101 records: offset, timestamp, key, value and headers are the same in both" in text


def test_repack_packs_and_warns_of_the_other_replicas(source, target):
    lines = seglog_json("convert", source, target, "--repack", "16k", "--codec", "zstd")
    assert any("replicas" in w for w in of_type(lines, "summary")[0]["warnings"])
    batches = seglog_json("dump", "--batches", target)
    assert len(batches) < 10
    assert {b["codec"] for b in batches} == {"zstd"}


def test_settings_reach_the_target(source, target):
    seglog("convert", source, target, "--config", "segment.bytes=1k", "--config", "index.interval.bytes=100")
    assert len(list(target.glob("*.log"))) > 2
    assert seglog_json("dump", target / "00000000000000000000.index")


def test_a_target_that_exists_is_status_2(source, target):
    target.mkdir()
    assert "[invalid_argument]" in seglog("convert", source, target, status=2).stderr


@pytest.mark.parametrize(
    "wrong", [["--to", "3"], ["--to", "x"], ["--codec", "brotli"], ["--repack", "-1"], ["--proof", "p.json"]]
)
def test_what_cannot_be_meant_is_status_2(source, wrong):
    assert len(seglog("convert", source, *wrong, status=2).stderr.splitlines()) == 3


def test_an_unknown_version_is_refused_with_the_known_ones(source):
    error = seglog("convert", source, "--to", 7, status=2).stderr
    assert "unknown record format '7'; expected 0, 1, 2 or tagged" in error


def test_one_log_file_is_no_partition(source):
    assert "[not_a_log]" in seglog("convert", source / "00000000000000000000.log", status=4).stderr


def test_a_damaged_source_is_status_1_and_leaves_nothing(source, target):
    log = source / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[350] ^= 1
    log.write_bytes(data)
    result = seglog("convert", source, target, status=1)
    assert "[corrupt_record]" in result.stderr
    assert len(result.stderr.splitlines()) == 3
    assert not [p for p in target.parent.iterdir() if p.name != ".lock"]


@pytest.mark.parametrize("side", ["old", "new"])
def test_beside_a_broker_is_status_5_and_leaves_nothing(source, target, tmp_path, side):
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / side / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        assert "[locked]" in seglog("convert", source, target, status=5).stderr
        holder.stdin.close()
        holder.wait()
    assert not target.exists()
    with open(tmp_path / "new/.lock", "a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_interrupt_is_status_130_and_leaves_nothing(source, target, monkeypatch):
    class Interrupting(report.Progress):
        def __call__(self, done, total):
            if self.label.startswith("converting"):
                raise KeyboardInterrupt

    monkeypatch.setattr(report, "Progress", Interrupting)
    assert seglog("convert", source, target, status=130).stderr == "interrupted\n"
    assert not [p for p in target.parent.iterdir() if p.name != ".lock"]


def test_an_interrupt_says_where_what_is_converted_of_a_large_partition_is(source, target, monkeypatch):
    class Interrupting(report.Progress):
        def __call__(self, done, total):
            notes = [path / NOTES_FILE for path in leftovers(target.parent)]
            if any(path.read_text().count("\n") > 1 for path in notes):       # its header, and a segment
                raise KeyboardInterrupt

    monkeypatch.setattr(directory, "LARGE_BYTES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(report, "Progress", Interrupting)
        first, second = seglog("convert", source, target, status=130).stderr.splitlines()
    staging, = leftovers(target.parent)
    assert first == "interrupted"
    assert f"segments) is kept in {staging}: --resume continues there" in second
    assert "converted by an earlier run" in seglog("convert", source, target, "--resume").stdout
    assert leftovers(target.parent) == []


@pytest.mark.parametrize("place", ["nowhere/proof.json", "source-0/proof.json", "."])
def test_a_proof_that_cannot_be_kept_there_is_refused_before_the_work(golden_kafka, tmp_path, place):
    source = tmp_path / "source-0"
    shutil.copytree(golden_kafka / "cases/v1-none-ct-k391/v1-none-ct-k391-0", source)
    before = sorted(source.iterdir())
    result = seglog("convert", source, tmp_path / "target-0", "--proof", tmp_path / place, status=2)
    assert "[invalid_argument]" in result.stderr
    assert not (tmp_path / "target-0").exists()
    assert sorted(source.iterdir()) == before


# --- what Kafka makes of the same bytes ------------------------------------------------------------


def one_segment(pair, tmp_path):
    """The input of a golden conversion as a partition directory, what Kafka made of it, and the name of its .log."""
    meta = json.loads((pair / "meta.json").read_text())
    name = meta["source"].rpartition("/")[2]
    source = tmp_path / "source/orders-0"
    source.mkdir(parents=True)
    shutil.copy(pair / "input.log", source / name)
    (tmp_path / "target").mkdir()
    return meta, source, tmp_path / "target/orders-0", name


def batches(raw):
    return list(scan(Window(raw), decompress=decompressor()))


def records(raw, from_offset=0):
    return [
        (r.offset, r.timestamp, r.key, r.value) for batch in batches(raw) for r in batch if r.offset >= from_offset
    ]


@pytest.mark.parametrize("pair", DOWN)
def test_down_is_what_kafka_gave_to_old_consumers(pair, tmp_path):
    meta, source, target, name = one_segment(pair, tmp_path)
    to = ["convert", source, target, "--to", meta["to_magic"], "--allow-lossy", ALL_LOSSES, "--aborted", "keep"]
    if "error" in meta:
        assert "[unsupported_compression_type]" in seglog(*to, status=6).stderr
        assert seglog_json(*to, "--codec", "gzip")[-1]["proven"]
        return
    seglog(*to)
    mine, kafkas = (target / name).read_bytes(), (pair / "output.log").read_bytes()
    if meta["records_converted"] == 0:
        # Kafka took it for a batch that the fetch cut short, and gave all bytes back: see tests/kernels.
        assert mine == b"".join(bytes(b.raw()) for b in batches(kafkas) if b.magic <= meta["to_magic"])
        return
    # What lies below the first offset of a fetch is not always left out. (RecordsUtil.downConvert)
    start = meta["first_offset"]
    assert records(mine, start) == records(kafkas, start)
    assert [b.last_offset for b in batches(mine) if b.last_offset >= start] == [
        b.last_offset for b in batches(kafkas) if b.last_offset >= start
    ]
    if all(b.codec == 0 for b in batches(kafkas)):
        assert mine.endswith(kafkas)


@pytest.mark.parametrize("pair", AT_REST)
def test_up_is_what_kafka_4_makes_of_data_at_rest(pair, tmp_path):
    meta, source, target, name = one_segment(pair, tmp_path)
    horizon = meta["filter_current_time"] + meta["filter_delete_retention_ms"]
    seglog("convert", source, target, "--delete-horizon", horizon)
    mine, kafkas = (target / name).read_bytes(), (pair / "output.log").read_bytes()
    assert records(mine) == records(kafkas)
    assert [(b.base_offset, b.last_offset, b.attributes, b.codec) for b in batches(mine)] == [
        (b.base_offset, b.last_offset, b.attributes, b.codec) for b in batches(kafkas)
    ]
    if all(b.codec == 0 for b in batches(kafkas)):
        assert mine == kafkas


# --- what is lost ----------------------------------------------------------------------------------


@pytest.fixture
def transactions(golden_kafka, tmp_path):
    return Path(shutil.copytree(partition_of(golden_kafka / "cases/txn-v2-k391"), tmp_path / "old/txn-0"))


def test_losses_are_refused_with_their_counts(transactions, target):
    plan = seglog_json("convert", transactions, "--to", 1, "--codec", "none", status=1)[-2]
    assert plan["lossy"]
    assert plan["is_undecided"]
    losses = plan["losses"]
    error = seglog("convert", transactions, target, "--to", 1, "--codec", "none", status=2).stderr
    for count, what in [
        (losses["headers"], "headers"), (losses["control_batches"], "control batches"),
        (losses["producer_batches"], "producer ids"), (losses["aborted_records"], "records of aborted transactions"),
    ]:
        assert count > 0
        assert f"{count} {what}" in error
    assert not target.exists()


def test_a_dry_run_lists_losses_and_says_what_a_run_wants(transactions):
    text = seglog("convert", transactions, "--to", "v1", "--codec", "none", status=1).stdout
    assert "control batches, such as transaction markers" in text
    assert "--to v1 --codec none DST --allow-lossy headers,control,producers --aborted drop|keep" in text


@pytest.mark.parametrize("aborted", ["drop", "keep"])
def test_aborted_records_go_or_stay_as_told(transactions, target, aborted):
    lossy = ["convert", transactions, target, "--to", 1, "--codec", "none", "--allow-lossy", ALL_LOSSES]
    assert "--aborted drop" in seglog(*lossy, status=2).stderr
    summary = seglog_json(*lossy, "--aborted", aborted)[-1]
    isolation = "read_committed" if aborted == "drop" else "read_uncommitted"
    with Partition(transactions) as partition:
        before = [record.offset for record in partition.read(0, isolation=isolation)]
    assert [r["offset"] for r in seglog_json("dump", target)] == before
    assert summary["records"] == len(before)


# --- the report, the rate --------------------------------------------------------------------------


def rows_of(report):
    return parse_json(report.read_bytes(), "seglog-conversion-report", 1, report, lambda body: body["partitions"])


def test_a_report_has_a_row_of_figures(source, target, tmp_path):
    lines = seglog_json("convert", source, target, "--report", tmp_path / "out.json")
    row, = rows_of(tmp_path / "out.json")
    summary = lines[-1]
    assert (row["partition"], row["status"], row["records"]) == ("orders-0", "converted", summary["records"])
    assert (row["bytes_out"], row["segments"]) == (summary["bytes"], summary["segments"])
    assert row["ratio"] == row["bytes_out"] / row["bytes_in"]
    seglog("convert", source, "--report", tmp_path / "plan.json", status=1)
    row, = rows_of(tmp_path / "plan.json")
    assert (row["status"], row["records"]) == ("planned", None)


def test_a_throttle_waits_for_what_was_done(source, target, monkeypatch):
    clock, slept = ManualClock(), []

    def sleep(seconds):
        slept.append(seconds)
        clock.advance_monotonic(round(seconds * 1000))

    monkeypatch.setattr("seglog.tools.convert.Throttle", lambda rate: Throttle(rate, clock=clock, sleep=sleep))
    seglog("convert", source, target, "--throttle", "1k")
    size_bytes = sum(path.stat().st_size for path in source.glob("*.log"))
    # Read for the plan, converted, proven.
    assert sum(slept) == pytest.approx(3 * size_bytes / 1024, rel=0.01)


# --- a log dir -------------------------------------------------------------------------------------


@pytest.fixture
def logs(golden_kafka, tmp_path):
    for n, name in enumerate(["v1-none-ct-k391", "txn-v2-k391", "v0-gzip-ct-k391"]):
        shutil.copytree(partition_of(golden_kafka / "cases" / name), tmp_path / f"logs/orders-{n}")
    return tmp_path / "logs"


def test_a_log_dir_has_a_row_for_each_partition(logs, tmp_path):
    *rows, summary = seglog_json("convert", logs, tmp_path / "made", "--report", tmp_path / "out.json")
    assert [(row["type"], row["partition"], row["status"]) for row in rows] == [
        ("partition", f"orders-{n}", "converted") for n in range(3)
    ]
    assert (summary["partitions"], summary["converted"], summary["failed"]) == (3, 3, 0)
    assert [row["digest"] for row in rows_of(tmp_path / "out.json")] == [row["digest"] for row in rows]
    text = seglog("convert", logs, tmp_path / "made", "--resume").stdout
    assert "3 skipped" in text
    assert "skipped: converted by an earlier run: orders-0, orders-1, orders-2" in text.splitlines()


def test_one_that_fails_is_status_7(logs, tmp_path):
    result = seglog("convert", logs, tmp_path / "made", "--to", 1, "--codec", "none", status=7)
    assert "2 converted, 1 failed" in result.stdout
    assert "failed: orders-1: format v1 cannot store" in result.stdout
    assert "[unsupported_for_message_format]" in result.stdout


def test_a_dry_run_over_a_log_dir_lists_losses(logs):
    text = seglog("convert", logs, "--to", 1, "--codec", "none", status=1).stdout
    assert "2 planned, 1 skipped" in text
    assert "skipped: already v1 with codec none: orders-0" in text.splitlines()
    assert "dry run: nothing was changed" in text
    assert "v1 cannot store: orders-1:" in text


@pytest.mark.parametrize("wrong", [["--proof", "p.json"], ["--topic", "nothing*"]])
def test_what_makes_no_sense_for_a_log_dir_is_status_2(logs, tmp_path, wrong):
    seglog("convert", logs, tmp_path / "made", *wrong, status=2)


def test_a_backup_that_is_an_option_is_status_2(logs):
    result = seglog("convert", logs, "--in-place", "--apply", "--backup", "--to", "2", status=2)
    assert "--backup needs a directory, not the option --to" in result.stderr


def test_a_partition_that_is_done_is_left_alone(source, target):
    seglog("convert", source, target)
    assert "nothing to do" in seglog("convert", source, target, "--resume").stdout
    line, = seglog_json("convert", source, target, "--resume")
    assert (line["type"], line["status"]) == ("partition", "skipped")
    seglog("convert", source, target, status=2)
    assert seglog_json("convert", source, target, "--resume", "--codec", "gzip")[-1]["proven"]


def test_a_codec_may_have_a_level(source, tmp_path):
    sizes = {}
    for codec in ("zstd:1", "zstd:19"):
        seglog("convert", source, tmp_path / codec / "orders-0", "--codec", codec, "--repack", "1m")
        sizes[codec] = sum(log.stat().st_size for log in (tmp_path / codec / "orders-0").glob("*.log"))
    assert sizes["zstd:19"] < sizes["zstd:1"]


@pytest.mark.parametrize(("codec", "why"), [
    ("zstd:99", "compression.zstd.level must be"), ("zstd:x", "compression.zstd.level"),
    ("snappy:3", "snappy has no levels"), ("brotli", "'brotli' is not one of none, gzip"),
])
def test_a_codec_that_cannot_be_meant_is_status_2(source, codec, why):
    assert why in seglog("convert", source, "--codec", codec, status=2).stderr


def test_a_codec_that_makes_the_result_grow_is_warned_about(source, tmp_path):
    words = "with codec none the result {} larger than the source: "
    assert words.format("will be") in seglog("convert", source, "--codec", "none", status=1).stdout
    assert words.format("is") in seglog("convert", source, tmp_path / "made-0", "--codec", "none").stdout
    assert "larger than the source" not in seglog("convert", source, tmp_path / "other-0").stdout


# --- in place --------------------------------------------------------------------------------------


def test_in_place_and_back(source, tmp_path):
    before = contents(source)
    place = ["--in-place", "--apply", "--backup", tmp_path / "backups"]
    text = seglog("convert", source, *place).stdout
    assert "--rollback restores it" in text
    assert text.splitlines()[-1] == f"To undo it: seglog convert {source} --rollback --backup {tmp_path / 'backups'}"
    assert {b["magic"] for b in seglog_json("dump", "--batches", source)} == {2}
    assert contents(tmp_path / "backups/orders-0") == before
    assert "nothing to do" in seglog("convert", source, *place, "--resume").stdout
    assert "a backup of this partition already exists" in seglog("convert", source, *place, status=2).stderr
    assert "restored to what it was" in seglog("convert", source, "--rollback", *place[1:]).stdout
    assert contents(source) == before
    assert "no conversion in place" in seglog("convert", source, "--rollback", *place[1:], status=2).stderr


def test_in_place_is_no_more_open_to_others_than_before(source, tmp_path):
    source.chmod(0o750)
    before = os.umask(0o022)
    try:
        seglog("convert", source, "--in-place", "--apply", "--backup", tmp_path / "backups")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert source.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in source.iterdir()} == {0o640}


def test_a_log_dir_in_place_says_what_it_skips_and_how_to_undo_it(logs, tmp_path):
    before = {path: contents(path) for path in sorted(logs.iterdir())}
    dry = seglog("convert", logs, "--in-place", status=1).stdout
    assert "skipped: already v2: orders-1" in dry.splitlines()
    text = seglog("convert", logs, "--in-place", "--apply", "--backup", tmp_path / "backups").stdout
    assert "skipped: already v2: orders-1" in text.splitlines()
    undo = text.splitlines()[-1].removeprefix("To undo it: seglog ").split()
    assert "2 partitions" not in seglog(*undo).stdout
    assert {path: contents(path) for path in before} == before


def test_a_log_dir_in_place_and_back(logs, tmp_path):
    before = {path: contents(path) for path in sorted(logs.iterdir())}
    place = ["--in-place", "--apply", "--backup", tmp_path / "backups"]
    rows = seglog_json("convert", logs, *place, "--topic", "orders")
    assert (rows[-1]["converted"], rows[-1]["skipped"]) == (2, 1)       # one is v2
    assert seglog_json("convert", logs, *place, "--resume")[-1]["skipped"] == 3
    assert "nothing to do" in seglog("convert", logs / "orders-1", *place).stdout
    assert not [f for line in seglog_json("verify", logs) if line["type"] == "finding" for f in line]
    log = max((logs / "orders-2").glob("*.log"))
    log.write_bytes(log.read_bytes() + b"more")
    result = seglog("convert", logs, "--rollback", *place[1:], status=7)
    assert result.stdout.count("restored to what it was") == 1
    assert "written to after" in result.stderr
    for name in ("orders-0", "orders-1"):
        assert contents(logs / name) == before[logs / name]


NOTHING = "was not converted: removed what an interrupted run left"


@pytest.mark.parametrize(("method", "part", "said"), [
    ("create", ".log", NOTHING),                                # the result is being built
    ("exchange", "probe-0", NOTHING),                           # names are tried
    ("create", ".seglog-exchange.tmp", NOTHING),
    ("replace", ".seglog-exchange.tmp", NOTHING),               # the journal is written, and has no name
    ("rename", "backups/orders-0", NOTHING),                    # it has one, and the result is complete
    ("exchange", "backups/orders-0", NOTHING),                  # the result is where the backup will be
    ("sync_directory", "logs", "restored to what it was"),      # the names are exchanged
])
def test_a_rollback_after_a_kill_undoes_all_of_it(tmp_path, source, method, part, said):
    logs, backups = tmp_path / "logs", tmp_path / "backups"
    logs.mkdir()
    source = source.rename(logs / "orders-0")
    before = contents(source)
    # The backup directory and the locks exist before: their names are not synced again.
    place = ["--backup", backups]
    seglog("convert", source, "--in-place", "--apply", *place)
    seglog("convert", source, "--rollback", *place)
    killed(method, part, 1, "convert", source, "--in-place", "--apply", *place)
    text = seglog("convert", logs, "--rollback", *place).stdout
    assert said in text
    assert contents(source) == before
    assert [path.name for path in backups.iterdir()] == [".lock"]
    assert {path.name for path in logs.iterdir()} == {"orders-0", ".lock"}


def test_a_rollback_of_a_log_dir_after_a_kill_undoes_each_partition(logs, tmp_path):
    before = {path: contents(path) for path in sorted(logs.iterdir())}
    backups = tmp_path / "backups"
    killed("exchange", "backups/orders-1", 1, "convert", logs, "--in-place", "--apply", "--backup", backups,
           "--topic", "orders", "--repack", "64k")
    rows = seglog_json("convert", logs, "--rollback", "--backup", backups)
    assert [(row["partition"], row["outcome"]) for row in rows] == [
        ("orders-0", "restored"), ("orders-1", "nothing_converted")
    ]
    assert {path: contents(path) for path in before} == before
    assert [path.name for path in backups.iterdir()] == [".lock"]


def test_an_erasure_that_was_killed_is_rolled_back_alike(logs, tmp_path):
    backups = tmp_path / "backups"
    erase = "erase", logs / "orders-0", "--key", "k-1", "--apply", "--backup", backups
    killed("exchange", "backups/orders-0", 1, *erase)
    text = seglog("erase", logs / "orders-0", "--rollback", "--backup", backups).stdout
    assert "orders-0 has all of its records: removed what an interrupted run left" in text
    assert [path.name for path in backups.iterdir()] == [".lock"]


def test_in_place_shows_what_it_would_do_until_it_is_told_to(logs, tmp_path):
    before = {path: contents(path) for path in sorted(logs.iterdir())}
    backups = tmp_path / "backups"
    for where in (logs, logs / "orders-0"):
        for given in ([], ["--backup", backups], ["--backup", backups, "--apply", "--dry-run"]):
            text = seglog("convert", where, "--in-place", "--repack", "64k", *given, status=1).stdout
            last = text.splitlines()[-1]
            assert last.startswith(f"dry run: nothing was changed. To do it: seglog convert {where} --in-place"), last
            assert "--apply" in last
            assert ("--backup DIR" in last) == (not given)
    assert {path: contents(path) for path in sorted(logs.iterdir())} == before
    assert not backups.exists()
    text = seglog("convert", logs / "orders-0", tmp_path / "made-0", "--dry-run", status=1).stdout
    assert text.splitlines()[-1].endswith(f"seglog convert {logs / 'orders-0'} {tmp_path / 'made-0'}")
    assert not (tmp_path / "made-0").exists()
    seglog("convert", logs / "orders-0", tmp_path / "made-0")
    seglog("convert", logs / "orders-0", "--in-place", "--apply", "--backup", backups, "--repack", "64k")
    assert "would be restored" in seglog(
        "convert", logs / "orders-0", "--rollback", "--backup", backups, "--dry-run", status=1).stdout
    assert (backups / "orders-0").exists()
    seglog("convert", tmp_path / "made-0", status=0)      # all of it has the form already


@pytest.mark.parametrize(("wrong", "words"), [
    (["--in-place", "--apply"], "--apply needs --backup DIR, the directory that keeps the old SRC"),
    (["--apply"], "--apply needs DST or --in-place"),
    (["--rollback"], "--rollback needs --backup DIR, the directory that --in-place kept the old SRC in"),
    (["--backup", "b"], "--backup needs --in-place or --rollback: nothing else changes SRC"),
    (["--in-place", "--rollback", "--backup", "b"], "--in-place and --rollback exclude each other"),
    (["made-0", "--in-place", "--backup", "b"], "DST cannot be combined with --in-place or --rollback"),
])
def test_in_place_wants_a_backup_and_nothing_else(source, wrong, words):
    before = contents(source)
    assert seglog("convert", source, *wrong, status=2).stderr.startswith(f"error: {words} [usage]\n")
    assert contents(source) == before
