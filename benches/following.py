"""Following: the cost for the appending thread while eight processes follow, and a follower's reading speed."""
import subprocess
import sys
from collections import deque
from functools import partial
from itertools import islice
from pathlib import Path

import seglog
from benches import data
from benches.appending import Place, our_log
from benches.runner import Bench, Fresh, Goal

FOLLOWERS, FOLLOWERS_OF_FEW = 8, 2      # with few records, the run only checks that the bench works
FOLLOW = """
import seglog, sys
follower = seglog.follow(sys.argv[1])
print("up", flush=True)
for record in follower.follow():
    pass
"""



class Followed:
    """A log and the processes that follow it."""

    def __init__(self, path: Path, followers: int) -> None:
        self.log = our_log(path, fsync="never")
        self.log.append(b"first")
        place = str(path / "bench-0")
        self._processes = [
            subprocess.Popen([sys.executable, "-c", FOLLOW, place], stdout=subprocess.PIPE, text=True)
            for _ in range(followers)
        ]
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self.log.close()


def append_all(followed: object, records: int) -> None:
    append = followed.log.append        # type: ignore[attr-defined]
    for _ in range(records):
        append(b"v" * 100)


def run(bench: Bench, directory: Path, count: int) -> None:
    place, records = Place(directory), max(count // 50, 200)
    followers = FOLLOWERS if count >= 100_000 else FOLLOWERS_OF_FEW
    bench.compare(
        "append while eight processes follow", records / 1e6, "M rec/s",
        {
            "followed": place.fresh(partial(Followed, followers=followers), partial(append_all, records=records)),
            "alone": place.fresh(partial(Followed, followers=0), partial(append_all, records=records)),
        },
        {("followed", "alone"): Goal(1 / 1.1)},
    )
    _reading(bench, place, count // 4)


def _reading(bench: Bench, place: Place, records: int) -> None:
    """A follower that catches up, beside a read of the closed directory."""
    path = place.new()
    _, values, _ = data.messages(records)
    with our_log(path, fsync="never") as log:
        for begin in range(0, records, 100):
            log.append_many([(None, value) for value in values[begin : begin + 100]])

    def follow(follower: object) -> None:
        taken = follower.follow("start")        # type: ignore[attr-defined]
        deque(islice(taken, records), maxlen=0)

    def scan(partition: object) -> None:
        deque(partition.read(), maxlen=0)       # type: ignore[attr-defined]

    bench.compare(
        "follow, behind", records / 1e6, "M rec/s",
        {
            "follow": Fresh(lambda: seglog.follow(path / "bench-0"), follow, lambda log: log.close()),
            "read": Fresh(lambda: seglog.open_partition(path / "bench-0"), scan, lambda log: log.close()),
        },
        {("follow", "read"): Goal(0.8)},
    )
