"""The pages of our own files of ledgers: their examples are made here. SEGLOG_UPDATE_DOCS=1 writes them anew."""
import json
import tempfile
from pathlib import Path

import pytest

from seglog.clock import ManualClock
from seglog.ledger.entry import Entry
from seglog.ledger.ledger import LOG_NAME, Ledger
from seglog.ledger.message_batch import batch_of
from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.hexwalk import readable
from support.keyed_topic import keyed_batch
from support.pages import check_examples
from support.topics import batch, message

PAGES = Path(__file__).parents[2] / "docs/formats"
NOW_MS = 1700000010691


def pretty(raw):
    return "".join(f"    {line}\n" for line in json.dumps(json.loads(raw), indent=1, sort_keys=True).splitlines())


def ledger():
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "ledger-7")
        with Ledger.create(path, 7, properties={"component": "managed-ledger"}, clock=ManualClock(NOW_MS)) as made:
            made.add_many([b"one", b"another"])
            made.add(b"last", NOW_MS + 5)
            records = [(b.position, b.size_bytes, [(r.offset, r.timestamp, r.value) for r in b])
                       for b in made.segment.batches()]
        raw = (path / "ledger.json").read_bytes()
    lines = [f"    {LOG_NAME}\n"]
    for position, size, entries in records:
        lines.append(f"      {position:4}  batch of {size} bytes\n")
        lines += [f"            entry {n}, timestamp {at}: {readable(value)}\n" for n, at, value in entries]
    return "Three entries from two adds, sealed:\n\n" + "".join(lines) + "\n    ledger.json\n" + pretty(raw)


def managed_ledger():
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "orders")
        config = {"managedLedgerMaxEntriesPerLedger": 2, "brokerEntryMetadataInterceptors": "timestamp,index"}
        with ManagedLedger(path, config=config, clock=ManualClock(NOW_MS)) as topic:
            topic.add_entries(message(n) for n in range(3))
            topic.update_properties({"owner": "billing"})
            whole, *changes = (path / "manifest").read_bytes().decode().splitlines(keepends=True)
    lines = "".join(f"    {line}" for line in changes)
    return (
        "Three entries, two per ledger, before the second ledger was sealed. The managed ledger was created:\n\n"
        f"{pretty(whole)}\nLedger 0 was started and sealed, ledger 1 was started, a property was set:\n\n{lines}"
    )


def cursor():
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "orders")
        with ManagedLedger(path, clock=ManualClock(NOW_MS)) as topic:
            topic.add_entries(batch(n, 4) for n in range(6))
            made = topic.open_cursor("billing/eu", "earliest", {"owner": "us"})
            made.mark_delete(Position(0, 0))
            made.acknowledge_many([Position(0, 2), Position(0, 3)])
            made.acknowledge(Position(0, 4), [1, 3])
            made.flush()
            file, = (path / "cursors").iterdir()
            raw = file.read_bytes()
    return (
        f"`cursors/{file.name}`: all up to entry 0:0 is acknowledged, so are 0:2 and 0:3, and of the four messages of "
        "0:4\nthe second and the last:\n\n" + pretty(raw)
    )


def compacted():
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "orders")
        with ManagedLedger(path, clock=ManualClock(NOW_MS)) as topic:
            topic.add_entry(keyed_batch(0, [("k0", b"v0"), ("k0", b"v1"), ("k1", b"v0"), ("k1", None)]))
            PulsarTopicCompactionService(topic).compact()
            (directory,) = (path / "compacted").iterdir()
            with Ledger.open(directory) as ledger:
                record = ledger.read(0)
            raw = (directory / "ledger.json").read_bytes()
    size = int.from_bytes(record[:4], "big")
    opened = batch_of(Entry(record[8 + size:]))
    lines = [
        f"       0  {record[:4].hex(' ')}  size: {size}\n",
        f"       4  {record[4:4 + size].hex(' ')}  MessageIdData\n",
        f"    {4 + size:4}  {record[4 + size:8 + size].hex(' ')}  size: {len(record) - 8 - size}\n",
        f"    {8 + size:4}  the entry: compacted_batch_indexes "
        f"{list(Entry(record[8 + size:]).fields().compacted_indexes)}\n",
    ]
    for n, inner in enumerate(opened.messages):
        what = "compacted_out" if inner.metadata.compacted_out else (
            f"{inner.metadata.partition_key}, value {readable(bytes(inner.value))}"
        )
        lines.append(f"          message {n}: {what}\n")
    return (
        "A batch of k0=v0, k0=v1, k1=v0, k1=null; all of the topic:\n\n" + "".join(lines)
        + f"\n    compacted/{directory.name}/ledger.json\n" + pretty(raw)
    )


EXAMPLES = {
    "compacted_ledger.md": {"compacted": compacted},
    "ledger.md": {"ledger": ledger},
    "managed_ledger.md": {"manifest": managed_ledger},
    "cursor.md": {"cursor": cursor},
}

@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_of_a_page_are_what_is_written(page):
    check_examples(PAGES / page, "tests/docs/test_ledger_docs.py", EXAMPLES[page])
