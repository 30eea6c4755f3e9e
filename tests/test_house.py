"""The size of classes and files, and that a name is taken once: what a reader of the engine has to keep in mind."""
import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent

MAX_METHODS = 45
# Near this a file holds two nouns.
MAX_LINES = 600


# Generated from a table.
MESSAGES = ROOT / "engine/seglog/endpoint/messages.py"


def python_sources():
    return sorted({*(ROOT / "engine/seglog").rglob("*.py"), *(ROOT / "tools").rglob("*.py")} - {MESSAGES})


def kernel_sources():
    return sorted((ROOT / "cext").rglob("*.pyx"))


def _is_field(function):
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any("property" in name or name.endswith(".setter") for name in decorators)


@cache
def classes():
    """The classes in Python: {(file, name): (names of methods, bases)}. Imports say in which file a base is."""
    found = {}
    for path in python_sources():
        tree = ast.parse(path.read_text())
        origin = {
            alias.asname or alias.name: (ROOT / "engine" / f"{node.module.replace('.', '/')}.py", alias.name)
            for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef) and not _is_field(part)}
                bases = [origin.get(base.id, (path, base.id)) for base in node.bases if isinstance(base, ast.Name)]
                found[path, node.name] = methods, bases
    return found


def methods_of(key):
    """Its methods and those of its bases, each name once. Properties do not count, for they read as fields, nor do
    `__enter__` and the like, nor bases that are kernels.
    """
    methods, bases = classes().get(key, ((), ()))
    own = {name for name in methods if not (name.startswith("__") and name.endswith("__"))}
    return own.union(*(methods_of(base) for base in bases))


def test_a_class_has_45_methods_at_most():
    sizes = {name: len(methods_of((path, name))) for path, name in classes()}
    assert len(sizes) > 300
    assert {name: n for name, n in sizes.items() if n > MAX_METHODS} == {}


def test_methods_of_bases_in_other_files_are_counted():
    key = next(key for key in classes() if key[1] == "Partition")
    own, _ = classes()[key]
    assert {"find_offset", "read", "offset_at"} <= methods_of(key)
    assert "find_offset" not in own


def test_a_public_class_has_a_name_of_its_own():
    places = {}
    for path in [*python_sources(), *kernel_sources()]:
        for name in re.findall(r"^(?:cdef )?class (\w+)", path.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1 and not name.startswith("_")} == {}


def test_a_file_has_600_lines_at_most():
    files = [*python_sources(), *kernel_sources(), *(ROOT / "cext").rglob("*.pxd"), *(ROOT / "cext").rglob("*.[ch]")]
    sizes = {path.relative_to(ROOT).as_posix(): path.read_text().count("\n") for path in files}
    assert len(sizes) > 300
    assert {name: lines for name, lines in sizes.items() if lines > MAX_LINES} == {}
