"""The checks of a broker on a ready batch before appending it: ours beside aiokafka reading the same batches.

aiokafka has no such checks. Its reader does less (checksum, records), but it is what Python code would use otherwise.
"""
from functools import partial

from benches import data, peers
from benches.runner import Bench, Goal
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.format.validate import AppendRules, assign

NOW_MS = 1_800_000_000_000
CASES = [("none", 16384, 0.2, Goal(2.5, 4)), ("lz4", 16384, 0.1, Goal(1.5, 2))]


def assign_all(batches: list[bytes], rules: AppendRules) -> None:
    offset = 0
    for raw in batches:
        offset = assign(raw, offset, rules, now_ms=NOW_MS).last_offset + 1


def run(bench: Bench, count: int) -> None:
    rules = AppendRules.of(LogConfig())
    for codec, batch_bytes, share, goal in CASES:
        name = f"v2 {codec} 16K assign"
        if not bench.wanted(name):
            continue
        segment = data.segment(2, codec, batch_bytes, int(count * share))
        batches = [bytes(batch.raw()) for batch in scan(Window(segment))]
        bench.compare(
            name, int(count * share) / 1e6, "M rec/s",
            {"seglog": partial(assign_all, batches, rules),
             "aiokafka iterate": partial(peers.aiokafka_iterate, segment)},
            {("seglog", "aiokafka iterate"): goal},
        )
