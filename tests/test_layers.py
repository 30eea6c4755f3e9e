"""The floors of docs/architecture.md, held against the imports wherever they stand, and in the kernels too."""
import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / "engine/seglog"
# A room may import rooms on lower floors, never its own floor's neighbours or above.
FLOORS = [
    {"_version", "errors", "counters", "logger", "named_tuple", "pulsar_pb", "_kernels"},
    {"clock", "config", "late_import", "metrics", "process_end"},
    {"_public", "fs", "format", "delayed", "threads", "wire"},
    {"segment", "stores"},
    {"state", "ledger"},
    {"reading", "loading", "topic", "backups"},
    {"log", "conversion", "verification", "frames"},
    {"upkeep", "coordinators", "loop"},
    {"archive", "spark", "endpoint", "polars", "queue"},
    {"attach"},
    {"opening", "managed_ledger"},
    {"aio", "kombu", "pulsar"},
    {"__init__"},
    {"testing"},
    {"tools"},
]
FLOOR_OF = {room: n for n, rooms in enumerate(FLOORS) for room in rooms}

# Importing one of these costs more than most commands take; whoever needs one imports it where it is used.
HEAVY = {
    "numpy", "pyarrow", "pandas", "polars", "pyspark", "google", "pyroaring", "duckdb", "prometheus_client",
    "deltalake", "pyiceberg",
}


def module_name(path):
    """`seglog.format.names` of engine/seglog/format/names.py, `seglog.tools.cli` of tools/cli.py."""
    if ROOT / "tools" in path.parents:
        parts = ["seglog", "tools", *path.relative_to(ROOT / "tools").with_suffix("").parts]
    else:
        parts = list(path.relative_to(ROOT / "engine").with_suffix("").parts)
    return ".".join(parts)


def room(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(module, tree):
    """Absolute dotted names that `tree`, the source of `module`, imports; `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                # `from . import x` in seglog/format/names.py, and in seglog/format/__init__.py, means seglog.format.
                package = module.split(".")[: -node.level]
                base = ".".join([*package, *filter(None, [base])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and last_name(node.func).endswith(("import_module", "__import__")):
            yield from (str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def last_name(node):
    """Of `a.b`, b. (Not by ast.unparse: there are many calls.)"""
    return getattr(node, "attr", getattr(node, "id", ""))


@cache
def imports_of(path):
    """All that a file of ours imports."""
    return list(imports(module_name(path), ast.parse(path.read_text())))


def imported_rooms(names):
    for name in names:
        parts = name.split(".")
        if parts[0] == "seglog":
            # `from seglog import Log` takes a public door; `from seglog import errors` enters a room.
            yield parts[1] if len(parts) > 1 and parts[1] in FLOOR_OF else "__init__"


def sources():
    return sorted([*ENGINE.rglob("*.py"), *ENGINE.rglob("*.pyi"), *(ROOT / "tools").rglob("*.py")])


def test_every_room_has_a_floor():
    rooms = {room(module_name(path)) for path in sources()}
    assert rooms <= FLOOR_OF.keys()


def test_imports_run_downwards():
    uphill = []
    for path in sources():
        module = module_name(path)
        me = room(module)
        for other in imported_rooms(imports_of(path)):
            if other != me and FLOOR_OF[other] >= FLOOR_OF[me]:
                uphill.append(f"{path.relative_to(ROOT)}: {me} -> {other}")
    assert not uphill, uphill


def circles(uses):
    """The groups of names that lead back to themselves, {name: names that it uses}: strongly connected components."""
    order, seen = [], set()

    def visit(name, edges, found):
        stack = [(name, iter(sorted(edges.get(name, ()))))]
        seen.add(name)
        while stack:
            _, rest = stack[-1]
            following = next((other for other in rest if other not in seen), None)
            if following is None:
                found.append(stack.pop()[0])
            else:
                seen.add(following)
                stack.append((following, iter(sorted(edges.get(following, ())))))

    for name in sorted(uses):
        if name not in seen:
            visit(name, uses, order)
    used_by = {}
    for name, others in uses.items():
        for other in others:
            used_by.setdefault(other, set()).add(name)
    seen.clear()
    groups = []
    for name in reversed(order):
        if name not in seen:
            groups.append([])
            visit(name, used_by, groups[-1])
    return [sorted(group) for group in groups if len(group) > 1]


def imported_modules(module, names, known):
    """The modules of `known` among the `names` that `module` imports, for type checks too."""
    for name in names:
        # `from seglog.reading.partition import Partition` names the class; `from seglog.log import replay` the module.
        found = next((part for part in (name, name.rpartition(".")[0]) if part in known), None)
        if found and found != module:
            yield found


# Two files that know each other's types, and why they may.
MAY_GO_ROUND: list[set[str]] = []


def test_files_do_not_go_round_in_circles():
    known = {module_name(path): path for path in sources() if path.name != "__init__.py"}
    uses = {
        module: set(imported_modules(module, imports_of(path), known))
        for module, path in known.items() if path.suffix == ".py"
    }
    assert [set(group) for group in circles(uses)] == MAY_GO_ROUND


@pytest.mark.parametrize(
    ("uses", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}, [["a", "b", "c"]]),
    ],
)
def test_a_circle_is_found(uses, found):
    assert circles(uses) == found


def test_heavy_libraries_are_imported_where_they_are_used():
    def runs_later(node):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        return is_function or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in map(last_name, ast.walk(node.test)))

    early = []
    for path in sources():
        module = module_name(path)
        if room(module) in {"pulsar_pb", "spark"}:  # generated protobuf; the Spark source, itself imported lazily
            continue
        tree = ast.parse(path.read_text())
        for node in filter(runs_later, ast.walk(tree)):
            node.body = []
        early += [f"{module}: {name}" for name in imports(module, tree) if name.split(".")[0] in HEAVY]
    assert not early, early


def test_kernels_know_their_neighbours_and_the_lowest_floor():
    statement = re.compile(r"^\s*(?:from\s+(\S+)\s+c?import\b|c?import\s+(\S+))", re.MULTILINE)
    outside = []
    for path in kernel_sources():
        for match in statement.finditer(path.read_text()):
            name = match[1] or match[2]
            if name.startswith("seglog") and room(name) not in FLOORS[0] | {"_kernels"}:
                outside.append(f"{path.name}: {match[0].strip()}")
    assert not outside, outside


# A folder of kernels uses those before it.
KERNEL_FLOORS = ["base", "records", "values", "build", "index", "convert", "compact", "entries", "delayed", "queue"]


def kernel_sources():
    return sorted((ROOT / "cext").glob("*/*.p*"))


def cimported(path):
    """The names of the kernels that a .pyx or .pxd cimports, or imports as modules, by a relative name."""
    statement = re.compile(r"^\s*from\s+\.(\w+)\s+c?import\b", re.MULTILINE)
    return {match[1] for match in statement.finditer(path.read_text())}


def test_kernels_use_folders_before_their_own():
    floor = {folder: n for n, folder in enumerate(KERNEL_FLOORS)}
    folder_of = {path.stem: path.parent.name for path in kernel_sources()}
    assert set(folder_of.values()) == floor.keys()
    uphill = [
        f"{path.parent.name}/{path.name}: {folder_of[name]}/{name}"
        for path in kernel_sources() for name in cimported(path) if floor[folder_of[name]] > floor[path.parent.name]
    ]
    assert not uphill, uphill


def test_kernels_do_not_go_round_in_circles():
    uses = {}
    for path in kernel_sources():
        uses.setdefault(path.stem, set()).update(cimported(path) - {path.stem})
    assert not circles(uses)


def test_c_files_include_only_their_own_headers_and_the_systems():
    include = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
    headers = {path.name for path in (ROOT / "cext").glob("*/*.h")}
    for path in sorted([*(ROOT / "cext").glob("*/seg_*.c"), *(ROOT / "cext").glob("*/seg_*.h")]):
        assert set(include.findall(path.read_text())) <= headers, path.name


@pytest.mark.parametrize(
    ("module", "source", "rooms"),
    [
        ("seglog.format.names", "from seglog.fs import files", {"fs"}),
        ("seglog.format.names", "def later():\n    from seglog import upkeep", {"upkeep"}),
        ("seglog.format.names", "from ..fs.lock import LogDirLock", {"fs"}),
        ("seglog.format.names", "from . import batch", {"format"}),
        ("seglog.format.__init__", "from .names import parse", {"format"}),
        ("seglog.reading.partition", "from seglog import Log", {"__init__"}),
        ("seglog.reading.partition", "import seglog.tools.cli", {"tools"}),
        ("seglog.verification.verify", "importlib.import_module('seglog.tools.report')", {"tools"}),
        ("seglog.tools.cli", "from .report import Report", {"tools"}),
    ],
)
def test_an_import_is_seen_in_every_form(module, source, rooms):
    assert set(imported_rooms(imports(module, ast.parse(source)))) == rooms
