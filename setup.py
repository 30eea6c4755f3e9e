"""Build the kernels. Everything static is in pyproject.toml.

    SEGLOG_SYMBOLS=1    keep the symbols and line numbers of the kernels, for perf and gdb
    SEGLOG_ANNOTATE=1   write Cython's yellow HTML next to the C, in build/cython/
    SEGLOG_TRACE=1      -O0 -g and line tracing, so that coverage sees the .pyx lines
    SEGLOG_SANITIZE=1   AddressSanitizer and UBSan (run Python with LD_PRELOAD=libasan.so)
    SEGLOG_KERNELS=0    none: an editable install, whose kernels `make build` compiles in place
"""
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

if sys.platform == "win32":
    sys.exit("seglog does not run on Windows: it needs POSIX record locks and rename over open files.")

import fcntl

ANNOTATE = bool(os.environ.get("SEGLOG_ANNOTATE"))
TRACE = bool(os.environ.get("SEGLOG_TRACE"))
SANITIZE = bool(os.environ.get("SEGLOG_SANITIZE"))
SYMBOLS = TRACE or SANITIZE or bool(os.environ.get("SEGLOG_SYMBOLS"))

PACKAGE = "seglog._kernels"
CEXT = Path("cext")      # its folders order the sources; the modules they make stand side by side
CFLAGS = ["-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter"]
CFLAGS += ["-O0", "-g", "-UNDEBUG"] if TRACE else ["-O1", "-g", "-UNDEBUG"] if SANITIZE else ["-O2"]
LDFLAGS: list[str] = []
if not SYMBOLS:     # three quarters of a wheel: CPython's own flags ask for them
    CFLAGS += ["-g0"]
    LDFLAGS += ["-Wl,-s"] if sys.platform == "linux" else ["-Wl,-x"]
# What the bytes of others may lead to ends the process at once, where it is found (.ci/check-dist looks for each).
CFLAGS += ["-fstack-protector-strong"]
if not (TRACE or SANITIZE):         # it needs an optimiser, and the sanitizers check more
    CFLAGS += ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3" if sys.platform == "linux" else "-D_FORTIFY_SOURCE=2"]
if sys.platform == "linux":
    LDFLAGS += ["-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"]
MACROS = [("CYTHON_TRACE_NOGIL", "1")] if TRACE else []
if SANITIZE:
    CFLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
    LDFLAGS += ["-fsanitize=address,undefined"]

# What Cython itself adds to modules (memoryviews, above all) lies in one, not in each: a sixth of a wheel.
SHARED = [] if TRACE else [Extension(
    f"{PACKAGE}._cyutility", sources=["build/cython/cext/_cyutility.c"],
    extra_compile_args=CFLAGS, extra_link_args=LDFLAGS,
)]


def cython_path() -> str:
    """Show every .pxd to Cython under its dotted name, whichever folder of cext/ it lies in.

    Cython looks a .pxd up by the *module's* dotted path: cext/base/window.pyx, built as seglog._kernels.window, would
    find neither its own window.pxd nor its neighbours'.
    """
    package = Path("build/cython-path", *PACKAGE.split("."))
    if package.is_symlink():        # as older checkouts have it: to the whole of cext/
        package.unlink()
    package.mkdir(parents=True, exist_ok=True)
    for link in package.iterdir():
        link.unlink()
    for source in CEXT.glob("*/*.pxd"):
        (package / source.name).symlink_to(os.path.relpath(source, package))
    return "build/cython-path"


def kernel(source: Path) -> Extension:
    """One .pyx is one module. C beside it is named in its head: `# distutils: sources = cext/base/seg_x.c`."""
    return Extension(
        f"{PACKAGE}.{source.stem}",
        sources=[str(source)],
        depends=[str(p) for p in sorted(CEXT.glob("*/*.h"))],
        include_dirs=[str(folder) for folder in sorted(CEXT.iterdir()) if folder.is_dir()],
        define_macros=MACROS,
        extra_compile_args=CFLAGS,
        extra_link_args=LDFLAGS,
    )


def is_whole(module: Path) -> bool:
    """Whether a module is what a linker wrote to its end: two builds at once once left an empty one."""
    raw = module.read_bytes() if module.is_file() else b""
    if raw[:6] != b"\x7fELF\x02\x01":          # not the 64-bit ELF of a little-endian machine: another system's
        return len(raw) > 0
    if len(raw) < 64:
        return False
    # The table of sections is the last that is written; the header says where it ends.
    sections_at = int.from_bytes(raw[0x28:0x30], "little")
    return len(raw) >= sections_at + int.from_bytes(raw[0x3A:0x3C], "little") * int.from_bytes(raw[0x3C:0x3E], "little")


class BuildKernels(build_ext):
    """Leaves no module that is not whole, and no path of this machine in one."""

    def build_extensions(self) -> None:
        # Python's own flags have the directory of its libraries, where a kernel needs none: whoever can write to a
        # directory of that name on another machine would choose what is loaded.
        linker = getattr(self.compiler, "linker_so", [])
        self.compiler.linker_so = [word for word in linker if not word.startswith(("-Wl,-rpath", "-Wl,-R"))]
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        path = Path(self.get_ext_fullpath(ext.name))
        if not is_whole(path):
            path.unlink(missing_ok=True)        # else its date would say that it is up to date
        super().build_extension(ext)

    def run(self) -> None:
        super().run()
        for ext in self.extensions:
            path = Path(self.get_ext_fullpath(ext.name))
            if not is_whole(path):
                sys.exit(f"{path} is not whole: is the disk full? Remove build/ and build again.")


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other build works in this tree: two would write into each other's files."""
    Path("build").mkdir(exist_ok=True)
    with Path("build/.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build in this tree", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def forget_stale() -> None:
    """Remove the C of modules that cimport something newer, directly or not, and so have them made again.

    Cython finds what a module depends on in the module's own folder only; a .pxd of another folder would change unseen.
    """
    cimports = re.compile(r"^from \.(\w+) cimport", re.MULTILINE)
    declared = {path.stem: path for path in CEXT.glob("*/*.pxd")}

    def needed(names: set[str]) -> set[str]:
        more = {name for known in names for name in cimports.findall(declared[known].read_text())} & declared.keys()
        return names if more <= names else needed(names | more)

    for source in CEXT.glob("*/*.pyx"):
        made = (Path() if TRACE else Path("build/cython")) / source.with_suffix(".c")
        own = {source.stem, *cimports.findall(source.read_text())} & declared.keys()
        newest = max([source.stat().st_mtime, *(declared[name].stat().st_mtime for name in needed(own))])
        if made.exists() and made.stat().st_mtime < newest:
            made.unlink()


def main() -> None:
    without = os.environ.get("SEGLOG_KERNELS") == "0"
    if not without:
        forget_stale()
    setup(
        cmdclass={"build_ext": BuildKernels},
        options={"build_ext": {"parallel": os.cpu_count()}},
        # Found, not listed: a list forgets a new folder, and only the wheel would notice.
        packages=[
            *find_packages("engine"),
            "seglog.tools",
            *(f"seglog.tools.{name}" for name in find_packages("tools")),
        ],
        ext_modules=[] if without else cythonize(
            [*(kernel(source) for source in sorted(CEXT.glob("*/*.pyx"))), *SHARED],
            include_path=[cython_path()],
            shared_utility_qualified_name=SHARED[0].name if SHARED else None,
            # Cython.Coverage finds a .pyx only beside its .c, so a traced build is made in place.
            build_dir=None if TRACE else "build/cython",
            annotate=ANNOTATE,
            nthreads=0 if TRACE else os.cpu_count(),
            compiler_directives={
                "language_level": "3",
                "embedsignature": True,
                "boundscheck": TRACE or SANITIZE,
                "wraparound": False,
                "cdivision": True,
                "linetrace": TRACE,
            },
        ),
    )


# Guarded, because Cython's worker processes import this file where processes are not forked (macOS, Python 3.14).
if __name__ == "__main__":
    with alone():
        main()
