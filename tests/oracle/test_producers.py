"""What a log refuses, repeats and holds back is what the real one does, over random programs of its producers."""
import os

import pytest

from support.kafka_oracle import VERSIONS
from support.producer_programs import (
    GOLDEN,
    KAFKAS,
    Author,
    ProducerLog,
    agree,
    on_disk,
    read_golden,
    write_golden,
)

pytestmark = pytest.mark.oracle

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
PROGRAMS = 1000 if os.environ.get("SEGLOG_TORTURE") else 50
STEPS = 80


def told(oracle, tmp_path, programs):
    """What the real log makes of programs: for each its answers, and what it leaves on disk."""
    directories = [tmp_path / f"kafka/p{number}-0" for number in range(len(programs))]
    answers = oracle.run({d: "\n".join(program) for d, program in zip(directories, programs, strict=True)})
    return [(answers[d], on_disk(d)) for d in directories]


@pytest.mark.parametrize("version", VERSIONS)
def test_producers_are_treated_as_the_real_log_treats_them(kafka_oracle, tmp_path, version):
    written, left = [], []
    for seed in range(PROGRAMS):
        log = ProducerLog(tmp_path / f"ours/p{seed}-0")
        written.append(list(Author(seed, log).steps(STEPS)))
        left.append(log.close())
    programs = [[step for step, _ in steps] for steps in written]
    seen = set()
    for seed, (answers, kept) in enumerate(told(kafka_oracle(version), tmp_path, programs)):
        for number, ((step, mine), kafkas) in enumerate(zip(written[seed], answers, strict=True)):
            assert agree(mine, kafkas), f"program {seed}, step {number}: {step}\n{mine}\n{kafkas}"
            again = mine.get("last", mine["end"]) < mine["end"] - 1
            seen |= {step.split()[0], mine.get("refused"), "repeated" if again else None}
        assert left[seed] == kept, f"program {seed}"
    # The programs did come to everything that is to be compared.
    assert seen >= {*KAFKAS, "append", "hw", "roll", "truncate", "aborted", "reopen", "repeated"}


def test_golden_programs_are_answered_as_golden_remembers(kafka_oracle, tmp_path):
    """With SEGLOG_UPDATE_GOLDEN=1 they are written anew, with the answers of today."""
    if os.environ.get("SEGLOG_UPDATE_GOLDEN"):
        programs = []
        for seed in range(1000, 1012):
            log = ProducerLog(tmp_path / f"ours/p{seed}-0")
            programs.append([step for step, _ in Author(seed, log).steps(STEPS)])
        write_golden(programs, told(kafka_oracle("4.1.1"), tmp_path, programs))
    golden = read_golden(GOLDEN)
    assert told(kafka_oracle("4.1.1"), tmp_path / "again", [p for p, _, _ in golden]) == [(a, d) for _, a, d in golden]
