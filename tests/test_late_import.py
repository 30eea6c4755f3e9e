"""Modules that are imported where they are first needed: an interrupt there keeps no other thread waiting."""
import _thread
import ast
import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from seglog._public import lazy_names
from seglog.late_import import late
from support.waiting import in_time, wait_for

ENGINE = Path(__file__).parent.parent / "engine/seglog"
# What imports within functions without `late`, and why.
MAY = {
    "_public.py",           # by the names of modules: test_interrupted_threads_leave_no_public_name_locked
    "logger.py", "config.py", "metrics.py",     # below `late`; a module that is there, a wrong name, a library's call
    "named_tuple.py",       # in no function: by the version of Python
    "testing.py",           # fixtures
    "late_import.py",       # threading: in the caller's thread
}
PACKAGES_THAT_MAY = {
    "_kernels",
    "spark",                # programs and workers that end at ^C
}
KIND = KeyboardInterrupt


def inner_imports(path):
    """(the node, the modules that it may mean, the statement before it) of each import within a function."""
    for outer in ast.walk(ast.parse(path.read_text())):
        for block in ("body", "orelse", "handlers", "finalbody"):
            statements = getattr(outer, block, None)
            if not isinstance(statements, list):
                continue        # of an expression
            for before, node in zip([None, *statements], statements, strict=False):
                if isinstance(node, ast.ImportFrom) and node.col_offset:
                    yield node, [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)], before
                elif isinstance(node, ast.Import) and node.col_offset:
                    yield node, [node.names[0].name], before


def is_late(before, modules):
    call = getattr(before, "value", None)
    if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "late":
        return False
    [name] = [argument.value for argument in call.args]
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def test_each_import_within_a_function_is_late():
    files = [
        path for path in ENGINE.rglob("*.py")
        if path.name not in MAY and path.relative_to(ENGINE).parts[0] not in PACKAGES_THAT_MAY
    ]
    found = [(path, *each) for path in files for each in inner_imports(path)]
    inner = [each for each in found if not is_type_checking(*each[:2])]
    assert [f"{path}:{node.lineno}" for path, node, modules, before in inner if not is_late(before, modules)] == []
    assert len(inner) > 60


def is_type_checking(path, node):
    """Whether an import is in a block `if TYPE_CHECKING`."""
    for block in ast.walk(ast.parse(path.read_text())):
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING" and (
            block.lineno < node.lineno <= block.end_lineno
        ):
            return True
    return False


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes modules that take a while to import; returns their names."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(number):
        (tmp_path / f"slow_{number}.py").write_text("import time\ntime.sleep(0.001)\nvalue = 1\n")
        return f"slow_{number}"

    yield make
    for name in [name for name in sys.modules if name.startswith("slow_")]:
        del sys.modules[name]


class Importer:
    """A thread that imports a module until it has done so and is told to stop, whatever exception comes."""

    def __init__(self, name):
        self.name = name
        self.is_done = self.is_stopped = self.has_ended = False
        self.ident = None
        _thread.start_new_thread(self.run, ())

    def run(self):
        while not self.has_ended:
            try:
                self.work()
                self.has_ended = True
            except KIND:
                pass

    def work(self):
        self.ident = threading.get_ident()      # from here on, what is sent is caught
        while not (self.is_done and self.is_stopped):
            late(self.name)
            self.is_done = __import__(self.name).value == 1
            time.sleep(0.0002)


def interrupt_until_they_are_done(threads, chance):
    wait_for(lambda: all(thread.ident for thread in threads))
    for _ in range(6):
        time.sleep(chance.random() * 0.0006)
        ident = chance.choice(threads).ident
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(KIND))
    wait_for(lambda: all(thread.is_done for thread in threads))
    for thread in threads:
        thread.is_stopped = True
    wait_for(lambda: all(thread.has_ended for thread in threads))


def test_interrupted_threads_leave_no_module_locked(module):
    """With the import system alone, the first or second of them hangs."""
    chance = random.Random(5)
    for number in range(100):
        name = module(number)
        threads = [Importer(name) for _ in range(3)]
        interrupt_until_they_are_done(threads, chance)


class NameTaker(Importer):
    """The same by a public name of a module."""

    def __init__(self, name, get):
        self.get = get
        super().__init__(name)

    def work(self):
        self.ident = threading.get_ident()
        while not (self.is_done and self.is_stopped):
            self.is_done = self.get("value") == 1
            time.sleep(0.0002)


def test_interrupted_threads_leave_no_public_name_locked(module, tmp_path):
    chance = random.Random(6)
    for number in range(60):
        name = module(number)
        (tmp_path / "stub.pyi").write_text(f"from {name} import value as value\n")
        get, _ = lazy_names(__name__, str(tmp_path / "stub.pyi"))
        assert get("__all__") == ["value"]      # the stub is read
        threads = [NameTaker(name, get) for _ in range(3)]
        interrupt_until_they_are_done(threads, chance)
        globals().pop("value", None)


def test_a_public_name_may_lead_to_a_module_that_takes_another_one(module, tmp_path, monkeypatch):
    """Both are imported by the same thread: a second one would wait for the first."""
    inner = module(1)
    (tmp_path / "stub.pyi").write_text(f"from {inner} import value as value\nfrom slow_outer import other as other\n")
    get, _ = lazy_names(__name__, str(tmp_path / "stub.pyi"))
    monkeypatch.setitem(globals(), "get_of_test", get)
    (tmp_path / "slow_outer.py").write_text(
        f"import sys\nother = sys.modules[{__name__!r}].get_of_test('value') + 1\n")
    assert in_time(lambda: get("other")) == 2
    globals().pop("value", None)
    globals().pop("other", None)
    with pytest.raises(AttributeError):
        get("nothing")


def test_what_is_missing_is_an_import_error(tmp_path):
    with pytest.raises(ModuleNotFoundError):
        late("seglog.no_such_module")


FIRST_USE = """
import ctypes, os, random, sys, threading, time
import seglog

KIND = KeyboardInterrupt
send = ctypes.pythonapi.PyThreadState_SetAsyncExc


def use(number, ends, idents):
    while True:
        try:
            idents[number] = threading.get_ident()
            seglog.Record
            ends.append(number)
            return
        except KIND:
            pass


def storm(chance):
    idents, ends = {}, []
    for number in range(3):
        threading.Thread(target=use, args=(number, ends, idents), daemon=True).start()
    while not idents:
        time.sleep(0)
    for _ in range(12):
        time.sleep(chance.random() * 0.0006)
        send(ctypes.c_ulong(chance.choice(list(idents.values()))), ctypes.py_object(KIND))
    until = time.monotonic() + 20
    while len(ends) < 3 and time.monotonic() < until:
        time.sleep(0.001)
    return len(ends) == 3


assert "seglog.late_import" not in sys.modules
fallen = []
for seed in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        os._exit(not storm(random.Random(seed)))
    if os.waitpid(child, 0)[1]:
        fallen.append(seed)
        break
print(fallen)
"""


def test_interrupts_at_the_first_use_of_a_public_name_keep_no_other_thread_waiting():
    """In a process that has used nothing yet: what shields an import is imported itself."""
    rounds = 2_000 if os.environ.get("SEGLOG_TORTURE") else 40
    done = subprocess.run([sys.executable, "-c", FIRST_USE, str(rounds)], capture_output=True, text=True, timeout=500)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_the_main_thread_stays_known_where_nobody_has_imported_threading():
    """The first thread that imports it is the main thread for all: asyncio and uvloop go by that with signals."""
    code = (
        "import seglog; seglog.open; import threading, _thread; "
        "print(threading.main_thread().ident == _thread.get_ident())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr
