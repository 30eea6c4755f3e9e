"""Starts children over ranges of hostile cases; says which case ended one, and how to run it again."""
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from support.hostile_readers import IS_FULL
from support.surroundings import place_in_memory

# The workers of pytest are as many as cores already; a process more begins by importing everything for a second.
PROCESSES = 2 if IS_FULL else 1
TESTS = Path(__file__).parents[2]
FAMILIES = ("segments", "indexes", "snapshots", "ledgers", "wire")


@dataclass(slots=True)
class Outcome:
    """What the children did, added up; `failures` are texts for a person."""

    cases: int = 0
    cpu_seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, -1)
    grown_bytes: int = 0
    refusals: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, told: dict) -> None:
        self.cases += told["cases"]
        self.cpu_seconds += told["cpu_seconds"]
        self.slowest = max(self.slowest, tuple(told["slowest"]))
        self.grown_bytes = max(self.grown_bytes, told["grown_bytes"])
        self.refusals += sum(told["refused"].values())

    def __str__(self) -> str:
        seconds, number = self.slowest
        cpu_ms = 1000 * self.cpu_seconds / max(self.cases, 1)
        return (
            f"{self.cases} cases, {self.refusals} refusals, {cpu_ms:.1f} ms CPU each, "
            f"slowest {1000 * seconds:.0f} ms (case {number}), memory grew by {self.grown_bytes >> 20} MiB"
        )


def run(kind: str, first: int, stop: int, processes: int = PROCESSES) -> Outcome:
    """The cases [first, stop), divided among processes."""
    outcome = Outcome()
    size = -(-(stop - first) // processes)
    with tempfile.TemporaryDirectory(prefix="seglog-hostile-", dir=place_in_memory()) as root:
        children = [
            _Child(kind, begin, min(begin + size, stop), Path(root, str(begin))) for begin in range(first, stop, size)
        ]
        for child in children:
            child.wait(outcome)
    return outcome


class _Child:
    def __init__(self, kind: str, first: int, stop: int, place: Path) -> None:
        place.mkdir()
        self.kind, self.place = kind, place
        self.stdout, self.stderr = (place / "stdout").open("w+"), (place / "stderr").open("w+")
        command = _command(kind, str(first), str(stop), str(place))
        self.process = subprocess.Popen(command, stdout=self.stdout, stderr=self.stderr, env=_environment())

    def wait(self, outcome: Outcome) -> None:
        status = self.process.wait()
        with self.stdout, self.stderr:
            self.stdout.seek(0)
            self.stderr.seek(0)
            if status == 0:
                told = json.loads(self.stdout.read())
                outcome.add(told)
                outcome.failures += [self._story(number, trace) for number, trace in told["failures"]]
                return
            now = self.place / "now"
            number = int(now.read_text()) if now.exists() else -1
            what = f"its process ended with status {status}\n{self.stderr.read()[-6000:]}"
            outcome.failures.append(self._story(number, what))

    def _story(self, number: int, what: str) -> str:
        return (
            f"{_described(self.kind, number)}\n"
            f"    again, alone: SEGLOG_HOSTILE={self.kind}:{number} make test TESTS=tests/hostile  (or make sanitize)\n"
            f"{what}"
        )


def _described(kind: str, number: int) -> str:
    """In a process of its own: the kernel that ended the child may be used to make the case, too."""
    told = subprocess.run(
        _command("describe", kind, str(number)), capture_output=True, text=True, env=_environment(), check=False,
    )
    if told.returncode == 0:
        return told.stdout.strip()
    return f"{kind} {number}, whose bytes cannot be made without it (status {told.returncode})"


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "support.hostile_child", *arguments]


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}
