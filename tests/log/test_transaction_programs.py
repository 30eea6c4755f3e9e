"""Random programs of transactions, compared with a plain model at each step: live, reopened, killed, from outside."""
import os

import pytest

import seglog
from support.transaction_program import TransactionProgram

PROGRAMS = 400 if os.environ.get("SEGLOG_TORTURE") else 20


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_readers_of_committed_data_see_what_the_model_says(seed, in_memory):
    program = TransactionProgram(seed, in_memory / "orders-0")
    for _ in range(12):
        program.run(5)
        program.check()
    program.log.close()
    with seglog.open_partition(program.directory) as partition:
        program.check(partition)
    assert seglog.verify(program.directory).findings == []
