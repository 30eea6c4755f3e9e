"""Snapshots of delayed messages, encoded the obvious way: protobuf, pyroaring, and java_order's map."""
from pyroaring import BitMap

from seglog.pulsar_pb.delayed_index_pb2 import SnapshotMetadata, SnapshotSegment, SnapshotSegmentMetadata
from support.java_order import JavaHashMapOrder


def metadata_part(segment):
    """The SnapshotMetadata of one segment."""
    message = SnapshotSegmentMetadata(
        max_schedule_timestamp=segment.max_schedule_timestamp, min_schedule_timestamp=segment.min_schedule_timestamp
    )
    for ledger_id, bitmap in segment.bitmaps.items():
        message.delayed_index_bit_map.add(key=ledger_id, value=bitmap)
    return SnapshotMetadata(metadata_list=[message]).SerializeToString()


def cut(rows, time_step_ms, most):
    """The segments of sorted rows."""
    first = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end][0] > rows[first][0] + max(time_step_ms - 1, 0) or end - first == most:
            yield rows[first:end]
            first = end


def plain_snapshot(rows, time_step_ms, most=-1):
    """(metadata, entries of the segments) of sorted rows (deliver at, ledger, entry)."""
    order, metadata, entries = JavaHashMapOrder(), SnapshotMetadata(), []
    for segment in cut(rows, time_step_ms, most):
        says = metadata.metadata_list.add(
            min_schedule_timestamp=segment[0][0], max_schedule_timestamp=segment[-1][0]
        )
        message = SnapshotSegment()
        for at, ledger, entry in segment:
            order.add(ledger)
            message.indexes.add(timestamp=at, ledger_id=ledger, entry_id=entry)
        for ledger in order.drain():
            bitmap = BitMap()
            for _, of, entry in segment:
                if of == ledger:
                    bitmap.add(entry)
            bitmap.run_optimize()
            says.delayed_index_bit_map.add(key=ledger, value=bitmap.serialize())
        entries.append(message.SerializeToString())
    return metadata.SerializeToString(), entries
