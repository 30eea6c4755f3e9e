"""Divides among the workers of pytest-xdist what pytest does to a test file before its first import: it rewrites the
assertions.

For all files that takes half a minute, and the workers import them in the same order at the same time: in a new
checkout each would rewrite all. So each begins with a part of them, and finds in the cache what others did.
"""
import os
import sys
from contextlib import suppress
from pathlib import Path

from _pytest.assertion import rewrite


def named_files(config):
    """The test files that the arguments name, or that lie in directories that they name, the largest first."""
    found = {}
    skipped = config.getini("norecursedirs")
    for argument in config.args:
        path = Path(config.rootpath, argument.partition("::")[0])
        for directory, below, names in os.walk(path) if path.is_dir() else [(path.parent, [], [path.name])]:
            below[:] = [name for name in below if name not in skipped]
            for name in names:
                if name.startswith("test_") and name.endswith(".py"):
                    with suppress(OSError):
                        found[Path(directory, name)] = os.path.getsize(Path(directory, name))
    return sorted(found, key=lambda path: (-found[path], path))


def rewrite_share(config, files, number, count):
    """Let the cache have those files that are dealt out to worker `number` of `count`."""
    state = config.stash.get(rewrite.assertstate_key, None)
    if sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite" or state is None:
        return
    for file in files[number::count]:
        cache = rewrite.get_cache_dir(file)
        kept = cache / (file.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(cache):
            with suppress(OSError, SyntaxError, ValueError):        # which the import of the file will tell
                source, code = rewrite._rewrite_test(file, config)
                rewrite._write_pyc(state, code, source, kept)
