"""A signal's handler closes a log or a ledger in the middle of a call of the same thread: nothing waits forever."""
import pytest

from support.crash.closing_handler import run_closing

LOG = """
def opened():
    return seglog.open(new_path(), fsync=fsync)

def calls(log):
    log.append(b"one", key=b"k")
    log.append_many([(b"k", b"two"), (None, b"three")])
    log.append(b"four", wait=False)
    log.flush()
    log.stats()
    log.roll()
    log.truncate_to(2)
    list(log.read())
    log.snapshot(new_path())

for fsync in ("batch", "never"):
    at_each_opcode(opened, calls)
log = opened()
while_it_waits(log, lambda: list(log.follow()))
"""

MANAGED_LEDGER = """
from seglog.pulsar import ManagedLedger
from support.topics import message

def opened():
    return ManagedLedger(new_path(), config={"managedLedgerMaxEntriesPerLedger": 2})

def calls(topic):
    cursor = topic.open_cursor("one", "earliest")
    topic.add_entries(message(n) for n in range(5))
    for entry in cursor.read(4):
        cursor.acknowledge(entry.position)
    topic.flush()
    topic.roll()
    topic.trim()
    topic.update_properties({"a": "b"})

at_each_opcode(opened, calls)
"""

LEDGER = """
from seglog.pulsar import Ledger

def opened():
    return Ledger.create(new_path(), 7)

def calls(ledger):
    ledger.add(b"one")
    ledger.add_many([b"two", b"three"])
    ledger.read(1)
    ledger.seal()

at_each_opcode(opened, calls, 199)
"""


@pytest.mark.parametrize("script", [LOG, MANAGED_LEDGER, LEDGER], ids=["log", "managed ledger", "ledger"])
def test_a_signals_handler_closes(in_memory, script):
    run_closing(script, in_memory)
