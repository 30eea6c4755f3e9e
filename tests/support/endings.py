"""A process that opens things, leaves them open, and ends in one of the ways in which processes end.

    python endings.py DIRECTORY KIND,KIND,... WAY       this process does it
    python endings.py                                   forks one for each line "DIRECTORY KINDS WAY" of stdin, whose
                                                        output is DIRECTORY/output, and answers "STATUS SECONDS"

A fork ends as a process of its own does, its interpreter is finalized, but it starts at once.
"""
import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import seglog
from seglog import pulsar
from seglog.ledger.entry import pulsar_pb
from seglog.ledger.message_batch import build_message_entry
from seglog.ledger.snapshot_storage import LedgerSnapshotStorage
from support.outside.silence import own_s

# A process that has not ended after this time is killed: -9.
PATIENCE_S = 10
LINGERS = {"linger.ms": 600_000}
# What is left open when the process ends.
OPEN = []


def log(directory, name, **named):
    opened = seglog.open(directory / f"{name}-0", **named)
    opened.append(b"left", key=b"k")
    return opened


def started(work):
    """Run it in a daemon thread, as programs do."""
    threading.Thread(target=work, daemon=True).start()


def in_a_cycle(directory):
    opened = log(directory, "cycle", fsync="interval")
    opened.itself = opened
    return opened


def rolling(directory):
    return log(directory, "rolling", fsync="never", config={"seglog.segment.idle.roll": True})


def reconfigured(directory):
    opened = log(directory, "reconfigured", fsync="never")
    opened.configure(LINGERS)
    opened.append(b"lingers")
    return opened


def followed(directory):
    opened = log(directory, "followed", fsync="interval")
    started(lambda: list(opened.follow()))
    return opened


def follower(directory):
    log(directory, "outside").close()
    opened = seglog.follow(directory / "outside-0")
    started(lambda: list(opened.follow()))
    return opened


def cursor(directory):
    opened = log(directory, "read", fsync="interval")
    reader = opened.cursor("mailer")
    return opened, reader, next(iter(reader.read()))


def transaction(directory):
    opened = log(directory, "transaction", fsync="never")
    producer = opened.producer(7)
    producer.begin()
    producer.append(b"in it")
    return opened, producer


def callbacks(directory):
    opened = log(directory, "callbacks", fsync="never")
    opened.on_published(lambda end: None)
    opened.when_durable(opened.append(b"1", wait=False), lambda error: None)
    return opened


def busy(directory):
    """A thread of the program that appends until the end, and is stopped anywhere."""
    opened = log(directory, "busy", fsync="batch")

    def append():
        while True:
            opened.append(b"again")

    started(append)
    return opened


def busy_lingering(directory):
    opened = log(directory, "busy_lingering", fsync="never", config={"linger.ms": 1})

    def append():
        while True:
            opened.append(b"again")

    started(append)
    return opened


def closed_late(directory):
    """An object that closes its log when it is collected, while a thread appends."""
    class Owner:
        def __init__(self):
            self.log = log(directory, "late", fsync="interval")
            self.topic = topic(directory, "late_topic", fsync="interval")

        def __del__(self):
            self.log.close()
            self.topic.close()

    return Owner()


def many_producers(directory):
    opened = log(directory, "producers", fsync="never")
    batches = [seglog.build_batch([(None, b"1")], producer_id=n, producer_epoch=0, base_sequence=0)
               for n in range(500)]
    for batch in batches:
        opened.append_batch(batch)
    opened.roll()
    return opened


def log_dir(directory):
    opened = seglog.open_dir(directory / "dir", fsync="interval", config={"retention.ms": 3_600_000})
    logs = [opened.log("orders", 0), opened.log("orders", 1)]
    logs[0].append(b"left")
    return opened, logs


def topic(directory, name, **named):
    opened = pulsar.ManagedLedger(directory / name, **named)
    metadata = pulsar_pb().MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    opened.add_entry(build_message_entry(metadata, b"left"))
    return opened


def compacted_topic(directory):
    config = {"brokerServiceCompactionThresholdInBytes": 1 << 20}
    return pulsar.ManagedLedger(directory / "compacted_topic", config=config)


def ledger(directory):
    opened = pulsar.Ledger.create(directory / "ledger", 1, fsync="interval")
    opened.add(b"left")
    return opened


def tracker(directory):
    found = pulsar.BucketDelayedDeliveryTracker(LedgerSnapshotStorage(directory / "tracker"))
    found.add_message(1, 1, int(time.time() * 1000) + 3_600_000)
    return found


def delivery(directory, fsync="interval"):
    opened = pulsar.ManagedLedger(directory / f"delayed_{fsync}", fsync=fsync)
    delayed = pulsar.DelayedDelivery(opened)
    dispatcher = delayed.dispatcher(opened.open_cursor("s", "earliest"))
    delayed.publish(b"later", delay=3600)
    started(lambda: dispatcher.read(timeout=None))
    return opened, delayed, dispatcher


def scan(directory):
    with seglog.open(directory / "scanned-0", config={"segment.bytes": 1 << 20}) as opened:
        for _ in range(12):
            opened.append_many([(None, os.urandom(1000))] * 1000)
    reader = seglog.scan(str(directory / "scanned-0"), threads=2).to_reader()
    reader.read_next_batch()
    return reader


def serve(directory):
    server = seglog.serve(directory / "served", topics={"orders": 1})
    server.__enter__()
    server.log("orders").append(b"left")
    return server


def aio(directory):
    """In a loop that goes on in a thread."""
    loop = asyncio.new_event_loop()
    started(loop.run_forever)
    return loop, asyncio.run_coroutine_threadsafe(opened_in_loop(directory, "aio_thread"), loop).result()


async def opened_in_loop(directory, name="aio"):
    opened = await seglog.aio.open(directory / f"{name}-0", fsync="interval")
    await opened.append(b"left")
    task = asyncio.ensure_future(following(opened))
    await asyncio.sleep(0)
    return opened, task


async def following(opened):
    async for _ in opened.follow():
        pass


KINDS = {
    "batch": lambda directory: log(directory, "batch"),
    "interval": lambda directory: log(directory, "interval", fsync="interval"),
    "never": lambda directory: log(directory, "never", fsync="never"),
    "linger": lambda directory: log(directory, "linger", fsync="never", config=LINGERS),
    "linger_interval": lambda directory: log(directory, "linger_interval", fsync="interval", config=LINGERS),
    "in_a_cycle": in_a_cycle,
    "rolling": rolling,
    "reconfigured": reconfigured,
    "retention": lambda directory: log(directory, "retention", config={"retention.ms": 3_600_000}),
    "compacted": lambda directory: log(directory, "compacted", config={"cleanup.policy": "compact"}),
    "log_dir": log_dir,
    "followed": followed,
    "follower": follower,
    "cursor": cursor,
    "transaction": transaction,
    "callbacks": callbacks,
    "many_producers": many_producers,
    "busy": busy,
    "busy_lingering": busy_lingering,
    "closed_late": closed_late,
    "topic": lambda directory: topic(directory, "topic", fsync="interval"),
    "topic_batch": lambda directory: topic(directory, "topic_batch"),
    "compacted_topic": compacted_topic,
    "ledger": ledger,
    "tracker": tracker,
    "delivery": delivery,
    "delivery_batch": lambda directory: delivery(directory, "batch"),
    "scan": scan,
    "serve": serve,
    "aio": aio,
}
# What is written only if the process writes it when it ends: name -> the records of its log.
LINGERING = {"linger": 1, "linger_interval": 1, "reconfigured": 2}
WAYS = {
    "end": 0, "exception": 1, "sys_exit": 3, "fork": 0, "mp_fork": 0, "spawn": 0, "cancelled": 1,
    "sigterm": -signal.SIGTERM,
}


def fill(directory, kinds):
    warnings.simplefilter("always", ResourceWarning)
    OPEN.append(open(os.devnull))       # noqa: SIM115  (of it Python warns, if it does)
    for kind in kinds:
        OPEN.append(KINDS[kind](directory))


def open_and_end(directory, kinds, way):
    """Return if the process is to end by itself."""
    if way in ("mp_fork", "spawn"):
        process = multiprocessing.get_context(way[-5:].strip("_")).Process(target=fill, args=(directory, kinds))
        process.start()
        process.join()
        sys.exit(process.exitcode)
    if way == "cancelled":
        asyncio.run(cancelled(directory, kinds))
    fill(directory, kinds)
    if way == "exception":
        raise RuntimeError("on purpose")
    if way == "sys_exit":
        sys.exit(3)
    if way == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    if way == "fork":
        child = os.fork()
        if child:
            sys.exit(status_of(child)[0])


async def cancelled(directory, kinds):
    fill(directory, kinds)
    OPEN.append(await opened_in_loop(directory))
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


def status_of(child):
    """Its exit status, and how long it took to end, on a machine without other work."""
    pidfd = os.pidfd_open(child)
    seconds = own_s(pidfd, child, PATIENCE_S)
    if seconds > PATIENCE_S:
        os.kill(child, signal.SIGKILL)
    os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seconds


def main():
    if sys.argv[1:]:
        directory, kinds, way = sys.argv[1:]
        return open_and_end(Path(directory), kinds.split(","), way)
    for module in (seglog, pulsar):     # imported once, not in each fork
        for name in module.__all__:
            getattr(module, name)
    for line in sys.stdin:
        directory, kinds, way = line.split()
        child = os.fork()
        if not child:
            output = os.open(Path(directory) / "output", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            return open_and_end(Path(directory), kinds.split(","), way)
        print(*status_of(child), flush=True)
    return None


if __name__ == "__main__":
    main()
