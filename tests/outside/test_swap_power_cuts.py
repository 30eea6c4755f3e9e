"""Power cuts while a compaction's new segments take the place of the old ones, as readers see them that come next.

The next writer completes the exchange. Until then every door that only reads shows what that will leave, or raises
UnfinishedChangeError: never fewer records. See README.md.
"""
import os

import pytest

from support.outside.logs import record_swap

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
SEEDS = range(3, 11) if FULL else (3,)
STATES = 150 if FULL else 12


def test_readers_see_no_fewer_records_than_the_next_writer(record, power_cuts, holds):
    pytest.importorskip("pyarrow.parquet")
    cases = [record(record_swap, seed) for seed in SEEDS]
    power_cuts.judge_all([(case, STATES, number) for number, case in enumerate(cases)])
    holds(STATES * len(cases) // 2)
