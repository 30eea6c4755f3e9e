"""What a log refuses, repeats and holds back is what the real one does, over random programs of its producers."""
import os

import pytest

from support.kafka_oracle import VERSIONS
from support.producer_programs import KAFKAS, Author, ProducerLog, snapshot_entries, transaction_indexes

pytestmark = pytest.mark.oracle

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
PROGRAMS = 1000 if os.environ.get("SEGLOG_TORTURE") else 50
STEPS = 80


@pytest.mark.parametrize("version", VERSIONS)
def test_producers_are_treated_as_the_real_log_treats_them(kafka_oracle, tmp_path, version):
    ours, written = {}, {}
    for seed in range(PROGRAMS):
        log = ProducerLog(tmp_path / f"ours/p{seed}-0")
        written[tmp_path / f"kafka/p{seed}-0"] = list(Author(seed, log).steps(STEPS))
        log.close()
        ours[tmp_path / f"kafka/p{seed}-0"] = log
    theirs = kafka_oracle(version).run({d: "\n".join(step for step, _ in steps) for d, steps in written.items()})
    seen = set()
    for directory, steps in written.items():
        for number, ((step, mine), kafkas) in enumerate(zip(steps, theirs[directory], strict=True)):
            where = f"{directory.name} step {number}: {step}"
            refusal, why = mine.pop("refused", None), kafkas.pop("why", None)
            assert kafkas.pop("refused", None) in KAFKAS.get(refusal, {None}), (where, why)
            assert mine == kafkas, where
            seen |= {refusal, step.split()[0], "repeated" if mine.get("last", mine["end"]) < mine["end"] - 1 else None}
        log = ours[directory]
        assert snapshot_entries(directory) == log.snapshot_entries(), directory.name
        assert transaction_indexes(directory) == log.transaction_indexes(), directory.name
    # The programs did come to everything that is to be compared.
    assert seen >= {*KAFKAS, "append", "hw", "roll", "truncate", "aborted", "reopen", "repeated"}
