"""Ctrl-C and asynchronous exceptions, at any step of reading, adding, acknowledging, cancelling: nothing hangs, nothing
is lost. 50 000 of them in `make torture`, a twentieth here."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_delivery import DelayedDelivery
from support.interrupts import with_loses_exits
from support.topics import delayed

CHILD = Path(__file__).parent.parent / "support/crash/interrupted_topic.py"
ROUNDS = 20 if os.environ.get("SEGLOG_TORTURE") else 1
NOW = 1_700_000_000_000


@pytest.mark.skipif(with_loses_exits(), reason="an interrupt makes `with` keep its lock: processes.md")
@pytest.mark.parametrize("how", ["signal", "async"])
def test_an_interrupt_at_any_step_hangs_and_loses_nothing(in_memory, how):
    for seed in range(ROUNDS):
        child = subprocess.run(
            [sys.executable, CHILD, in_memory / str(seed), str(seed), "1250", how], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(CHILD.parent.parent.parent)}, timeout=600, check=False,
        )
        assert child.returncode == 0, child.stderr[-4000:]
        assert int(child.stdout.split()[0]) >= 1250


def test_a_forked_child_closes_while_a_thread_of_its_parent_seals(in_memory):
    """The child has no such thread, and its parent's locks as they were."""
    settings = {"delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 20}
    with ManagedLedger(in_memory / "t", config={"managedLedgerMaxEntriesPerLedger": 30}, fsync="never") as topic:
        delivery = DelayedDelivery(topic, settings)
        cursor = topic.open_cursor("one", "earliest")
        dispatcher = delivery.dispatcher(cursor)
        for turn in range(20):
            topic.add_entries(delayed(n, 2**62 + n * 10**6) for n in range(200 * turn, 200 * turn + 200))
            dispatcher.read()       # seals several buckets, in the background
            child = os.fork()
            if child == 0:
                try:
                    import signal

                    signal.alarm(60)
                    delivery.close()
                    topic.close()
                    os._exit(7)
                finally:
                    os._exit(8)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert delivery.tracker(cursor).count(0, 2**63) == 4000
        delivery.close()
