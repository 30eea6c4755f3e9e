"""The floors of docs/architecture.md, held against the imports wherever they stand, and in the kernels too."""
import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / "engine/seglog"
# A room may import rooms on lower floors, never its own floor's neighbours or above.
FLOORS = [
    {"_version", "errors", "clock", "counters", "pulsar_pb", "_kernels"},
    {"config", "metrics"},
    {"fs", "format", "delayed"},
    {"segment", "stores"},
    {"state", "ledger"},
    {"log", "topic"},
    {"conversion", "verification", "upkeep"},
    {"spark"},
    {"__init__"},
    {"tools"},
]
FLOOR_OF = {room: n for n, rooms in enumerate(FLOORS) for room in rooms}

# Importing one of these costs more than most commands take; whoever needs one imports it where it is used.
HEAVY = {"numpy", "pyarrow", "pandas", "polars", "pyspark", "google", "pyroaring", "duckdb", "prometheus_client"}


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
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def imported_rooms(module, tree):
    for name in imports(module, tree):
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
        for other in imported_rooms(module, ast.parse(path.read_text())):
            if other != me and FLOOR_OF[other] >= FLOOR_OF[me]:
                uphill.append(f"{path.relative_to(ROOT)}: {me} -> {other}")
    assert not uphill, uphill


def test_heavy_libraries_are_imported_where_they_are_used():
    def runs_later(node):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        return is_function or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))

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
    for path in sorted((ROOT / "cext").glob("*.p*")):
        for match in statement.finditer(path.read_text()):
            name = match[1] or match[2]
            if name.startswith("seglog") and room(name) not in FLOORS[0] | {"_kernels"}:
                outside.append(f"{path.name}: {match[0].strip()}")
    assert not outside, outside


def test_c_files_include_only_their_own_headers_and_the_systems():
    include = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
    headers = {path.name for path in (ROOT / "cext").glob("*.h")}
    for path in sorted([*(ROOT / "cext").glob("seg_*.c"), *(ROOT / "cext").glob("seg_*.h")]):
        assert set(include.findall(path.read_text())) <= headers, path.name


@pytest.mark.parametrize(
    ("module", "source", "rooms"),
    [
        ("seglog.format.names", "from seglog.fs import files", {"fs"}),
        ("seglog.format.names", "def later():\n    from seglog import upkeep", {"upkeep"}),
        ("seglog.format.names", "from ..fs.lock import LogDirLock", {"fs"}),
        ("seglog.format.names", "from . import batch", {"format"}),
        ("seglog.format.__init__", "from .names import parse", {"format"}),
        ("seglog.log.partition", "from seglog import Log", {"__init__"}),
        ("seglog.log.partition", "import seglog.tools.cli", {"tools"}),
        ("seglog.verification.verify", "importlib.import_module('seglog.tools.report')", {"tools"}),
        ("seglog.tools.cli", "from .report import Report", {"tools"}),
    ],
)
def test_an_import_is_seen_in_every_form(module, source, rooms):
    assert set(imported_rooms(module, ast.parse(source))) == rooms
