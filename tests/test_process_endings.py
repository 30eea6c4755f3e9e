"""Everything that can be open when a process ends, and every way in which it ends.

It ends at once, with the status that it would have had, what was kept in memory is written, and a ResourceWarning says
what was not closed.
"""
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

import seglog
from seglog.process_end import ProcessEnd
from support import endings

SCRIPT = Path(endings.__file__)
# Each kind alone in each way, each in a process of its own. Otherwise each kind ends in one way, all together in each
# of the others, in forks of one process.
TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
ENDS_WITHIN_S = 5.0         # it ends within a second; a processor may be slow
ENV = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent)}
# What would be a surprise on stderr. "Exception ignored": in a finalizer.
SURPRISES = re.compile(
    "Exception ignored|Fatal|Error in sys|^(?!.*CancelledError)[\\w.]*Error(?!: on purpose)", re.MULTILINE
)
# Whether no path can be joined once the modules are gone (Python 3.13.18), as where a collected object closes its log.
IMPORTS_LATE = "ntpath" in getattr(getattr(PurePath.__init__, "__code__", None), "co_varnames", ())
# A stopped thread of the program keeps the globals of its module, so nothing of them is collected; or there is nothing
# to warn of.
WITHOUT_WARNING = {"followed", "follower", "busy", "busy_lingering", "closed_late", "tracker", "delivery",
                   "delivery_batch", "scan", "serve", "aio"}
KINDS = [kind for kind in endings.KINDS if kind != "scan" or importlib.util.find_spec("pyarrow")]
WAYS = [way for way in endings.WAYS if way != "end"]


@pytest.fixture(scope="module")
def forks():
    """A function that ends a fork of one process, and returns its status and how long it took."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, SCRIPT], stdin=pipe, stdout=pipe, text=True, env=ENV) as process:
        def end(directory, kinds, way):
            print(directory, ",".join(kinds), way, file=process.stdin, flush=True)
            status, seconds = process.stdout.readline().split()
            return int(status), float(seconds)

        yield end
        process.stdin.close()


def check(directory, kinds, way, status, seconds):
    output = (directory / "output").read_text()
    assert status == endings.WAYS[way], f"{kinds} {way}: status {status} after {seconds:.1f} s\n{output}"
    assert seconds < ENDS_WITHIN_S
    if not (IMPORTS_LATE and "closed_late" in kinds):
        assert not SURPRISES.search(output), output
    if way in ("mp_fork", "sigterm"):       # nothing is collected
        assert "ResourceWarning" not in output
    elif way == "spawn" and "unclosed file" not in output:
        assert "ResourceWarning" not in output      # what is collected so late warns of nothing (3.13.18)
    elif way != "cancelled" and WITHOUT_WARNING.isdisjoint(kinds):
        assert "was not closed" in output
    if way == "fork" and "batch" in kinds:      # the child did not open it
        assert output.count("<Log batch-0") == 1
    for kind in endings.LINGERING.keys() & set(kinds):
        with seglog.open_partition(directory / f"{kind}-0") as partition:
            expected = endings.LINGERING[kind]
            if way == "sigterm":
                assert partition.log_end_offset <= expected
            else:
                assert partition.log_end_offset == expected, output


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_ends_that_left_something_open(forks, tmp_path, kind):
    check(tmp_path, [kind], "end", *forks(tmp_path, [kind], "end"))


@pytest.mark.parametrize("way", WAYS)
def test_a_process_ends_in_every_way_with_everything_open(forks, tmp_path, way):
    kinds = [kind for kind in KINDS if kind not in WITHOUT_WARNING]
    check(tmp_path, kinds, way, *forks(tmp_path, kinds, way))


@pytest.mark.parametrize("way", WAYS)
def test_a_process_ends_in_every_way_whose_threads_use_what_is_open(forks, tmp_path, way):
    kinds = [*WITHOUT_WARNING.intersection(KINDS), *endings.LINGERING]
    check(tmp_path, kinds, way, *forks(tmp_path, kinds, way))


@pytest.mark.skipif(not TORTURE, reason="two hundred processes: make torture")
@pytest.mark.parametrize("way", endings.WAYS if TORTURE else ["end"])
@pytest.mark.parametrize("kind", KINDS if TORTURE else ["batch"])
def test_each_kind_and_each_way_in_a_process_of_its_own(tmp_path, kind, way):
    with (tmp_path / "output").open("wb") as output, subprocess.Popen(
        [sys.executable, SCRIPT, tmp_path, kind, way], stdout=output, stderr=output, start_new_session=True, env=ENV
    ) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 * endings.PATIENCE_S)
        if process.poll() is None:
            os.killpg(process.pid, 9)
    check(tmp_path, [kind], way, process.returncode, 0.0)


def test_a_log_that_is_collected_while_the_process_goes_on_writes_what_lingers(tmp_path):
    log = seglog.open(tmp_path / "lingers-0", fsync="never", config=endings.LINGERS)
    log.append(b"kept in memory")
    with pytest.warns(ResourceWarning):
        del log
    with seglog.open_partition(tmp_path / "lingers-0") as partition:
        assert [record.value for record in partition.read()] == [b"kept in memory"]


def test_a_log_is_closed_for_good_even_if_the_warning_is_an_error(tmp_path):
    code = (
        "import seglog\n"
        f"log = seglog.open({str(tmp_path / 'a-0')!r}, fsync='interval')\n"
        "del log\n"
        f"seglog.open({str(tmp_path / 'a-0')!r}).close()\n"      # it is not locked
    )
    done = subprocess.run([sys.executable, "-W", "error::ResourceWarning", "-c", code], capture_output=True, timeout=30)
    assert done.returncode == 0
    assert b"was not closed" in done.stderr


def test_handlers_of_the_program_close_logs_before_and_after(tmp_path):
    code = (
        "import atexit, sys\n"
        "opened = []\n"
        "atexit.register(lambda: opened[0].close())\n"      # registered before the engine: it runs after our handler
        "import seglog\n"
        "for n in range(2):\n"
        f"    path = {str(tmp_path)!r} + f'/a-{{n}}'\n"
        "    opened.append(seglog.open(path, fsync='interval', config={'linger.ms': 60000}))\n"
        "    opened[n].append(b'1')\n"
        "atexit.register(lambda: opened[1].close())\n"
    )
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    for n in range(2):
        with seglog.open(tmp_path / f"a-{n}") as log:
            assert (log.recovery.lost, log.log_end_offset) == ((), 1)


class Late:
    def __init__(self):
        self.calls = []

    def write_out(self):
        self.calls.append("write_out")
        raise OSError("disk full")

    def end_soon(self):
        self.calls.append("end_soon")

    def await_end(self, timeout_s):
        self.calls.append("await_end")
        assert 0 <= timeout_s <= 0.5


def test_one_that_fails_does_not_keep_the_others(caplog):
    end, others = ProcessEnd(), [Late(), Late()]
    end.add(others[0], is_last=True)
    end.add(others[1])
    end.run()
    assert [other.calls for other in others] == [["write_out", "end_soon", "await_end"]] * 2
    assert len(caplog.records) == 2
    end.run()       # nothing is left
    assert len(others[0].calls) == 3


def test_what_is_removed_is_not_ended():
    end, late = ProcessEnd(), Late()
    end.add(late)
    end.remove(late)
    end.remove(late)
    end.run()
    assert late.calls == []
