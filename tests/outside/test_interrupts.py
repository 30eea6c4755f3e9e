"""Interrupts at any moment: no hang, nothing acknowledged is lost, no log is read-only or needs a hand for it.

By chance: KeyboardInterrupt by a signal on the main thread, PyThreadState_SetAsyncExc on the others. And one by one: at
every opcode of a call after which the interpreter may deliver an exception, on the main thread.
"""
import dis
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import seglog
from seglog.errors import LogClosedError
from support.interrupts import BY_MONITORING, TOOL
from support.outside.fork_server import Forked
from support.outside.silence import next_line
from support.waiting import in_time

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
# 200 000 in all, or a twentieth. (A thread alone has to wait for each one: that takes ten times longer.)
INTERRUPTS = {1: 20_000, 8: 20_000} if FULL else {1: 50, 8: 3_300}
# fsync, threads, linger.ms: a process each
RUNS = [("batch", 1, 0), ("batch", 8, 0), ("interval", 8, 0), ("never", 1, 2), ("never", 8, 2)]
if FULL:
    RUNS += [("interval", 1, 0), ("never", 1, 0), ("never", 8, 0), ("interval", 1, 2), ("interval", 8, 2)]


def lines_of(stream):
    """A queue that gets each line, and an empty one at the end."""
    lines = queue.SimpleQueue()

    def take():
        with stream:
            for line in stream:
                lines.put(line)
        lines.put("")

    threading.Thread(target=take, daemon=True).start()
    return lines


def interrupted(recorder, directory, module="interrupted_worker", **arguments):
    """What a worker that was interrupted tells at its end; a hang is told with the stacks of its threads."""
    worker = Forked(
        recorder, f"support.outside.{module}", [json.dumps(arguments)], {}, directory, pipes=True)
    with worker:
        lines = lines_of(worker.stdout)
        last = line = ""
        try:
            while line := next_line(lines, worker.pid):
                last = line
        except queue.Empty:
            os.kill(worker.pid, signal.SIGUSR1)      # faulthandler: all stacks
            os.kill(worker.pid, signal.SIGCONT)
            with suppress(TimeoutError):
                worker.wait(20)
            pytest.fail(f"it hangs, {last.strip()}\n{worker.errors()[-6000:]}")
        status = worker.wait()
        assert last.startswith("{"), f"it ended with {status}, {last.strip()}\n{worker.errors()[-6000:]}"
    return json.loads(last)


@pytest.mark.parametrize(("fsync", "threads", "linger_ms"), RUNS)
def test_interrupts_by_chance(in_memory, recorder, fsync, threads, linger_ms):
    told = interrupted(
        recorder, in_memory, path=str(in_memory / "data" / "orders-0"), fsync=fsync, threads=threads,
        linger_ms=linger_ms, seed=1, interrupts=INTERRUPTS[threads],
    )
    assert told["wrong"] == []
    assert told["interrupts"] + told["ignored"] == INTERRUPTS[threads]
    assert told["appended"] > 0


# door: threads, interrupts. (A server takes longer to begin than an append.)
DOORS = {
    "cursor": (8, 2_000), "follow": (8, 500), "cleaner": (4, 500), "serve": (2, 40), "loop": (4, 500),
    "ledger": (4, 1_000), "managed": (4, 800), "delayed": (4, 1_000), "attached": (8, 500),
}
if FULL:
    DOORS = {
        "cursor": (8, 100_000), "follow": (8, 100_000), "cleaner": (4, 20_000), "serve": (2, 2_000),
        "loop": (4, 20_000), "ledger": (4, 20_000), "managed": (4, 20_000), "delayed": (4, 20_000),
        "attached": (8, 20_000),
    }


@pytest.mark.parametrize("door", DOORS)
def test_interrupts_by_chance_in_other_doors(in_memory, recorder, door):
    threads, interrupts = DOORS[door]
    told = interrupted(
        recorder, in_memory, "interrupted_doors", door=door, path=str(in_memory / "data" / "orders-0"),
        threads=threads, seed=1, interrupts=interrupts,
    )
    assert told["wrong"] == []
    assert told["interrupts"] + told["ignored"] >= interrupts
    assert told["done"] > threads


HANGS = {
    "waits": "time.sleep(60)",
    "spins": "while True: pass",
}
GOES_ON = {
    "is slow": "[spend(0.01) or time.sleep(0.1) for _ in range(8)]",     # as with many rivals for the processor
    "ends": "",
}


@pytest.mark.parametrize("does", HANGS | GOES_ON)
def test_a_hang_is_told_by_processor_time_not_by_the_clock(does):
    program = f"""
import time
def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
print("begins", flush=True)
{(HANGS | GOES_ON)[does]}
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        lines = lines_of(process.stdout)
        try:
            assert next_line(lines, process.pid) == "begins\n"
            if does in GOES_ON:
                assert next_line(lines, process.pid, busy_s=0.2, still_s=0.4) == ""
            else:
                with pytest.raises(queue.Empty):
                    next_line(lines, process.pid, busy_s=0.2, still_s=0.4)
        finally:
            process.kill()


# --- one by one ------------------------------------------------------------------------------------

# After these the interpreter looks whether something is to be delivered (CHECK_EVAL_BREAKER of CPython).
_LOOKS_AFTER = {
    number for name, number in dis.opmap.items()
    if name in ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "CALL_METHOD", "CALL_FUNCTION", "CALL_FUNCTION_KW")
    or "JUMP_BACKWARD" in name
}
_PRECALL = dis.opmap.get("PRECALL")     # 3.11: of a builtin it does the call, and CALL is passed over
ENGINE = str(Path(seglog.__file__).parent)


class OneInterrupt:
    """Counts the moments of a call at which the engine may be interrupted; raises at the one with number `at`."""

    def __init__(self, at=None):
        self.at, self.count = at, 0
        self.where = None
        self.functions = []     # of each moment

    def __enter__(self):
        if BY_MONITORING:
            self._last = {}     # frame: the instruction before
            self._thread = threading.get_ident()
            sys.monitoring.use_tool_id(TOOL, __name__)
            sys.monitoring.register_callback(TOOL, sys.monitoring.events.INSTRUCTION, self._before_instruction)
            sys.monitoring.set_events(TOOL, sys.monitoring.events.INSTRUCTION)
        else:
            self._before = sys.gettrace()
            sys.settrace(self._called)
        return self

    def __exit__(self, *_):
        if BY_MONITORING:
            sys.monitoring.set_events(TOOL, sys.monitoring.events.NO_EVENTS)
            sys.monitoring.register_callback(TOOL, sys.monitoring.events.INSTRUCTION, None)
            sys.monitoring.free_tool_id(TOOL)
        else:
            sys.settrace(self._before)

    def _before_instruction(self, code, offset):
        if not code.co_filename.startswith(ENGINE):
            return sys.monitoring.DISABLE
        if threading.get_ident() == self._thread:
            frame = sys._getframe(1)
            before = self._last.get(id(frame)) if offset else None
            self._last[id(frame)] = code.co_code[offset]
            if before in _LOOKS_AFTER:
                self._moment(frame)
        return None

    def _moment(self, frame):
        self.count += 1
        self.functions.append(frame.f_code.co_qualname)
        if self.count == self.at:
            self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            raise KeyboardInterrupt     # which also ends the tracing by settrace

    def _called(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        code, last = frame.f_code.co_code, None

        def traced(frame, event, argument):
            nonlocal last
            if event != "opcode":
                return traced
            before, last = last, code[frame.f_lasti]
            if before in _LOOKS_AFTER or (before == _PRECALL and last not in _LOOKS_AFTER):
                self._moment(frame)
            return traced

        return traced


CALLS = {
    "append": lambda log: log.append(b"second"),
    "append that rolls": lambda log: log.append(b"x" * 900),
    "append_many": lambda log: log.append_many([(None, b"second"), (None, b"third")]),
    "flush": lambda log: log.flush(),
    "roll": lambda log: log.roll(),
    "truncate_to": lambda log: log.truncate_to(1),
    "close": lambda log: log.close(),
}


def start(path, fsync):
    log = seglog.open(path, config={"segment.bytes": 1000, "index.interval.bytes": 100}, fsync=fsync)
    for n in range(3):
        log.append(b"%d" % n + b"." * 60)
    return log


# A file that an interrupt left half made is closed by the garbage collector, which says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fsync", ["batch", "interval", "never"])
@pytest.mark.parametrize("call", CALLS)
def test_one_interrupt_at_every_moment_of_a_call(in_memory, call, fsync):
    path = in_memory / "data" / "orders-0"
    with start(path, fsync) as log, OneInterrupt() as moments:
        CALLS[call](log)
    assert moments.count > 0
    for at in range(1, moments.count + 1, 1 if FULL else max(moments.count // 6, 1)):
        place = in_memory / f"data{at}" / "orders-0"
        log = start(place, fsync)
        with OneInterrupt(at) as interrupt, suppress(KeyboardInterrupt):
            CALLS[call](log)
        look_again(log, place, fsync, interrupt, call)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("is_new", "fsync"), [(True, "interval"), (False, "interval"), (False, "batch")])
def test_one_interrupt_at_every_moment_of_opening(in_memory, is_new, fsync):
    """Whoever is interrupted before the call has returned has nothing to close: it holds nothing."""
    left = in_memory / "left" / "orders-0"
    if not is_new:
        start(left, fsync)._tail.let_go(clean=False)    # as by kill -9: to be recovered

    def place(at):
        if not is_new:
            shutil.copytree(left.parent, in_memory / f"data{at}")
        return in_memory / f"data{at}" / "orders-0"

    path = place(0)
    with OneInterrupt() as moments:
        log = seglog.open(path, fsync=fsync)
    log.close()
    assert moments.count > 0
    for at, function in enumerate(moments.functions, 1):
        # In `make test` a few of each part: most of what is held is taken in these two functions.
        if not FULL and at % (5 if function in ("Log.__init__", "PartitionHold.__init__") else 229):
            continue
        path = place(at)
        log = None
        with OneInterrupt(at) as interrupt, suppress(KeyboardInterrupt):
            log = seglog.open(path, fsync=fsync)
        if log is not None:
            log.close()
        log = in_time(lambda path=path: opened(path, fsync, interrupt), seconds=120)
        look_again(log, path, fsync, interrupt, "open", is_new)


def opened(path, fsync, interrupt):
    try:
        return seglog.open(path, fsync=fsync)
    except BaseException as error:
        error.add_note(f"interrupted at {interrupt.at}: {interrupt.where}")
        raise


def look_again(log, path, fsync, interrupt, call, is_new=False):
    """The log is usable or closed, and what it holds is whole."""
    try:
        try:
            in_time(lambda: log.append(b"after"), seconds=120)
            is_open = True
        except LogClosedError:
            is_open = False
        in_time(log.close, seconds=120)
        with seglog.open(path, fsync=fsync) as again:
            values = [bytes(record.value) for record in again.read()]
    except BaseException as error:
        error.add_note(f"interrupted at {interrupt.at} of {call}: {interrupt.where}")
        raise
    assert is_open or call == "close", interrupt.where
    kept = [value for value in values if value[1:] == b"." * 60]
    assert is_new or values[0] == b"0" + b"." * 60, interrupt.where
    assert len(kept) == 3 * (not is_new) or call == "truncate_to", (interrupt.where, values)
    assert not is_open or values[-1] == b"after", (interrupt.where, values)
