"""From bytes to columns in one call, for tests."""
from seglog._kernels.arena import ArenaPool
from seglog._kernels.columns import decode
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window


def columns_of(data, pool=None, *, decompress=None, **options):
    """All batches of `data`, which must hold nothing else, as one Columns."""
    table = scan(Window(data), decompress=decompress)
    assert table.end == len(data), table.stop
    return decode(table, 0, len(table), pool or ArenaPool(), **options)


def rows_of(columns):
    return [columns[i] for i in range(len(columns))]
