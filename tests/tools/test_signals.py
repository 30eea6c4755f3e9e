"""A command that a signal ends: what is half made goes away, as with ^C, and the status says which signal it was."""
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context

import pytest

from seglog.fs.staging import leftovers
from seglog.tools.cli import cli
from seglog.tools.start import main
from support.command import seglog
from support.conversion import copied, source_of
from support.golden import golden_cases

CASES = {case.name: case for case in golden_cases()}


@pytest.fixture
def log_dir(tmp_path):
    for partition in range(3):
        copied(source_of(CASES["v1-none-ct-k391"]), tmp_path / f"old/orders-{partition}")
    return tmp_path / "old"


def started(*arguments):
    """`seglog ARGUMENTS`."""
    return subprocess.Popen(
        [sys.executable, "-m", "seglog.tools", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )


class Forked:
    """`seglog ARGUMENTS` in a fork of this process, which has imported all of it; as Popen has it. `ignored`: signals
    that whoever starts it ignores."""

    def __init__(self, *arguments, ignored=()):
        self._out, self._err = (tempfile.TemporaryFile("w+") for _ in range(2))     # noqa: SIM115
        self._process = get_context("fork").Process(target=self._run, args=(list(map(str, arguments)), ignored))
        self._process.start()

    def _run(self, arguments, ignored):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if number in ignored else default)
        for fd, file in ((1, self._out), (2, self._err)):
            os.dup2(file.fileno(), fd)
        sys.argv = ["seglog", *arguments]
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        main()

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def communicate(self, timeout=None):
        self._process.join(timeout)
        assert self._process.exitcode is not None
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return tuple(texts)


def wait_for(condition, process):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "status", "words"), [
    (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "terminated"), (signal.SIGINT, 130, "interrupted"),
])
def test_a_signal_leaves_no_staging_behind(log_dir, tmp_path, number, status, words):
    target = tmp_path / "new"
    # One of them as a shell starts it.
    start = started if number == signal.SIGTERM else Forked
    process = start("convert", log_dir, target, "--throttle", "8k")
    wait_for(lambda: target.is_dir() and leftovers(target), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, f"{words}\n"), out
    assert leftovers(target) == []
    assert not [path for path in tmp_path.rglob("*") if "seglog-staging" in path.name or path.name.endswith("-delete")]
    # The next run finds nothing in its way.
    seglog("convert", log_dir, target, "--resume")
    assert sorted(path.name for path in target.glob("orders-*")) == ["orders-0", "orders-1", "orders-2"]


def test_a_second_signal_does_not_stop_the_cleaning_up(log_dir, tmp_path):
    target = tmp_path / "new"
    process = Forked("convert", log_dir, target, "--throttle", "8k")
    wait_for(lambda: target.is_dir() and leftovers(target), process)
    for _ in range(50):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert leftovers(target) == []


def test_a_signal_that_whoever_started_us_ignores_is_ignored(log_dir, tmp_path):
    """nohup."""
    target = tmp_path / "new"
    target.mkdir()
    process = Forked(
        "convert", log_dir / "orders-0", target / "orders-0", "--throttle", "100k", ignored=[signal.SIGHUP]
    )
    wait_for(lambda: leftovers(target), process)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=120)
    assert process.returncode == 0


def test_a_signal_while_the_program_loads_ends_it_without_a_traceback(tmp_path):
    process = started("convert", tmp_path)
    time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGTERM, 143, 2, 4), err
    assert "Traceback" not in err


@pytest.mark.parametrize(("words", "status"), [
    (["queue", "serve", "notes"], 4), (["serve", "notes/data", "--properties", "notes/broken"], 2),
])
@pytest.mark.usefixtures("capfd")       # both write to descriptors
def test_a_command_that_fails_before_it_waits_gives_the_signals_back(tmp_path, monkeypatch, words, status):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/broken").write_text("listeners=\\u12")
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    handlers = [signal.getsignal(number) for number in numbers]
    written_to = signal.set_wakeup_fd(-1)
    try:
        assert cli.main(words, standalone_mode=False) == status
        assert [signal.getsignal(number) for number in numbers] == handlers
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(written_to)
