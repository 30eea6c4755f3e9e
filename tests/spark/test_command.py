"""`seglog spark convert`, each of its options by what it does; Spark is a double of one process."""
import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest

from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.spark import segment_task
from seglog.spark.cluster import JobStep
from seglog.tools import spark as spark_command
from seglog.tools import terminal
from seglog.tools.spark import progress_text
from support.command import seglog, seglog_json
from support.conversion import tree
from support.spark_cluster import lacking
from support.spark_double import SparkDouble
from support.waiting import wait_for


@pytest.fixture
def spark(monkeypatch):
    """The session that the command gets; `asked` is what it asked for."""
    double = SparkDouble()

    @contextmanager
    def session(master, settings):
        double.asked = master, settings
        yield double

    monkeypatch.setattr("seglog.spark.session.session", session)
    return double


@pytest.fixture
def convert(spark, log_dir, in_memory):
    """`seglog spark convert` of the log dir to "new", one task for each segment."""

    def run(*options, status=0):
        return seglog("spark", "convert", log_dir, in_memory / "new", "--task-bytes", "1", *options, status=status)

    run.target = in_memory / "new"
    return run


def made(target):
    """The partitions in a log dir."""
    return sorted(path.name for path in target.iterdir() if path.is_dir()) if target.exists() else []


def test_the_table_says_what_became_of_each_partition_and_what_to_do_next(convert):
    lines = convert().stdout.splitlines()
    heads = ["partition", "status", "segments", "records", "bytes", "as", "v2", "ratio", "skipped", "retried",
             "seconds", "digest"]
    assert lines[0].split() == heads
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["orders-0", "converted"], ["orders-1", "converted"], ["payments-0", "converted"]
    ]
    assert "--finalize" in lines[-1]
    assert "--rollback" in lines[-1]


def test_a_dry_run_leaves_nothing(convert, log_dir):
    before = tree(log_dir)
    out = convert("--dry-run", status=1).stdout
    assert out.count("planned") == 4
    last = out.splitlines()[-1]
    assert last.startswith(f"dry run: nothing was changed. To do it: seglog spark convert {log_dir} {convert.target}")
    assert "--dry-run" not in last
    assert made(convert.target) == []
    assert tree(log_dir) == before
    assert [path.name for path in convert.target.parent.iterdir()] == []


def test_finalize_keeps_and_rollback_takes_back(convert):
    convert()
    assert "3 partitions kept in" in convert("--finalize").stdout
    assert made(convert.target) == ["orders-0", "orders-1", "payments-0"]
    convert("--rollback", status=2)
    convert("--topic", "nothing", status=2)


def test_rollback_leaves_nothing(convert):
    convert()
    assert "3 partitions removed from" in convert("--rollback").stdout
    assert made(convert.target) == []
    convert()


def test_one_partition_is_converted_and_one_is_taken_back(convert):
    assert "1 converted" in convert("--partition", "orders-1").stdout
    assert made(convert.target) == ["orders-1"]
    convert()
    assert "1 partition removed from" in convert("--rollback", "--partition", "orders-1").stdout
    assert made(convert.target) == ["orders-0", "payments-0"]
    assert "orders-1" in convert("--rollback", "--partition", "orders-1", status=2).stderr
    assert "no such partition: orders-7" in convert("--partition", "orders-7", status=2).stderr
    assert "leave out --partition" in convert("--finalize", "--partition", "orders-0", status=2).stderr
    assert "2 skipped" in convert().stdout
    assert made(convert.target) == ["orders-0", "orders-1", "payments-0"]


def test_resume_goes_on_and_no_resume_refuses(convert):
    convert("--topic", "orders")
    assert "--resume" in convert("--no-resume", status=2).stderr
    assert made(convert.target) == ["orders-0", "orders-1"]
    text = convert("--resume").stdout
    assert "2 skipped" in text
    assert "skipped: converted by an earlier run: orders-0, orders-1" in text.splitlines()
    assert made(convert.target) == ["orders-0", "orders-1", "payments-0"]


@pytest.mark.parametrize(("how", "segments"), [("full", 6), ("sample", 1)])
def test_verify_reads_all_or_a_sample_again(convert, monkeypatch, how, segments):
    looked = []
    verify = segment_task.verify_segment
    monkeypatch.setattr(
        segment_task, "verify_segment", lambda *arguments: looked.append(arguments) or verify(*arguments)
    )
    convert("--verify", how)
    assert segments <= len(looked) <= 6
    assert len(looked) == 6 or how == "sample"


def test_so_many_tasks_at_a_time_share_the_rate(convert, spark, monkeypatch):
    rates = []

    class Told(segment_task.Throttle):
        def __init__(self, bytes_per_s):
            rates.append(bytes_per_s)
            super().__init__(0)

    monkeypatch.setattr(segment_task, "Throttle", Told)
    convert("--max-concurrent", "2", "--throttle", "1m")
    assert spark.jobs[0] == 2
    assert rates == [1 << 19, 1 << 19]


def test_max_concurrent_makes_so_many_tasks(convert, spark):
    convert("--max-concurrent", "3")
    assert spark.jobs[0] == 3


def test_the_active_segment_stays_behind(convert, log_dir):
    convert("--topic", "orders", "--skip-active")
    for name in ("orders-0", "orders-1"):
        logs = sorted(path.name for path in (log_dir / name).glob("*.log"))
        assert sorted(path.name for path in (convert.target / name).glob("*.log")) == logs[:-1]


def test_a_live_log_dir_is_refused(convert, log_dir):
    with lock_log_dir(OsFileSystem(), log_dir):
        assert "locked" in convert(status=5).stderr
    assert made(convert.target) == []


def test_a_partition_that_fails_is_told_with_what_to_do(convert, log_dir, tmp_path):
    log = sorted((log_dir / "orders-1").glob("*.log"))[0]
    raw = log.read_bytes()
    log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    done = convert("--report", tmp_path / "report.json", status=7)
    assert "failed: orders-1: " in done.stdout
    assert "\n  try: " in done.stdout
    rows = json.loads((tmp_path / "report.json").read_text())["partitions"]
    assert [(row["status"], bool(row["fix"])) for row in rows] == [
        ("converted", False), ("failed", True), ("converted", False)
    ]
    assert made(convert.target) == ["orders-0", "payments-0"]


def test_json_has_a_line_for_each_partition_and_a_summary(convert, log_dir):
    *rows, summary = seglog_json("spark", "convert", log_dir, convert.target)
    assert [row["partition"] for row in rows] == ["orders-0", "orders-1", "payments-0"]
    assert (summary["type"], summary["converted"]) == ("summary", 3)


def test_master_and_settings_go_to_spark(convert, spark):
    convert("--master", "spark://there:7077", "--conf", "spark.executor.memory=1g")
    assert spark.asked == ("spark://there:7077", {"spark.executor.memory": "1g"})


def test_the_line_tells_bytes_rate_and_the_time_that_is_left():
    step = JobStep("convert", 3, 9, 250_000_000, 1_000_000_000)
    assert progress_text(step, 10) == "convert  3 of 9 tasks, 238.4 MiB of 953.7 MiB, 25.0 MB/s, 0:30 left"
    assert progress_text(replace(step, size_bytes=10**12), 10).endswith("25.0 MB/s, 11:06:30 left")
    assert progress_text(replace(step, done_bytes=0), 10) == "convert  3 of 9 tasks"
    assert progress_text(JobStep("assemble", 9, 9), 10) == "assemble  9 of 9 tasks"
    waves = replace(step, published=1, partitions=4)
    assert progress_text(waves, 10).startswith("convert  3 of 9 tasks, 1 of 4 partitions published, 238.4 MiB of")


def test_wave_bytes_makes_so_many_jobs(convert, spark):
    convert("--wave-bytes", "1")
    assert spark.jobs[2::3] == [1, 1, 1]


@pytest.mark.spark
@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_on_a_terminal_a_line_tells_how_far_it_is_and_nothing_else_is_said(log_dir, in_memory):
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-m", "seglog.tools", "spark", "convert", log_dir, in_memory / "new", "--master",
               "local[1]", "--task-bytes", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        os.close(stderr)
        said = b""
        while True:
            try:
                said += os.read(terminal, 4096)
            except OSError:     # its other end is closed
                break
        table = process.stdout.read()
    os.close(terminal)
    assert process.returncode == 0
    assert "total       3 converted" in table
    lines = [line.strip() for line in said.decode().split("\r") if line.strip()]
    assert lines[0] == "starting Spark"
    converted = [line for line in lines if line.startswith("convert orders, payments to v2: 6 segments, ")]
    assert converted[-1].endswith("6 of 6 tasks")
    assert {line.split()[0] for line in lines[1:]} == {"convert", "verify", "assemble"}
    assert said.endswith(b" \r")


def test_a_partition_that_fails_is_named_once_while_the_others_go_on(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with spark_command._Line(enabled=True) as line:
        for done in (0, 1, 2, 3):
            line(JobStep("convert", done, 3, failed=("orders-1",) if done else ()))
        before_the_end = capsys.readouterr().err
    assert before_the_end.count("failed: orders-1\n") == 1
    assert before_the_end.index("failed: orders-1") < before_the_end.index("2 of 3 tasks")


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_leaves_out_the_line_of_progress(monkeypatch, capsys, quiet):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(terminal.wishes, "quiet", quiet)
    with spark_command._Line(enabled=True) as line:
        line.say("convert  3 of 9 tasks")
    assert ("3 of 9" in capsys.readouterr().err) is not quiet


@pytest.mark.parametrize("shows", [True, False])
def test_without_a_terminal_there_is_a_line_at_the_start_and_one_every_half_minute(monkeypatch, capsys, shows):
    """It was silent until its end, for hours."""
    now = 1000.0
    monkeypatch.setattr(spark_command.time, "monotonic", lambda: now)
    with spark_command._Line(enabled=shows) as line:
        line.say("starting Spark")
        for second in range(100):
            now = 1000.0 + second
            line(JobStep("convert", second, 100, failed=("orders-1",) if second > 70 else ()))
    told = ["starting Spark", *(f"convert  {n} of 100 tasks" for n in (30, 60, 90))]
    told.insert(3, "failed: orders-1")
    assert capsys.readouterr().err.splitlines() == (told if shows else [])


def test_a_signal_behind_an_error_of_the_jvm_is_what_ended_the_command(monkeypatch):
    """PySpark's calls on the way out failed, and the command ended with status 3."""
    @contextmanager
    def interrupted(*_):
        try:
            yield
        finally:
            raise OSError("Answer from Java side is empty")

    monkeypatch.setattr("seglog.spark.session.session", interrupted)
    with pytest.raises(KeyboardInterrupt), spark_command._started(spark_command._Line(enabled=False), None, ()):
        raise KeyboardInterrupt
    with pytest.raises(OSError, match="is empty"), spark_command._started(spark_command._Line(enabled=False), None, ()):
        pass


@pytest.mark.spark
@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
@pytest.mark.parametrize(("kill", "number"), [
    (os.kill, signal.SIGTERM), (os.killpg, signal.SIGTERM), (os.killpg, signal.SIGINT),
])
def test_a_signal_ends_it_with_a_word_and_the_same_command_goes_on(log_dir, in_memory, kill, number):
    """SIGTERM printed tracebacks of py4j, or ended it with status 3: "Spark gave up". A service manager sends it to all
    processes, the JVM among them, as a terminal sends ^C."""
    command = [sys.executable, "-m", "seglog.tools", "spark", "convert", log_dir, in_memory / "new", "--master",
               "local[1]", "--task-bytes", "1"]
    with subprocess.Popen(
        [*command, "--throttle", "2k"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr.readline() == "starting Spark\n"
        wait_for(lambda: list(in_memory.glob("new.seglog-spark/done/*/*")), 120)
        kill(process.pid, number)
        out, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    told = [line for line in said.splitlines() if not line.startswith(("convert ", "verify ", "assemble"))]
    assert told == ["terminated" if number == signal.SIGTERM else "interrupted"], said
    assert out == ""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert made(in_memory / "new") == ["orders-0", "orders-1", "payments-0"]
