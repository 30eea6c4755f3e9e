"""BatchTable.min_timestamp against the obvious loop over its batches."""
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window


def smallest_told(batch):
    """By a header alone: the base timestamp of a v2 batch is a record's, unless it is a horizon or the log's time."""
    if batch.magic == 2 and batch.delete_horizon_ms is None and batch.timestamp_type == 0:
        return batch.base_timestamp
    return batch.max_timestamp


def test_min_timestamp_is_the_smallest_that_the_headers_tell(golden_kafka):
    for log in sorted(golden_kafka.glob("cases/*/*/*.log")):
        table = scan(Window(log.read_bytes()))
        told = [t for batch in table if (t := smallest_told(batch)) >= 0]
        assert table.min_timestamp == min(told, default=-1), log


def test_a_table_without_a_timestamp_says_minus_one(golden_kafka):
    assert scan(Window(b"")).min_timestamp == -1
    v0 = golden_kafka / "cases/v0-none-ct-k391/v0-none-ct-k391-0/00000000000000000000.log"
    assert scan(Window(v0.read_bytes())).min_timestamp == -1
