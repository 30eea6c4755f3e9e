"""A name is taken once: what a reader of the engine has to keep in mind."""
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Generated from a table.
MESSAGES = ROOT / "engine/seglog/wire/messages.py"


def python_sources():
    return sorted({*(ROOT / "engine/seglog").rglob("*.py"), *(ROOT / "tools").rglob("*.py")} - {MESSAGES})


def kernel_sources():
    return sorted((ROOT / "cext").rglob("*.pyx"))


def test_a_public_class_has_a_name_of_its_own():
    places = {}
    for path in [*python_sources(), *kernel_sources()]:
        for name in re.findall(r"^(?:cdef )?class (\w+)", path.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1 and not name.startswith("_")} == {}


def test_named_tuples_are_those_that_are_made_quickly():
    """typing's take as long as five of them (seglog.named_tuple). `counters` is on the same floor as that module, and
    `plain_records` shares no code with the rest."""
    slow = {
        path.name for path in python_sources()
        if re.search(r"^\s*(?:from typing import .*\bNamedTuple\b|from collections import .*\bnamedtuple\b)",
                     path.read_text(), re.MULTILINE)
    }
    assert slow == {"counters.py", "named_tuple.py", "plain_records.py"}
