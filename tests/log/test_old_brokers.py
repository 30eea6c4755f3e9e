"""Directories of real old brokers, 0.8.2.2 to 3.3.2, read as their own consumers read them, through each door."""
import os

import pytest

import seglog
from seglog._kernels.columns import Columns
from support.old_directories import (
    MODERN,
    client_cases,
    digest,
    directory_of,
    parse,
    partitions,
    reads_as_consumed,
    root,
    seen,
)

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
LOGS = [p for p in partitions("logs") if not p.values[1].name.startswith("__")]
TRANSACTIONAL = [p for p in LOGS if p.values[1].name == "transactions-0"]
CLIENTS = client_cases()
# Clients whose compressed messages the broker's own consumer does not read: v1 inside of v0.
UNREAD = {"kafka-node-gzip", "kafka-node-snappy"}


def of_columns(chunks):
    """(offset, timestamp, key, value) of each row, as Read tells them."""
    rows = []
    for columns in chunks:
        assert isinstance(columns, Columns)
        keys, values = columns.key, columns.value
        rows += [
            (offset, str(timestamp), digest(keys[i]), digest(values[i]))
            for i, (offset, timestamp) in enumerate(zip(columns.offset, columns.timestamp, strict=True))
        ]
    return rows


@pytest.mark.parametrize(("version", "directory"), LOGS)
def test_a_directory_reads_as_the_brokers_own_consumer_read_it_by_every_door(version, directory):
    assert reads_as_consumed(directory, root() / version / "consumed" / f"{directory.name}.txt") > 0
    holds_the_same(directory)


@pytest.mark.parametrize(("version", "directory"), TRANSACTIONAL)
def test_what_is_committed_reads_as_by_the_brokers_own_consumer(version, directory):
    consumed = root() / version / "committed" / f"{directory.name}.txt"
    committed = reads_as_consumed(directory, consumed, isolation="read_committed")
    with seglog.open_partition(directory) as partition:
        assert 0 < committed < len(list(partition.read()))


@pytest.mark.parametrize("case", CLIENTS)
def test_what_a_client_sent_through_an_old_broker_reads_as_by_consumers_of_then_and_now_by_every_door(case):
    with seglog.open_partition(directory_of(case)) as partition:
        records = seen(partition.read())
    assert records == parse(case / f"consumed-{MODERN}.txt")
    assert len(records) == 200
    assert (case / "why.txt").exists() == (case.name in UNREAD)
    if case.name not in UNREAD:
        reads_as_consumed(directory_of(case), case / "consumed.txt")
    holds_the_same(directory_of(case))


def holds_the_same(directory):
    """Columns, single reads and ranges give the same records as read()."""
    with seglog.open_partition(directory) as partition:
        records = seen(partition.read())
        assert of_columns(partition.columns()) == [(r.offset, r.timestamp, r.key, r.value) for r in records]
        some = records if FULL else records[::7]
        assert seen(partition[r.offset] for r in some) == some
        middle = records[len(records) // 2].offset
        assert seen(partition.read(middle, middle + 7)) == [r for r in records if middle <= r.offset < middle + 7]
