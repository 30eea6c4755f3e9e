"""`seglog dump` says what the real decoder of Kafka said, of every golden partition."""
import base64
import gzip
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys

import pytest

import seglog as engine
from seglog.format import names
from support.command import golden_lines, partition_of, seglog, seglog_json
from support.golden import golden_cases
from support.waiting import line_of


def decoded(lines):
    """The lines with what Kafka's decoder knows, without the partition and what became of its transaction."""
    return [{name: value for name, value in line.items() if name not in ("partition", "transaction")} for line in lines]


def test_records_equal_the_real_decoders_in_every_field_of_every_case():
    assert len(golden_cases()) == 129
    for case in golden_cases():
        got = seglog_json("dump", partition_of(case), "--max-value-bytes", 4096)
        assert decoded(got) == golden_lines(case, "expected"), case.name


def test_batches_equal_the_real_decoders_in_every_field_of_every_case():
    for case in golden_cases():
        got = seglog_json("dump", "--batches", partition_of(case))
        assert decoded(got) == golden_lines(case, "batches"), case.name


def test_the_fields_stand_in_the_real_decoders_order(golden_kafka):
    case = golden_kafka / "cases/compact-v2-mixed-pass2-k391"
    for option, name in (((), "expected"), (("--batches",), "batches")):
        got = seglog_json("dump", *option, partition_of(case))
        assert [list(line) for line in decoded(got)] == [list(line) for line in golden_lines(case, name)]


def test_a_real_process_says_the_same_bytes(golden_kafka):
    case = golden_kafka / "cases/txn-v2-k411"
    done = subprocess.run(
        [sys.executable, "-m", "seglog.tools", "dump", "--json", str(partition_of(case))],
        capture_output=True, check=True, timeout=60,
    )
    with gzip.open(case / "expected.jsonl.gz") as f:
        assert re.sub(rb',"transaction":"[a-z]+"}', b"}", done.stdout) == f.read()


def test_values_are_whole_unless_a_limit_is_given(golden_kafka):
    case = golden_kafka / "cases/big-v2-none-k411"
    whole = seglog_json("dump", partition_of(case))
    cut = seglog_json("dump", partition_of(case), "--max-value-bytes", "4k")
    assert "value_size" in cut[0]
    assert len(base64.b64decode(whole[0]["value"])) == cut[0]["value_size"]
    assert "value_size" not in whole[0]


# --- windows -----------------------------------------------------------------------------


def test_offsets_cut_the_window_inside_batches(golden_kafka):
    case = golden_kafka / "cases/v1-gzip-ct-k391"
    everything = golden_lines(case, "expected")
    for start, stop in ((0, 5), (3, 4), (7, 60), (50, 10**9), (40, 40)):
        got = seglog_json("dump", partition_of(case), "--from-offset", start, "--to-offset", stop)
        assert got == [r for r in everything if start <= r["offset"] < stop]


def test_times_choose_records_wherever_they_lie(golden_kafka):
    case = golden_kafka / "cases/ts-odd-v2-k391"
    everything = golden_lines(case, "expected")
    times = sorted(r["timestamp"] for r in everything if r["timestamp"] >= 0)
    for since, until in ((times[3], times[-3]), (times[0], times[1]), (times[-1], times[-1] + 1)):
        got = seglog_json("dump", partition_of(case), "--since", since, "--until", until)
        assert got == [r for r in everything if since <= r["timestamp"] < until]


def test_since_in_iso_words(golden_kafka):
    case = golden_kafka / "cases/v2-none-ct-k411"
    assert seglog_json("dump", partition_of(case), "--since", "2023-01-01") == golden_lines(case, "expected")
    assert seglog_json("dump", partition_of(case), "--since", "2200-01-01") == []


def test_max_bytes_ends_with_the_batch_that_reaches_it(golden_kafka):
    case = golden_kafka / "cases/v2-lz4-ct-k391"
    batches = golden_lines(case, "batches")
    two = batches[0]["size"] + batches[1]["size"]
    assert seglog_json("dump", "--batches", partition_of(case), "--max-bytes", 1) == batches[:1]
    assert seglog_json("dump", "--batches", partition_of(case), "--max-bytes", two) == batches[:2]
    assert seglog_json("dump", "--batches", partition_of(case), "--max-bytes", two + 1) == batches[:3]
    last = batches[1]["last_offset"]
    got = seglog_json("dump", partition_of(case), "--max-bytes", two)
    assert got == [r for r in golden_lines(case, "expected") if r["offset"] <= last]


@pytest.mark.parametrize(("what", "name"), [((), "expected"), (("--batches",), "batches")])
def test_a_limit_counts_what_is_shown_of_each_partition(golden_kafka, tmp_path, what, name):
    cases = ("v2-lz4-ct-k391", "v0-none-ct-k391")
    for case in cases:
        shutil.copytree(partition_of(golden_kafka / "cases" / case), tmp_path / f"{case}-0")
    for limit in (0, 1, 3, 7, 10**6):
        got = decoded(line for line in seglog_json("dump", tmp_path, *what, "--limit", limit) if "type" not in line)
        assert got == [
            line for case in sorted(cases) for line in golden_lines(golden_kafka / "cases" / case, name)[:limit]]
    text = seglog("dump", partition_of(golden_kafka / "cases" / cases[0]), *what, "--limit", 2).stdout
    assert len(text.splitlines()) == 3 + (name == "batches")


def test_no_bytes_are_no_batch(golden_kafka):
    assert seglog_json("dump", partition_of(golden_kafka / "cases/v2-lz4-ct-k391"), "--max-bytes", 0) == []


def test_a_limit_of_control_records(golden_kafka):
    path = partition_of(golden_kafka / "cases/txn-v2-k411")
    everything = seglog_json("dump", "--control", path)
    assert seglog_json("dump", "--control", path, "--limit", 2) == everything[:2]


def test_batches_of_a_window_are_those_that_reach_into_it(golden_kafka):
    case = golden_kafka / "cases/v2-lz4-ct-k391"
    batches = golden_lines(case, "batches")
    got = seglog_json("dump", "--batches", partition_of(case), "--from-offset", 10, "--to-offset", 30)
    assert got == [b for b in batches if b["last_offset"] >= 10 and b["base_offset"] < 30]


# --- what a PATH may be ------------------------------------------------------------------


def test_one_segment_of_a_partition(golden_kafka):
    case = golden_kafka / "cases/v2-lz4-ct-k391"
    logs = sorted(partition_of(case).glob("*.log"))
    assert len(logs) > 1
    got = seglog_json("dump", logs[1])
    assert got == [r for r in golden_lines(case, "expected") if r["segment"] == logs[1].name]


def test_a_segment_alone_in_a_directory_needs_no_index(golden_kafka, tmp_path):
    case = golden_kafka / "cases/v2-lz4-ct-k391"
    log = sorted(partition_of(case).glob("*.log"))[1]
    alone = shutil.copy(log, tmp_path)
    assert seglog_json("dump", alone) == [r for r in golden_lines(case, "expected") if r["segment"] == log.name]


def test_a_log_dir_names_each_partition_before_its_records(golden_kafka, tmp_path):
    cases = ("v2-lz4-ct-k391", "v0-none-ct-k391")
    for name in cases:
        shutil.copytree(partition_of(golden_kafka / "cases" / name), tmp_path / f"{name}-0")
    got = seglog_json("dump", tmp_path)
    expected = []
    for name in sorted(cases):
        expected.append({
            "type": "partition", "schema": 1, "partition": f"{name}-0", "path": str(tmp_path / f"{name}-0"),
        })
        expected += [r | {"partition": f"{name}-0"} for r in golden_lines(golden_kafka / "cases" / name, "expected")]
    assert got == expected


def test_several_paths(golden_kafka):
    one, two = (golden_kafka / "cases" / name for name in ("v2-lz4-ct-k391", "v0-none-ct-k391"))
    got = seglog_json("dump", partition_of(one), partition_of(two))
    assert decoded(got) == golden_lines(one, "expected") + golden_lines(two, "expected")
    assert {line["partition"] for line in got} == {partition_of(one).name, partition_of(two).name}


@pytest.mark.parametrize("name", ["nothing", "notes.txt"])
def test_what_is_no_log_is_status_4(tmp_path, name):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "nothing").mkdir()
    result = seglog("dump", tmp_path / name, status=4)
    assert "[not_a_log]" in result.stderr
    assert len(result.stderr.splitlines()) == 3


def test_a_path_that_is_not_there_is_status_3(tmp_path):
    result = seglog("dump", tmp_path / "orders-0", status=3)
    assert str(tmp_path / "orders-0") in result.stderr.splitlines()[1]


# --- damage ------------------------------------------------------------------------------


@pytest.fixture
def damaged(golden_kafka, tmp_path):
    """A partition with one flipped bit in its third batch, and that batch's line."""
    case = golden_kafka / "cases/v2-lz4-ct-k391"
    copy = tmp_path / "damaged-0"
    shutil.copytree(partition_of(case), copy)
    batch = golden_lines(case, "batches")[2]
    log = copy / batch["segment"]
    data = bytearray(log.read_bytes())
    data[batch["position"] + 70] ^= 1
    log.write_bytes(data)
    return copy, case, batch


def test_damage_ends_a_dump_with_status_1_after_what_stands_before_it(damaged):
    path, case, batch = damaged
    result = seglog("dump", path, "--json", status=1)
    *records, error = map(json.loads, result.stdout.splitlines())
    assert records == [r for r in golden_lines(case, "expected") if r["offset"] < batch["base_offset"]][:len(records)]
    assert error["type"] == "error"
    assert error["code"] == "corrupt_record"
    assert error["position"] == batch["position"]
    assert len(result.stderr.splitlines()) == 3


def test_a_damaged_partition_does_not_end_the_dump_of_a_log_dir(damaged):
    path, case, _ = damaged
    shutil.copytree(partition_of(case), path.with_name("later-0"))
    shutil.copytree(partition_of(case), path.with_name("another-0"))
    result = seglog("dump", path.parent, "--json", status=7)
    got = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["partition"] for line in got if line.get("type") == "partition"] == [
        "another-0", "damaged-0", "later-0"]
    assert [line["code"] for line in got if line.get("type") == "error"] == ["corrupt_record"]
    of_last = got[next(i for i, line in enumerate(got) if line.get("partition") == "later-0") + 1:]
    assert decoded(of_last) == golden_lines(case, "expected")
    text = seglog("dump", path.parent, status=7)
    assert "later-0/" in text.stdout
    assert "corrupt_record" in text.stderr
    assert seglog("dump", path, path.with_name("later-0"), status=7).stdout.count("later-0/") == 2


def test_damage_can_be_skipped_and_is_told(damaged):
    path, case, batch = damaged
    got = seglog_json("dump", path, "--on-corrupt", "skip", status=7)
    lost = [line for line in got if line.get("type") == "lost_range"]
    assert [line for line in got if "type" not in line] == [
        r for r in golden_lines(case, "expected") if r["batch_position"] != batch["position"]
        or r["segment"] != batch["segment"]
    ]
    assert [(line["position"], line["size"], line["first_offset"], line["last_offset"]) for line in lost] == [
        (batch["position"], batch["size"], batch["base_offset"], batch["last_offset"])
    ]


def test_a_reader_that_goes_away_is_no_error(golden_kafka):
    path = partition_of(golden_kafka / "cases/big-v2-none-k411")
    command = [sys.executable, "-m", "seglog.tools", "dump", "--json", *[str(path)] * 5]     # more than a pipe holds
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        line_of(process)
        process.stdout.close()
        assert process.wait(60) == -13      # SIGPIPE, as `cat` would
        assert process.stderr.read() == b""


# --- control records, and text -----------------------------------------------------------


def test_control_records_are_decoded(golden_kafka):
    case = golden_kafka / "cases/txn-v2-k391"
    markers = [r for r in golden_lines(case, "expected") if r["control"]]
    got = seglog_json("dump", "--control", partition_of(case))
    assert [(m["offset"], m["control_type"], m["producer_id"]) for m in got] == [
        (m["offset"], m["control_type"], m["producer_id"]) for m in markers
    ]
    for marker, real in zip(got, markers, strict=True):
        assert (marker["type"], marker["schema"], marker["version"]) == ("control_record", 1, 0)
        assert marker["coordinator_epoch"] == int.from_bytes(base64.b64decode(real["value"])[2:], "big")


def test_text_shows_every_record_and_the_markers(golden_kafka):
    case = golden_kafka / "cases/txn-v2-k391"
    text = seglog("dump", partition_of(case)).stdout
    expected = golden_lines(case, "expected")
    segments = {r["segment"] for r in expected}
    assert len(text.splitlines()) == len(expected) + len(segments)
    assert sum("COMMIT marker of producer" in line for line in text.splitlines()) == sum(
        r.get("control_type") == "COMMIT" for r in expected
    )


def test_text_shows_every_batch(golden_kafka):
    case = golden_kafka / "cases/txn-v2-k391"
    text = seglog("dump", "--batches", partition_of(case)).stdout
    batches = golden_lines(case, "batches")
    assert sum(" v2 " in line for line in text.splitlines()) == len(batches)


def test_text_skips_damage_in_the_last_segment_too(golden_kafka):
    path = golden_kafka / "corrupt/v2-lz4-ct-k391--size-tiny/v2-lz4-ct-k391--size-tiny-0"
    result = seglog("dump", "--on-corrupt", "skip", path, status=7)
    assert "skipped " in result.stderr


# --- the end, and what comes behind it ---------------------------------------------------


@pytest.mark.parametrize(("what", "name"), [((), "expected"), (("--batches",), "batches")])
def test_the_tail_is_the_last_of_what_is_selected(golden_kafka, what, name):
    for case in ("v2-lz4-ct-k391", "v0-none-ct-k391", "v2-none-ct-k411"):
        found = golden_kafka / "cases" / case
        path, everything = partition_of(found), golden_lines(found, name)
        for tail in (0, 1, 3, 10**6):
            assert seglog_json("dump", path, *what, "--tail", tail) == everything[max(len(everything) - tail, 0) :]
        assert seglog_json("dump", path, *what, "--tail", 5, "--limit", 2) == everything[-5:][:2]
    last = everything[-1]
    offset = last["base_offset" if what else "offset"]
    assert seglog_json("dump", path, *what, "--tail", 2, "--from-offset", offset) == [last]


def test_damage_in_the_tail_is_told_once(damaged):
    path, case, batch = damaged
    gone = range(batch["base_offset"], batch["last_offset"] + 1)
    whole = [record for record in golden_lines(case, "expected") if record["offset"] not in gone]
    after = sum(r["offset"] > batch["last_offset"] for r in whole)
    assert 0 < after < len(whole)
    for tail in (0, 1, after, after + 1, len(whole), len(whole) + 1, 10**6):
        got = seglog_json("dump", path, "--on-corrupt", "skip", "--tail", tail, status=None)
        assert [line for line in got if "type" not in line] == whole[max(len(whole) - tail, 0) :]
        told = [line["position"] for line in got if "type" in line]
        assert told == [batch["position"]] if tail > after else told in ([], [batch["position"]])


def test_damage_is_told_once_if_nothing_is_left_of_the_tail(damaged):
    path, _, batch = damaged
    got = seglog_json(
        "dump", path, "--on-corrupt", "skip", "--tail", 1, "--from-offset", batch["base_offset"], "--to-offset",
        batch["last_offset"] + 1, status=7,
    )
    assert [line["position"] for line in got] == [batch["position"]]


@pytest.mark.parametrize("begin", [(), ("--tail", 2), ("--from-offset", 0)])
def test_a_dump_follows_what_is_appended_and_ends_with_control_c(tmp_path, begin):
    path = tmp_path / "orders-0"
    with engine.open(path) as log:
        for n in range(3):
            log.append(b"%d" % n)
        command = [sys.executable, "-c", "from seglog.tools.start import main; raise SystemExit(main())"]
        process = subprocess.Popen(
            [*command, "dump", path, "--follow", "--json", *map(str, begin)], stdout=subprocess.PIPE, text=True
        )
        lines = []
        while not select.select([process.stdout], [], [], 0.05)[0]:     # it takes a while to start
            assert log.append(b"more") < 1000
        while len(lines) < 5:
            lines.append(json.loads(line_of(process))["offset"])
            log.append(b"more")
        assert lines == list(range(lines[0], lines[0] + 5))
        assert lines[0] == 0 if "--from-offset" in begin else lines[0] >= 1
        end = log.append(b"last")
        while lines[-1] < end:
            lines.append(json.loads(line_of(process))["offset"])
        log.truncate_to(1)
        log.append(b"again")
        assert json.loads(line_of(process))["offset"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        process.stdout.close()


def test_what_cannot_be_followed_is_refused(tmp_path):
    path = tmp_path / "orders-0"
    engine.open(path).close()
    for wrong in ((tmp_path,), (path, path), (path, "--on-corrupt", "skip"), (path / f"{0:020}.log",)):
        seglog("dump", "--follow", *wrong, status=2)


# --- what it costs -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--json",), ("--batches",)])
def test_a_dump_of_three_records_lists_its_directory_once(tmp_path, options):
    directory = tmp_path / "three-0"
    with engine.open(directory, fsync="never") as log:
        for value in (b"a", b"b", b"c"):
            log.append(value)
    seglog("dump", *options, directory)     # what is imported is imported
    listed, returns = [], []

    def count(frame, event, argument):
        if event == "c_call" and argument in (os.scandir, os.listdir):
            listed.append(frame.f_code.co_name)
        if event == "return" and frame.f_code.co_filename == names.__file__:
            returns.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        seglog("dump", *options, directory)
    finally:
        sys.setprofile(None)
    assert listed == ["log_files_and_swaps"]
    assert returns.count("log_files_and_swaps") == 1
    assert len(returns) <= 10, returns
