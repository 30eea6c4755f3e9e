"""The names of `import seglog`."""
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import seglog
from seglog.aio.log import AsyncLog
from seglog.aio.queue import AsyncJob, AsyncQueue
from seglog.aio.readers import AsyncFollower, AsyncPartition
from seglog.aio.records import AsyncRecords
from seglog.errors import InvalidArgumentError


def test_every_public_name_is_there_and_listed():
    for name in seglog.__all__:
        assert getattr(seglog, name) is not None
        assert name in dir(seglog)
    for name in seglog.pulsar.__all__:
        assert getattr(seglog.pulsar, name) is not None
        assert name in dir(seglog.pulsar)
    assert not set(seglog.__all__) & set(seglog.pulsar.__all__)


def test_the_list_of_public_names_has_no_line_that_is_not_read():
    """Else a type checker would know a name that is not there."""
    for module in (seglog, seglog.pulsar):
        stub = Path(seglog.__file__).with_name("pulsar.pyi" if module is seglog.pulsar else "__init__.pyi")
        lines = [line for line in stub.read_text().splitlines() if not line.startswith("#")]
        assert len(lines) == len(module.__all__)


def undocumented(cls):
    """What has no docstring and inherits none. A field, in Python or a kernel, may stand in that of its class."""
    for name in dir(cls):
        if name.startswith("_") or name in dir(int) or name in dir(Exception):
            continue
        owners = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
        can_have_one = any(
            inspect.isroutine(owner) or isinstance(owner, property) or inspect.isgetsetdescriptor(owner)
            for owner in owners
        )
        if can_have_one and any(inspect.getdoc(owner) for owner in owners):
            continue
        in_class = any(re.search(rf"\b{name}\b", vars(base).get("__doc__") or "") for base in cls.__mro__)
        is_field = cls.__module__.startswith("seglog._kernels") and not any(map(inspect.isroutine, owners))
        if not (in_class or is_field) or any(map(inspect.isroutine, owners)):
            yield f"{cls.__name__}.{name}"


def test_every_public_name_has_a_docstring():
    public = [getattr(seglog, name) for name in seglog.__all__ if name != "__version__"]
    public += [getattr(seglog.pulsar, name) for name in seglog.pulsar.__all__ if not name.endswith("Metadata")]
    public += [AsyncLog, AsyncFollower, AsyncPartition, AsyncRecords, AsyncQueue, AsyncJob]
    assert [each for each in public if not inspect.getdoc(each)] == []
    assert [name for each in public if inspect.isclass(each) for name in undocumented(each)] == []
    assert len(public) > 40


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
        "print(logging.getLogger('seglog').handlers)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[<NullHandler (NOTSET)>]", "")


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
