"""Random programs of transactions, compared with a plain model at each step: live, reopened, killed, from outside."""
import os

import pytest

import seglog
from support.transaction_program import TransactionProgram

PROGRAMS = 400 if os.environ.get("SEGLOG_TORTURE") else 60


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


def test_a_log_that_begins_within_an_aborted_transaction_keeps_its_entry_over_a_recovery(in_memory):
    """As in a broker's recovery, which reads the segment from its beginning."""
    path = in_memory / "orders-0"
    log = seglog.open(path)
    producer = log.producer(7)
    producer.begin()
    first = producer.append(b"aborted")
    log.append(b"plain")
    marker = producer.abort()
    log.append(b"last")
    index = path / f"{0:020}.txnindex"
    before = index.read_bytes()
    log.delete_records(first + 1)
    log._tail.let_go(clean=False)       # as when a process dies
    with seglog.open(path) as again:
        assert again.log_start_offset == first + 1 < marker
        assert [record.value for record in again.read(isolation="read_committed")] == [b"plain", b"last"]
        assert index.read_bytes() == before
    assert seglog.verify(path).findings == []
