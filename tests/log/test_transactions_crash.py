"""Crashes at every point of transactions: each is seen as a whole or not at all, and none that was committed is lost.

A random program runs once over a disk that remembers what was synced (support.faultfs). Every disk that a crash may
leave is opened, what is still open there is ended as a service does it that comes back, and the readers of committed
data are asked.
"""
import os

import pytest

import seglog
from seglog.clock import ManualClock
from support.faultfs import RecordingFs
from support.transaction_program import NOW, PRODUCER_IDS, TransactionProgram

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
STATES = 800 if os.environ.get("SEGLOG_TORTURE") else 40
SEEDS = 8


def end_all(log):
    """As a service that comes back: it opens its producers again. Raw ones are ended by their coordinator."""
    for producer_id in range(PRODUCER_IDS):
        log.producer(producer_id)
    for entry in log.producers:
        if entry.current_txn_first_offset >= 0:
            log.end_transaction(entry.producer_id, entry.producer_epoch, commit=False)
    assert log.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_transaction_is_seen_as_a_whole_or_not_at_all(seed, in_memory):
    root = in_memory / "data"
    root.mkdir()
    record = RecordingFs(root)
    program = TransactionProgram(seed, root / "orders-0", record)
    told = [{}]         # by mark: what of each transaction was acknowledged
    for _ in range(60):
        program.run(1, without=("delete", "time_out"))
        record.mark(len(told))
        told.append({n: t.state for n, t in enumerate(program.model.transactions)})
    program.log.close()
    values = {n: [] for n in told[-1]}
    for _, value, transaction in program.model.records:
        if transaction is not None:
            values[program.model.transactions.index(transaction)].append(value)
    seen = 0
    for state in record.crash_states(limit=STATES, seed=seed, shuffled=True):
        seen += 1
        known = told[state.marks[-1] if state.marks else 0]
        with state.materialise() as disk:
            try:
                with seglog.open(disk / "orders-0", config=program.config, clock=ManualClock(NOW)) as log:
                    end_all(log)
                    found = [record.value for record in log.read(isolation="read_committed")]
                    assert len(found) == len(set(found))
                    for n, expected in values.items():
                        there = [value for value in found if value in set(expected)]
                        assert there in ([], expected)
                        if program.fsync == "batch" and known.get(n) == "committed":
                            assert there == expected
                        assert known.get(n) != "aborted" or program.fsync == "never" or not there
                    end = log.log_end_offset
                with seglog.open_partition(disk / "orders-0") as partition:
                    assert partition.last_stable_offset == end
                    assert [record.value for record in partition.read(isolation="read_committed")] == found
            except Exception as error:
                error.add_note(f"{program.story}\n{state.story()}")
                raise
    assert seen > STATES // 3
    assert {"committed", "aborted"} <= set(told[-1].values())
