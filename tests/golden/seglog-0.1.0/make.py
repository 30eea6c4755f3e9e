"""Writes a directory of every kind that seglog writes, for later versions to open, read and go on with.

    python tests/golden/seglog-0.1.0/make.py tests/golden/seglog-0.1.0.tar.gz

Run it with the release that the archive is named after, and never again; until that is released, after each change of a
format. `tests/test_stability.py` reads the archive.
"""
import base64
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import seglog
from seglog.clock import ManualClock
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.worker import InlineWorker
from seglog.ledger.ledger import Ledger
from seglog.pulsar import ManagedLedger, MessageMetadata, Position, build_entry
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService

NOW = 1_790_000_000_000
CONFIG = {"segment.bytes": 1500, "index.interval.bytes": 200}


def entry(n, key=None, deliver_at=None):
    metadata = MessageMetadata(producer_name="p", sequence_id=n, publish_time=NOW + n)
    if key is not None:
        metadata.partition_key = key
    if deliver_at is not None:
        metadata.deliver_at_time = deliver_at
    return build_entry(metadata, b"entry %d" % n)


def log(path, clock):
    """Several segments, a setting that is kept, two leader epochs, producers, transactions, a named reader, a start."""
    with seglog.open(path, config=CONFIG | {"seglog.time.index.minute.enabled": True}, clock=clock) as one:
        one.configure({"cleanup.policy": "compact"})
        for n in range(40):
            one.append(b"value %d" % n, key=b"key %d" % (n % 5), headers=[("h", b"%d" % n)], timestamp=NOW + 60_000 * n)
        one.append_batch(
            seglog.build_batch([(b"k", b"v")], producer_id=9, producer_epoch=1, base_sequence=0, timestamp=NOW),
            leader_epoch=4,
        )
        with one.producer(7) as producer:
            for end in (producer.abort, producer.commit):
                producer.begin()
                producer.append(b"in a transaction", key=b"t")
                end()
        one.cursor("billing").commit(17)
        one.delete_records(5)


def tagged(path, clock):
    with seglog.open(path, config=CONFIG | {"seglog.message.dialect": "tagged"}, clock=clock) as one:
        for n in range(40):
            one.append(b"value %d" % n, timestamp=NOW + n)


def old_format(path, clock):
    with seglog.open(path, config=CONFIG | {"message.format.version": "0.10.0"}, clock=clock) as one:
        for n in range(20):
            one.append(b"value %d" % n, key=b"k", timestamp=NOW + n)


def ledger(path, clock):
    """A topic of Pulsar: ledgers, acknowledgements, delayed messages with snapshots, a compacted ledger."""
    config = {"managedLedgerMaxEntriesPerLedger": 10, "defaultRetentionTimeInMinutes": -1}
    with ManagedLedger(path, config=config, clock=clock) as topic:
        topic.add_entries([entry(n, key=f"key {n % 4}") for n in range(25)])
        cursor = topic.open_cursor("billing", "earliest")
        cursor.mark_delete(Position(0, 3))
        PulsarTopicCompactionService(topic).compact()


def delayed(path, clock):
    config = {"managedLedgerMaxEntriesPerLedger": 3, "defaultRetentionTimeInMinutes": -1}
    buckets = DelayedDeliveryConfig(ledger_step=0, min_index_count=4)
    with ManagedLedger(path, config=config, clock=clock) as topic:
        topic.add_entries([entry(n, deliver_at=NOW + 3_600_000 + n) for n in range(20)])
        with DelayedDelivery(topic, buckets, clock=clock, new_worker=InlineWorker) as delivery:
            delivery.dispatcher(topic.open_cursor("shipping", "earliest")).read()


def jobs(path, clock):
    """Jobs that wait, one that was done, one that was tried, and a delayed one."""
    with seglog.Queue(path, clock=clock) as queue:
        queue.put_many([b"job %d" % n for n in range(5)])
        queue.put(b"later", delay=3600)
        queue.put(b"first", priority=5)
        queue.get(timeout=1).ack()
        queue.get(timeout=1).nack(60)


def shop(path, clock):
    """Priorities, a job with a key and properties, one that may be put once, one that was given up; leases."""
    with seglog.Queue(path, clock=clock, max_attempts=1, lease=600) as queue:
        queue.put(b"order", key=b"k", properties={"kind": "mail"})
        queue.put(b"charge", key="order-17", unique_for=86_400)
        queue.put(b"urgent", priority=3)
        queue.put(b"broken", priority=7)
        queue.get(timeout=1).nack(0)
        queue.get(timeout=1)


def single_ledger(path, clock):
    with Ledger.create(path, 7) as one:
        one.add_many([b"one", b"two"])


def back_up_ledgers(top, names):
    """As of a moment at which the queue is open."""
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            shutil.copytree(top / name, Path(work) / name)
        with seglog.Queue(Path(work) / "shop", clock=ManualClock(NOW), max_attempts=1, lease=600) as queue:
            queue.put(b"last")
            seglog.backup(work, top / "ledger-backups", clock=ManualClock(NOW))


def told(top):
    """What the directories hold, by the release that wrote them."""
    answers = {}
    for name in ("log-0", "tagged-0", "old-0"):
        with seglog.open_partition(top / "data" / name) as partition:
            answers[name] = {
                "start": partition.log_start_offset, "end": partition.log_end_offset,
                "records": [
                    [record.offset, record.timestamp, *(None if part is None else base64.b64encode(part).decode()
                                                        for part in (record.key, record.value))]
                    for record in partition.read(isolation="read_committed")
                ],
            }
    for name in ("topic", "delayed"):
        with ManagedLedger(top / name, clock=ManualClock(NOW + 1)) as topic:
            answers[name] = [
                [one.position.ledger_id, one.position.entry_id, base64.b64encode(bytes(one.data)).decode()]
                for one in topic
            ]
    return answers


def anonymous(member):
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main():
    with tempfile.TemporaryDirectory() as work:
        top = Path(work) / f"seglog-{seglog.__version__}"
        (top / "data").mkdir(parents=True)
        for make, name in ((log, "data/log-0"), (tagged, "data/tagged-0"), (old_format, "data/old-0"),
                           (ledger, "topic"), (delayed, "delayed"), (jobs, "jobs"), (shop, "shop"),
                           (single_ledger, "ledger-7")):
            make(top / name, ManualClock(NOW))
        seglog.backup(top / "data", top / "backups", clock=ManualClock(NOW))
        (top / "told.json").write_text(json.dumps(told(top), indent=1))
        back_up_ledgers(top, ["topic", "delayed", "jobs", "shop", "ledger-7"])
        with tarfile.open(sys.argv[1], "w:gz") as archive:
            archive.add(top, top.name, filter=anonymous)


if __name__ == "__main__":
    main()
