"""The floors of docs/architecture.md, held against the imports."""
import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
# A room may import rooms on lower floors, never its own floor's neighbours or above.
FLOORS = [
    {"_version", "errors", "clock", "counters", "wire"},
    {"_kernels", "config"},
    {"fs", "format", "delayed"},
    {"segment"},
    {"log", "ledger"},
    {"broker", "upkeep", "frames"},
    {"topic", "aio", "spark", "metrics"},
    {"__init__"},
    {"tools"},
]
FLOOR_OF = {room: n for n, rooms in enumerate(FLOORS) for room in rooms}


def room(path):
    if ROOT / "tools" in path.parents:
        return "tools"
    top = path.relative_to(ROOT / "engine/seglog").parts[0]
    return top.removesuffix(".py")


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "seglog":
                yield parts[1] if len(parts) > 1 else "__init__"


def test_imports_run_downwards():
    uphill = []
    for path in [*(ROOT / "engine").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]:
        me = room(path)
        for other in imported_rooms(path):
            if other != me and FLOOR_OF[other] >= FLOOR_OF[me]:
                uphill.append(f"{path.relative_to(ROOT)}: {me} -> {other}")
    assert not uphill, uphill
