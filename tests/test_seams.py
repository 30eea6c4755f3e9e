"""Whatever changes a file goes through seglog.fs.

Tests put a recording double there, which loses unsynced data, tears writes and reorders renames. A room that calls
os.rename by itself would pass every crash test and lose data in the field.
"""
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# module -> functions of it that change something (or let a later call change something), None for all of them
CHANGING = {
    "os": {
        "chmod", "chown", "copy_file_range", "fchmod", "fdatasync", "fdopen", "fsync", "ftruncate", "lchown", "link",
        "makedirs", "mkdir", "mkfifo", "mknod", "open", "posix_fallocate", "pwrite", "pwritev", "remove", "removedirs",
        "removexattr", "rename", "renames", "replace", "rmdir", "sendfile", "setxattr", "symlink", "sync", "truncate",
        "unlink", "utime", "write", "writev",
    },
    "shutil": {
        "chown", "copy", "copy2", "copyfile", "copyfileobj", "copymode", "copystat", "copytree", "make_archive", "move",
        "rmtree", "unpack_archive",
    },
    "tempfile": None,
    "fcntl": None,
    "mmap": {"mmap"},
}

# Methods of pathlib.Path that change something, by the number of positional arguments that tells them from a method of
# the same name that takes its path as an argument, as those of seglog.fs do, or from str.replace(old, new).
PATH_METHODS = {
    "chmod": {1}, "hardlink_to": {1}, "mkdir": {0}, "rename": {1}, "replace": {1}, "rmdir": {0}, "symlink_to": {1},
    "touch": {0}, "unlink": {0}, "write_bytes": {1}, "write_text": {1},
}

# file -> calls that it may make by itself, and why
MAY = {
    # Pipes between this process and the JVM that it starts.
    "engine/seglog/spark/start_errors.py": {"os.write"},
    "tools/cli.py": {"os.open"},  # of /dev/null, to die of SIGPIPE without a word
    # A folder of its own, into which it copies the sample.
    "tools/demo.py": {"tempfile.TemporaryDirectory", "shutil.copytree", "directory.mkdir", "Path(NEW).parent.mkdir"},
}


def writes(mode):
    """Whether open() with this mode node may change the file; a mode that is not written out may."""
    return mode is not None and not (isinstance(mode, ast.Constant) and not set(str(mode.value)) & set("wax+"))


def writes_by_method(call):
    """The same for x.open(...), where x is a Path, or something else that opens with its own arguments."""
    modes = [k.value for k in call.keywords if k.arg == "mode"] + call.args[:1]
    return any(isinstance(mode, ast.Constant) and writes(mode) for mode in modes)


def dotted_name(node):
    """As it is written. (Not by ast.unparse where there are only names: of all calls it takes a second.)"""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{dotted_name(node.value)}.{node.attr}"
        case _:
            return ast.unparse(node)


def changing_calls(tree):
    aliases = {}  # local name -> "module" or "module.function"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {(a.asname or a.name): a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            aliases |= {(a.asname or a.name): f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        written = dotted_name(node.func)
        head, _, rest = written.partition(".")
        dotted = f"{aliases.get(head, head)}.{rest}" if rest else aliases.get(head, head)
        module, _, function = dotted.rpartition(".")
        keyword = {k.arg: k.value for k in node.keywords}
        method = node.func.attr if isinstance(node.func, ast.Attribute) else None
        if module in CHANGING:
            changes = CHANGING[module] is None or function in CHANGING[module]
        elif dotted in {"open", "io.open"}:
            changes = writes(keyword.get("mode", node.args[1] if len(node.args) > 1 else None))
        elif method == "open" and head not in aliases:
            changes = writes_by_method(node)
        else:
            takes = PATH_METHODS.get(method or "", set())
            # dataclasses.replace(x, field=...) and datetime.replace(hour=...) name what they set.
            changes = len(node.args) in takes and not (method == "replace" and node.keywords)
        if changes:
            yield node.lineno, written


def test_files_are_changed_through_fs_alone():
    found = []
    for path in sorted([*(ROOT / "engine/seglog").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]):
        name = str(path.relative_to(ROOT))
        if not name.startswith("engine/seglog/fs/"):
            calls = changing_calls(ast.parse(path.read_text()))
            found += [f"{name}:{line}: {call}" for line, call in calls if call not in MAY.get(name, ())]
    assert not found, "go through seglog.fs: " + ", ".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.rename(a, b)",
        "import os as system\nsystem.fsync(fd)",
        "from os import replace as swap\nswap(a, b)",
        "open(path, 'wb')",
        "open(path, mode='r+b')",
        "open(path, mode)",
        "path.open('a')",
        "path.open(mode='w', encoding='utf-8')",
        "path.write_bytes(data)",
        "(folder / name).unlink(missing_ok=True)",
        "folder.mkdir(parents=True)",
        "scratch.rename(target)",
        "scratch.replace(target)",
        "import shutil\nshutil.rmtree(path)",
        "import tempfile\ntempfile.mkdtemp()",
        "import mmap\nmmap.mmap(fd, 0)",
    ],
)
def test_a_change_is_seen(source):
    assert list(changing_calls(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "open(path, 'rb')",
        "path.open()",
        "place.open(config)",
        "path.read_bytes()",
        "files.rename(scratch, target)",
        "files.mkdir(path)",
        "name.replace('.log', '.index')",
        "import dataclasses\ndataclasses.replace(config, segment_bytes=1)",
        "import os\nos.stat(path)",
        "import shutil\nshutil.get_terminal_size()",
    ],
)
def test_reading_is_no_change(source):
    assert not list(changing_calls(ast.parse(source)))
