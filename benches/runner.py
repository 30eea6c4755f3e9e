"""Runs the contenders of a case interleaved, and prints their ratio.

Each repetition runs every contender once, in turn, so that a slow minute of the machine affects them all. The ratio
compares the CPU time of the calling thread (`time.thread_time`), the best of the repetitions, because on a shared
machine wall time also measures the neighbours. Wall time is printed as well.
"""
import gc
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from benches import machine

T = TypeVar("T")


@dataclass
class Timing:
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)

    @property
    def best_cpu_s(self) -> float:
        return min(self.cpu_s)

    @property
    def best_wall_s(self) -> float:
        return min(self.wall_s)


@dataclass(frozen=True)
class Goal:
    """Ours must take at most 1/must of the peer's CPU time, or has no goal if it is None; `stretch` is the ideal."""

    must: float | None = None
    stretch: float | None = None


@dataclass(frozen=True)
class Fresh(Generic[T]):
    """A contender that needs a new object for each round. Creating and dropping it is not measured."""

    make: Callable[[], T]
    work: Callable[[T], object]
    drop: Callable[[T], object]


@dataclass
class Result:
    case: str
    unit: str
    ours: str
    peer: str
    ours_rate: float
    peer_rate: float
    ratio: float
    must: float | None
    stretch: float | None
    ours_cpu_s: float
    ours_wall_s: float
    peer_cpu_s: float
    peer_wall_s: float

    @property
    def verdict(self) -> str:
        if self.must is None:
            return ""
        if self.ratio < self.must:
            return "SHORT"
        return "stretch" if self.stretch and self.ratio >= self.stretch else "must"


class Bench:
    """Collects results, and prints a line for each as it arrives."""

    def __init__(self, repetitions: int, only: str = "") -> None:
        self.repetitions = repetitions
        self.only = only
        self.machine = machine.described()
        self.results: list[Result] = []

    def wanted(self, case: str) -> bool:
        return self.only in case

    def compare(
        self,
        case: str,
        amount: float,
        unit: str,
        contenders: dict[str, Callable[[], object] | Fresh],
        goals: dict[tuple[str, str], Goal],
        *,
        clock: Callable[[], float] | Mapping[str, Callable[[], float]] = time.thread_time,
        rounds: int = 1,
    ) -> None:
        """Run the contenders; report each goal (ours, peer). `amount` is the work of one run in `unit`.

        `rounds`: a factor on the requested number of repetitions. `clock`: time.process_time if other threads do part
        of the work; one per contender if each is a separate process.
        """
        if not self.wanted(case):
            return
        timings = {name: Timing() for name in contenders}
        _begin_case()
        for repetition in range((self.repetitions * rounds if self.repetitions > 1 else 1) + 1):
            for name, contender in contenders.items():
                cpu, wall = _measure(contender, clock if callable(clock) else clock[name])
                if repetition:      # the first round warms caches and pools
                    timings[name].cpu_s.append(cpu)
                    timings[name].wall_s.append(wall)
        for (ours, peer), goal in goals.items():
            a, b = timings[ours], timings[peer]
            result = Result(
                case, unit, ours, peer,
                amount / a.best_cpu_s, amount / b.best_cpu_s, b.best_cpu_s / a.best_cpu_s,
                goal.must, goal.stretch, a.best_cpu_s, a.best_wall_s, b.best_cpu_s, b.best_wall_s,
            )
            self.results.append(result)
            self._print(result)

    def beside(
        self, case: str, amount: float, unit: str, work: Callable[[], object] | Fresh, peer: str, peer_cpu_s: float,
        peer_wall_s: float, goal: Goal,
    ) -> None:
        """Ours beside a peer measured elsewhere, such as in a JVM: the best CPU time of each."""
        timing = Timing()
        _begin_case()
        for repetition in range(self.repetitions + 1):
            cpu, wall = _measure(work, time.thread_time)
            if repetition:
                timing.cpu_s.append(cpu)
                timing.wall_s.append(wall)
        ours = timing.best_cpu_s
        result = Result(case, unit, "seglog", peer, amount / ours, amount / peer_cpu_s, peer_cpu_s / ours, goal.must,
                        goal.stretch, ours, timing.best_wall_s, peer_cpu_s, peer_wall_s)
        self.results.append(result)
        self._print(result)

    def by_wall(
        self,
        case: str,
        amount: float,
        unit: str,
        contenders: dict[str, Callable[[], object] | Fresh],
        goals: dict[tuple[str, str], Goal],
        *,
        turns: int,
    ) -> None:
        """Like `compare`, for work that waits: the median wall time of many short turns. Prints CPU time as well.

        The order changes from turn to turn, because a contender that follows another's sync may wait for a part of it.
        """
        if not self.wanted(case):
            return
        timings = {name: Timing() for name in contenders}
        chance = random.Random(1)
        _begin_case()
        for _ in range(turns):
            for name, contender in chance.sample(list(contenders.items()), len(contenders)):
                cpu, wall = _measure(contender, time.process_time)
                timings[name].cpu_s.append(cpu)
                timings[name].wall_s.append(wall)
        for (ours, peer), goal in goals.items():
            a, b = timings[ours], timings[peer]
            a_wall, b_wall = statistics.median(a.wall_s), statistics.median(b.wall_s)
            result = Result(
                case, unit, ours, peer, amount / a_wall, amount / b_wall, b_wall / a_wall,
                goal.must, goal.stretch, a.best_cpu_s, a_wall, b.best_cpu_s, b_wall,
            )
            self.results.append(result)
            self._print(result)

    def paired(
        self,
        case: str,
        amount: float,
        unit: str,
        ours: tuple[str, Fresh],
        peer: tuple[str, Fresh],
        goal: Goal,
        *,
        pairs: int,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """For a difference of a few per cent, which is less than that between two minutes of a shared machine.

        The two take short turns, in pairs, in either order. A slow moment affects both turns of a pair, or spoils one
        of many: the ratio is the median of the pairs'. Prints where it lies with a probability of 95 %.
        """
        if not self.wanted(case):
            return
        timings = {name: Timing() for name, _ in (ours, peer)}
        chance = random.Random(1)
        _begin_case()
        for pair in range(pairs + 1):
            for name, contender in chance.sample([ours, peer], 2):
                cpu, wall = _measure(contender, clock)
                if pair:        # the first one warms caches and pools
                    timings[name].cpu_s.append(cpu)
                    timings[name].wall_s.append(wall)
        a, b = timings[ours[0]], timings[peer[0]]
        ratios = sorted(theirs / our for our, theirs in zip(a.cpu_s, b.cpu_s, strict=True))
        a_cpu, b_cpu = statistics.median(a.cpu_s), statistics.median(b.cpu_s)
        result = Result(
            case, unit, ours[0], peer[0], amount / a_cpu, amount / b_cpu, statistics.median(ratios), goal.must,
            goal.stretch, a_cpu, statistics.median(a.wall_s), b_cpu, statistics.median(b.wall_s),
        )
        self.results.append(result)
        self._print(result)
        # So many of the pairs may lie on one side of the true median: the binomial distribution of 1/2.
        off = round(0.98 * pairs**0.5)
        low, high = ratios[max(pairs // 2 - off, 0)], ratios[min(pairs // 2 + off, pairs - 1)]
        print(f"{'':34} {pairs} pairs: the ratio is {low:.3f} to {high:.3f}", flush=True)

    def limit(self, case: str, unit: str, ours: str, value: float, at_most: float) -> None:
        """A figure with an upper limit: value <= at_most."""
        result = Result(case, unit, ours, f"bound {at_most:g} {unit}", value, at_most, at_most / value,
                        1.0, None, 0.0, 0.0, 0.0, 0.0)
        self.results.append(result)
        self._print(result)

    def at_least(self, case: str, unit: str, ours: str, value: float, bound: float) -> None:
        """A figure with a lower limit: value >= bound."""
        result = Result(case, unit, ours, f"bound {bound:g} {unit}", value, bound, value / bound,
                        1.0, None, 0.0, 0.0, 0.0, 0.0)
        self.results.append(result)
        self._print(result)

    def reported(self, case: str, unit: str, ours: str, value: float, peer: str, peer_value: float) -> None:
        """A figure without a limit, beside a figure to compare it with."""
        result = Result(case, unit, ours, peer, value, peer_value, value / peer_value, None, None, 0.0, 0.0, 0.0, 0.0)
        self.results.append(result)
        self._print(result)

    @staticmethod
    def _print(r: Result) -> None:
        goal = "" if r.must is None else f"must {r.must:g}" + (f", stretch {r.stretch:g}" if r.stretch else "")
        print(f"{r.case:34} {r.ours:24} {r.ours_rate:10.2f} {r.unit:8} {r.peer:28} {r.peer_rate:9.2f}"
              f"  ratio {r.ratio:6.2f}  {goal:24} {r.verdict:8}"
              f" cpu {r.ours_cpu_s:.3f}/{r.peer_cpu_s:.3f} s"
              f"  wall {r.ours_wall_s:.3f}/{r.peer_wall_s:.3f} s", flush=True)

    def write_json(self, path: str) -> None:
        """Write the machine, and every figure: {"machine": {}, "results": [{}]}."""
        run = {
            "machine": self.machine | {"load_at_end": round(os.getloadavg()[0], 1), "repetitions": self.repetitions},
            "results": [{**asdict(r), "verdict": r.verdict} for r in self.results],
        }
        Path(path).write_text(json.dumps(run, indent=1) + "\n")


def _begin_case() -> None:
    """Exclude the objects of earlier cases from garbage collection: traversing millions of them before each turn takes
    long and empties the caches."""
    gc.collect()
    gc.freeze()


def _measure(contender: Callable[[], object] | Fresh, clock: Callable[[], float]) -> tuple[float, float]:
    """CPU and wall seconds of one run."""
    fresh = contender if isinstance(contender, Fresh) else Fresh(lambda: None, lambda _: contender(), lambda _: None)
    thing = fresh.make()
    try:
        gc.collect()
        gc.disable()
        wall, cpu = time.perf_counter(), clock()
        fresh.work(thing)
        return clock() - cpu, time.perf_counter() - wall
    finally:
        gc.enable()
        fresh.drop(thing)
