"""Batches of idempotent and transactional producers, as a log gets them."""
from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window

ABORT, COMMIT = 0, 1


def batch(offset, producer_id=7, epoch=0, sequence=0, records=2, timestamp=1000, transactional=False, marker=None):
    """One v2 batch, scanned. `marker`: (ABORT or COMMIT, coordinator epoch)."""
    builder = BatchBuilder(
        offset, producer_id=producer_id, producer_epoch=epoch, is_transactional=transactional or marker is not None,
        base_sequence=-1 if marker is not None else sequence, is_control=marker is not None,
    )
    if marker is not None:
        kind, coordinator_epoch = marker
        builder.append(
            offset, timestamp, (0).to_bytes(2) + kind.to_bytes(2), (0).to_bytes(2) + coordinator_epoch.to_bytes(4)
        )
    else:
        for i in range(records):
            builder.append(offset + i, timestamp + i, None, b"v")
    return scan(Window(builder.finish()))[0]


def aborted_transactions(indexes, from_offset, to_offset):
    """Those that reach into [from_offset, to_offset), in the order of their markers.

    `indexes` are those of the segment that holds `from_offset` and of all after it, None where one has none; no more
    of them are taken than needed (LocalLog.collectAbortedTransactions).
    """
    found = []
    for index in indexes:
        if index is None:
            continue
        some, complete = index.aborted_between(from_offset, to_offset)
        found += some
        if complete:
            break
    return found
