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
    "engine/seglog/backups/buffers.py": {"mmap.mmap"},  # of memory, no file
    "engine/seglog/reading/unproven.py": {"mmap.mmap"},  # the same
    # Pipes between this process and the JVM that it starts.
    "engine/seglog/spark/start_errors.py": {"os.write"},
    "tools/cli.py": {"os.open"},  # of /dev/null, to die of SIGPIPE without a word
    "tools/report.py": {"os.write"},  # to stderr, by a thread that may have to wait for its reader
    # A folder of its own, into which it copies the sample.
    "tools/demo.py": {"shutil.copytree", "directory.mkdir", "Path(NEW).parent.mkdir"},
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


# Every place that removes a directory and what is in it. Each goes through seglog.fs.removal, which leaves no root.
REMOVES_TREES = {
    "engine/seglog/backups/repository.py": {"remove_file"},     # of the backup store alone: _removable
    "engine/seglog/frames/delta.py": {"remove_files"},      # files that a killed run was writing
    "engine/seglog/frames/lake.py": {"remove_files"},       # the same
    "engine/seglog/fs/scratch.py": {"remove_tree"},
    "engine/seglog/fs/staging.py": {"remove_tree"},         # stagings; partitions, renamed before
    "engine/seglog/kombu.py": {"remove_tree"},              # mailboxes that its process made
    "engine/seglog/ledger/ledger.py": {"remove_tree"},      # ledgers, renamed before, and snapshots
    "engine/seglog/spark/sink_commit.py": {"remove_tree"},  # what tasks have staged
    "engine/seglog/spark/target.py": {"remove_tree"},       # a target that the conversion made
    "engine/seglog/stores/store.py": {"remove_file", "remove_tree"},    # of workplaces
    "engine/seglog/upkeep/tidy.py": {"remove_file", "remove_tree"},     # what it lists, under the lock
    "tools/in_backup.py": {"remove_tree"},                  # what it restored, in a scratch directory
}
# Methods of a store: a workplace, or what a conversion has made in an object store. LocalStore's is listed above.
STORE_REMOVES_TREES = {
    "engine/seglog/spark/job.py", "engine/seglog/spark/publication.py", "engine/seglog/spark/target.py",
    "engine/seglog/stores/store.py",
}
# Every way to remove a tree ends with the removal of a directory that is empty by then, or is one of these calls.
TREE_REMOVERS = {"rmtree", "removedirs", "TemporaryDirectory"}
RMDIR_MAY = {
    "engine/seglog/fs/files.py": "the call itself",
    "engine/seglog/fs/removal.py": "the one removal of trees",
    "engine/seglog/fs/staging.py": "directories that it made and nothing was put in",
}


def called(tree):
    """(line, name, whether it is a method) of each call, of seglog.fs.removal by the name there."""
    aliases = {
        a.asname or a.name: a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield node.lineno, aliases.get(name, name), False
            case ast.Call(func=ast.Attribute(attr=name)):
                yield node.lineno, name, True


def tree_removals(name, tree):
    """What removes trees in a file, and is not in the lists above."""
    removals = REMOVES_TREES.get(name, set())
    for line, function, is_method in called(tree):
        if function in TREE_REMOVERS or (function == "rmdir" and name not in RMDIR_MAY):
            yield f"{name}:{line}: {function}"
        elif function in {"remove_tree", "remove_file", "remove_files"}:
            is_of_store = name in STORE_REMOVES_TREES or function != "remove_tree"
            is_listed = is_of_store if is_method else function in removals or name == "engine/seglog/fs/removal.py"
            if not is_listed:
                yield f"{name}:{line}: {function}"


def project_files():
    for path in sorted([*(ROOT / "engine/seglog").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]):
        yield str(path.relative_to(ROOT)), path.read_text()


def test_directories_are_removed_by_one_function():
    """Any other removal of a tree can be led out of it by a symbolic link."""
    found = [one for name, text in project_files() for one in tree_removals(name, ast.parse(text))]
    assert not found, "go through seglog.fs.removal, and list it: " + ", ".join(found)


def test_the_list_of_removals_is_up_to_date():
    used = {
        name: {function for _, function, is_method in called(ast.parse(text)) if not is_method}
        & {"remove_tree", "remove_file", "remove_files"}
        for name, text in project_files() if name != "engine/seglog/fs/removal.py"
    }
    assert {name: functions for name, functions in used.items() if functions} == REMOVES_TREES


@pytest.mark.parametrize(
    "source",
    [
        "import shutil\nshutil.rmtree(path)",
        "from shutil import rmtree as remove\nremove(path)",
        "import os\nos.removedirs(path)",
        "import tempfile\nwith tempfile.TemporaryDirectory() as path: pass",
        "for directory, _, files in os.walk(path):\n    for file in files: fs.unlink(file)\n    fs.rmdir(directory)",
        "path.rmdir()",
        "from seglog.fs.removal import remove_tree as gone\ngone(fs, root, 'x')",
        "from seglog.fs import removal\nremoval.remove_tree(fs, root, 'x')",
        "store.remove_tree(path)",
    ],
)
def test_a_removal_elsewhere_is_seen(source):
    assert list(tree_removals("engine/seglog/log/new.py", ast.parse(source)))


def test_files_are_changed_through_fs_alone():
    found = []
    for name, text in project_files():
        if not name.startswith("engine/seglog/fs/"):
            calls = changing_calls(ast.parse(text))
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
