"""What a run of the benchmarks says of itself: figures of two runs are comparable only if these are alike."""
import datetime
import os
import platform
import sqlite3
import subprocess
from importlib import metadata
from pathlib import Path

TOP = Path(__file__).parent.parent
LIBRARIES = (
    "aiokafka", "duckdb", "huey", "isal", "kafka-python", "litequeue", "lmdb", "numpy", "persist-queue", "polars",
    "protobuf", "pyarrow", "zstandard",
)


def described() -> dict[str, object]:
    """Processor, versions, revision, time and load, as this moment has them."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _git("rev-parse", "--short=8", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in LIBRARIES} | {"SQLite": sqlite3.sqlite_version},
        "load": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = {key.strip(): value.strip() for key, found, value in (line.partition(":") for line in lines) if found}
    wide = " (AVX-512)" if "avx512f" in facts.get("flags", "") else ""
    return facts.get("model name", platform.machine()) + wide


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=TOP, capture_output=True, text=True, check=False)
    return done.stdout.strip()
