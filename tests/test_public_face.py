"""The names of `import seglog`."""
import ast
import inspect
import pydoc
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import seglog
import seglog.spark
import seglog.testing
from seglog.errors import InvalidArgumentError

MODULES = [
    seglog, seglog.aio, seglog.errors, seglog.metrics, seglog.polars, seglog.pulsar, seglog.spark, seglog.testing,
]
CONSTANTS = {"__version__", "ROW_SCHEMA", "PROCESS"}


def test_every_public_name_is_there_and_listed():
    for name in seglog.__all__:
        assert getattr(seglog, name) is not None
        assert name in dir(seglog)
    for module in (seglog.pulsar, seglog.spark):
        for name in module.__all__:
            assert getattr(module, name) is not None
            assert name in dir(module)
    assert not set(seglog.__all__) & set(seglog.pulsar.__all__)


def test_the_list_of_public_names_has_no_line_that_is_not_read():
    """Else a type checker would know a name that is not there."""
    for module in (seglog, seglog.pulsar, seglog.spark):
        stub = Path(module.__file__).with_suffix(".pyi")
        lines = [line for line in stub.read_text().splitlines() if not line.startswith("#")]
        assert len(lines) == len(module.__all__)


def public_classes():
    """Those of every public module. (Protobuf has its own classes.)"""
    for module in MODULES:
        for name in listed(module):
            each = getattr(module, name)
            if inspect.isclass(each) and each.__module__.startswith("seglog.") and not name.endswith("Metadata"):
                yield each


def listed(module):
    """The public names of a module: its list; without one, what it defines."""
    names = getattr(module, "__all__", None)
    if names is not None:
        return names
    return [
        name for name, each in vars(module).items()
        if not name.startswith("_") and getattr(each, "__module__", None) == module.__name__
    ]


@cache
def parsed(path):
    return [node for node in ast.walk(ast.parse(Path(path).read_text())) if isinstance(node, ast.ClassDef)]


@cache
def assigned(cls):
    """The public attributes that the methods of a class assign to `self`."""
    if not cls.__module__.startswith("seglog.") or cls.__module__.startswith("seglog._kernels"):
        return set()
    (definition,) = [node for node in parsed(inspect.getfile(cls)) if node.name == cls.__qualname__.split(".")[-1]]
    return {
        node.attr for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr[0] != "_"
        and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def undocumented(cls):
    """What has no docstring and inherits none. A field stands in that of its class."""
    described = " ".join(vars(base).get("__doc__") or "" for base in cls.__mro__)
    for name in sorted(set(dir(cls)).union(*map(assigned, cls.__mro__))):
        if name.startswith("_") or name in dir(int) or name in {*dir(OSError), *dir(ImportError)}:
            continue
        owners = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
        can_have_one = any(
            inspect.isroutine(owner) or isinstance(owner, property | classmethod | staticmethod)
            or inspect.isgetsetdescriptor(owner)
            for owner in owners
        )
        if can_have_one:
            if not any(inspect.getdoc(owner) for owner in owners):
                yield f"{cls.__name__}.{name}"
        elif not re.search(rf"\b{name}\b", described):
            yield f"{cls.__name__}.{name}"


def test_every_public_name_has_a_docstring():
    public = [getattr(module, name) for module in MODULES for name in listed(module) if name not in CONSTANTS]
    assert [each for each in public if not inspect.getdoc(each)] == []
    classes = [*public_classes()]
    assert sorted({name for each in classes for name in undocumented(each)}) == []
    assert len(public) > 100
    assert len(classes) > 50


def test_importing_seglog_loads_no_room_before_it_is_used():
    code = "import seglog, sys; print([m for m in sys.modules if m.startswith('seglog.') and m != 'seglog.errors'])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['seglog._public', 'seglog._version']"


@pytest.mark.parametrize(
    "door", ["open", "open_dir", "open_partition", "recover", "pulsar.ManagedLedger", "pulsar.DelayedDelivery"],
)
def test_whoever_may_log_something_prints_nothing_by_itself(door):
    """Else Python prints the warnings of a library to stderr by itself."""
    code = (
        f"import logging, seglog; seglog.{door}; from seglog.logger import Logger; Logger('seglog.x').warning('lost')\n"
        "print(len(logging.getLogger('seglog').handlers))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("1", "")


@pytest.mark.parametrize(("configuration", "printed"), [
    ("import logging", "lost\n"),
    ("import logging; logging.basicConfig(format='once: %(message)s')", "once: warned\nonce: lost\n"),
    ("import logging; logging.getLogger('seglog.x').addHandler(logging.StreamHandler())", "warned\nlost\n"),
    ("import logging; logging.getLogger('seglog').addHandler(logging.StreamHandler())", "warned\nlost\n"),
    ("import logging; logging.getLogger('seglog').addHandler(logging.NullHandler())", ""),
])
def test_an_error_is_printed_once_whether_logging_is_configured_or_not(configuration, printed):
    code = (
        f"{configuration}\nimport seglog; from seglog.logger import Logger; log = Logger('seglog.x')\n"
        "log.warning('warned'); log.error('lost')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == printed


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(seglog, "no_such_name")


@pytest.mark.parametrize("path", [None, 5, b"orders-0", "orders\0-0"])
def test_what_is_no_path_is_refused_at_every_door(path, tmp_path):
    doors = [
        seglog.open, seglog.open_dir, seglog.open_partition, seglog.verify, seglog.plan_conversion,
        lambda src: seglog.recover(src, mode="truncate"),
    ]
    seglog.open(tmp_path / "orders-0").close()
    if path is not None:
        doors += [
            lambda dst: seglog.convert(tmp_path / "orders-0", dst),
            lambda out: seglog.recover(tmp_path / "orders-0", out, mode="truncate"),
        ]
    for door in doors:
        with pytest.raises(InvalidArgumentError):
            door(path)


@pytest.mark.parametrize("name", [name for name in seglog.__all__ if isinstance(getattr(seglog, name), type)])
def test_every_attribute_of_a_public_class_can_be_looked_up_on_the_class(name):
    """As help() and documentation tools do."""
    public = getattr(seglog, name)
    for attribute in dir(public):
        if attribute != "__abstractmethods__":      # of `type`, which every class lacks until it has some
            getattr(public, attribute)
    assert pydoc.render_doc(public)


@pytest.mark.parametrize("name", ["metrics.PROCESS", "metrics.Exposition", "polars.scan_topic", "aio.open",
                                  "errors.SeglogError"])
def test_a_public_module_is_loaded_by_its_first_use_as_documented(name):
    """`import seglog` is enough, in a process that has used nothing else yet, and type checkers know the module."""
    subprocess.run([sys.executable, "-c", f"import seglog; seglog.{name}"], check=True, timeout=60)
    stub = (Path(seglog.__file__).parent / "__init__.pyi").read_text()
    assert re.search(rf"\b{name.partition('.')[0]}\b", stub)


def test_what_a_newcomer_looks_at_shows_what_it_is(tmp_path):
    with seglog.open(tmp_path / "orders-0") as log:
        log.append(b"v" * 50, key="k")
        log.append(None, headers=[("h", b"x")])
        with seglog.open_partition(log.path) as partition, seglog.follow(log.path) as follower:
            assert repr(log) == "<Log orders-0: offsets 0 to 2>"
            assert repr(log.read()) == "<an iterator; list() shows its items>"
            assert [repr(record) for record in log] == [
                f"<Record offset 0: key b'k', value {b'v' * 40}... (50 bytes)>",
                "<Record offset 1: key None, value None>",
            ]
            assert repr(next(log.batches())) == "<RecordBatch v2: offsets 0 to 0, 119 bytes at byte 0>"
            assert repr(log.segments[0]) == "<Segment 00000000000000000000.log>"
            assert repr(partition) == "<Partition orders-0: from offset 0, 1 segment>"
            assert repr(follower) == "<Follower orders-0: from offset 0>"
        assert repr(partition) == "<Partition orders-0: closed>"
        assert repr(follower) == "<Follower orders-0: closed>"
    with seglog.Queue(tmp_path / "jobs") as queue:
        queue.put(b"mail" * 20, key="k")
        with queue.get() as job:
            assert repr(job) == f"<Job 0:0: attempt 1, key 'k', value {b'mail' * 10}... (80 bytes)>"


def test_the_program_that_type_checkers_read_uses_every_public_name():
    """`make mypy` checks it (pyproject.toml)."""
    program = ast.parse(Path(__file__).with_name("support").joinpath("every_door.py").read_text())
    used = {node.attr for node in ast.walk(program) if isinstance(node, ast.Attribute)}
    used |= {node.arg for node in ast.walk(program) if isinstance(node, ast.arg)}
    names = {name for module in MODULES if module is not seglog.errors for name in listed(module)}
    assert names - used == {"pytest_addoption", "pytest_configure", "pytest_unconfigure"}      # pytest calls them
