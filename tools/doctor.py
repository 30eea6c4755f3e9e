"""`seglog doctor`: check that the kernels load, and what a conversion on Spark needs; say what to change."""
import os
import platform
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

import click

import seglog
from seglog.spark.java import INSTALL, JAVA_MIN, all_javas, find_java

from . import report
from .cli import Command
from .options import json_option

_PYSPARK_MIN, _PYARROW_MIN = (4, 1), (18,)
# The newest Java that a PySpark runs on: its Hadoop calls Subject.getSubject, which newer versions lack.
_JAVA_MAX: dict[tuple[int, ...], int] = {(4, 0): 21, (4, 1): 21}
_EXTRA = "pip install 'seglog[spark]'"


@dataclass(frozen=True, slots=True)
class _Finding:
    """One thing that was checked; an empty `hint` means that it is as it should be."""

    what: str
    found: str
    hint: str = ""


@click.command(cls=Command, only_reads=True)
@json_option
def command(as_json: bool) -> int:
    """Check that the compiled kernels load, and show which Python, Java, PySpark and pyarrow a conversion on Spark
    would use here, and what to change.

    Only `seglog spark` and the Arrow functions need the last three. Status 1 if something is missing.
    """
    findings = [_python(), _kernels(), _pyspark(), _java(), _pyarrow(), _workers()]
    if as_json:
        for finding in findings:
            report.print_json("check", what=finding.what, found=finding.found, ok=not finding.hint, hint=finding.hint)
    else:
        rows = [[f.what, f.found, f.hint or "good"] for f in findings]
        print(report.table(("what", "found", "what to do"), rows, left=(0, 1, 2)))
    return 1 if any(finding.hint for finding in findings) else 0


def _python() -> _Finding:
    return _Finding("Python", f"{platform.python_version()}, {sys.executable}")


def _kernels() -> _Finding:
    """Load every kernel: one of another Python, or an empty file, is found by nothing else."""
    folder = Path(seglog.__file__).parent / "_kernels"
    names = sorted(path.stem for path in folder.glob("*.pyi"))
    for name in names:
        try:
            import_module(f"seglog._kernels.{name}")
        except ImportError as error:
            return _Finding(
                "kernels", str(error), "pip install --force-reinstall seglog; in a checkout: rm -r build; make build")
    return _Finding("kernels", f"{len(names)}, in {folder}")


def _pyspark() -> _Finding:
    version = _version("pyspark")
    if version is None:
        return _Finding("PySpark", "not installed", _EXTRA)
    old = _numbers(version) < _PYSPARK_MIN
    return _Finding("PySpark", version, f"{_EXTRA}: 4.1 or newer" if old else "")


def _java() -> _Finding:
    java = find_java()
    if java is None:
        others = ", ".join(f"{other.version} by {other.origin}" for other in all_javas())
        return _Finding("Java", others or "none", f"Spark needs {JAVA_MIN} or newer: {INSTALL}")
    found = f"{java.version}, {java.home} ({java.origin})"
    newest = _JAVA_MAX.get(_numbers(_version("pyspark") or "0")[:2])
    if newest is not None and java.version > newest:
        return _Finding("Java", found, f"this PySpark runs on Java {JAVA_MIN} to {newest}: {INSTALL}")
    return _Finding("Java", found)


def _pyarrow() -> _Finding:
    version = _version("pyarrow")
    if version is None:
        return _Finding("pyarrow", "not installed", _EXTRA)
    return _Finding("pyarrow", version, f"{_EXTRA}: 18 or newer" if _numbers(version) < _PYARROW_MIN else "")


def _workers() -> _Finding:
    """Find the interpreter of Spark's Python workers on this machine."""
    workers = os.environ.get("PYSPARK_PYTHON")
    if workers is None:
        return _Finding("Python of workers", f"{sys.executable} (seglog sets PYSPARK_PYTHON for local sessions)")
    other = os.path.realpath(workers) != os.path.realpath(sys.executable)
    hint = "workers need the same minor version, seglog and pyarrow: unset PYSPARK_PYTHON, or see docs/spark.md"
    return _Finding("Python of workers", f"{workers} (PYSPARK_PYTHON)", hint if other else "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
