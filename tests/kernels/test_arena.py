"""Memory of columns: where it comes from, how long it stays theirs, where it goes."""
import gc
import threading

import numpy
import pytest

from seglog._kernels.arena import ArenaPool
from seglog._kernels.canonical import canonical_bytes
from seglog.errors import InvalidArgumentError
from support.columns import columns_of, rows_of
from support.plain_format import batch_v2, record_v2

MIB = 1 << 20


def batch_of(value, count=1):
    return batch_v2(b"".join(record_v2(i, value=value) for i in range(count)), count=count)


def test_an_arena_is_given_out_again_after_its_columns_are_gone():
    pool = ArenaPool()
    for _ in range(5):
        columns_of(batch_of(b"v"), pool)
    assert pool.mapped_count == 1
    assert (pool.used_bytes, pool.idle_bytes) == (0, pool.arena_bytes)


def test_columns_at_the_same_time_have_arenas_of_their_own():
    pool = ArenaPool()
    both = [columns_of(batch_of(b"first"), pool), columns_of(batch_of(b"other"), pool)]
    assert pool.used_bytes == 2 * pool.arena_bytes
    assert [c[0][3] for c in both] == [b"first", b"other"]


@pytest.mark.parametrize(
    "view_of",
    [
        lambda c: c.offset,
        lambda c: c.timestamp,
        lambda c: c.header_start,
        lambda c: c.value.data,
        lambda c: c.value,
        lambda c: c.value.offsets[1:],
        lambda c: numpy.frombuffer(c.value.data, "u1"),
        lambda c: c.to_arrow(),
        lambda c: c.to_arrow()["value"],
        lambda c: c.to_arrow()["headers"].flatten().field("value"),
        lambda c: c.__arrow_c_array__()[1],
        lambda c: memoryview(c.value.data)[2:3],
    ],
)
def test_a_view_keeps_the_arena_from_the_pool_until_it_is_gone(view_of):
    pool = ArenaPool()
    view = view_of(columns_of(batch_v2(record_v2(value=b"value", headers=[(b"h", b"x")])), pool))
    gc.collect()
    assert pool.used_bytes >= pool.arena_bytes
    del view
    gc.collect()
    assert pool.used_bytes == 0


def test_reuse_of_the_pool_never_writes_to_memory_that_a_view_still_shows():
    pool = ArenaPool(max_idle_bytes=1 << 30)
    kept = [columns_of(batch_of(b"%d" % i, 50), pool).value.data for i in range(10)]
    for _ in range(50):
        columns_of(batch_of(b"\xff", 50), pool)
    assert [bytes(v) for v in kept] == [b"%d" % i * 50 for i in range(10)]


def test_an_arrow_table_outlives_columns_pool_and_window():
    pyarrow = pytest.importorskip("pyarrow")
    pool = ArenaPool()
    data = bytearray(batch_of(b"from the window", 3))
    arrow = pyarrow.table(columns_of(data, pool))
    for _ in range(3):
        columns_of(batch_of(b"some other value", 3), pool)
    del pool
    data[:] = bytes(len(data))      # not even locked: nothing refers to the window any more
    gc.collect()
    assert arrow["value"].to_pylist() == [b"from the window"] * 3


def test_a_pool_keeps_no_more_idle_memory_than_it_may():
    pool = ArenaPool(max_idle_bytes=40 * MIB)
    many = [columns_of(batch_of(b"v"), pool) for _ in range(8)]
    assert pool.used_bytes == 8 * pool.arena_bytes
    many.clear()
    assert (pool.used_bytes, pool.idle_bytes) == (0, 2 * pool.arena_bytes)


def test_a_pool_may_keep_nothing():
    pool = ArenaPool(max_idle_bytes=0)
    columns_of(batch_of(b"v"), pool)
    columns_of(batch_of(b"v"), pool)
    assert (pool.idle_bytes, pool.mapped_count) == (0, 2)


def test_clear_gives_idle_memory_back_and_leaves_what_is_in_use():
    pool = ArenaPool()
    used = columns_of(batch_of(b"value"), pool)
    columns_of(batch_of(b"other"), pool)
    pool.clear()
    assert (pool.used_bytes, pool.idle_bytes) == (pool.arena_bytes, 0)
    assert used[0][3] == b"value"


def test_a_batch_larger_than_the_usual_arena_gets_one_of_its_size():
    pool = ArenaPool(chunk_bytes=1 << 16)
    columns = columns_of(batch_of(bytes(5 * MIB)), pool)
    assert pool.used_bytes > pool.arena_bytes
    assert columns[0][3] == bytes(5 * MIB)


def test_the_smallest_idle_arena_that_will_do_is_taken():
    pool = ArenaPool(chunk_bytes=1 << 16)
    columns_of(batch_of(bytes(5 * MIB)), pool)
    large = pool.idle_bytes
    first, second = columns_of(batch_of(b"v"), pool), columns_of(batch_of(b"v"), pool)
    assert pool.used_bytes == large + pool.arena_bytes
    del first, second
    small = columns_of(batch_of(b"v"), pool)
    assert pool.used_bytes == pool.arena_bytes
    assert len(small) == 1


def test_columns_start_on_cache_lines():
    columns = columns_of(batch_of(b"value", 100))
    for view in columns.offset, columns.timestamp, columns.value.offsets, columns.value.data, columns.key.validity:
        assert numpy.frombuffer(view, "u1").ctypes.data % 64 == 0


def test_columns_are_read_only():
    columns = columns_of(batch_of(b"value"))
    assert columns.value.data.readonly
    with pytest.raises(TypeError):
        columns.value.data[0] = 1
    assert not numpy.frombuffer(columns.offset, "i8").flags.writeable


def test_threads_share_a_pool():
    pool = ArenaPool(max_idle_bytes=48 * MIB)
    data = [batch_of(b"%02d" % i, 200) for i in range(4)]
    wrong = []

    def work(i):
        for _ in range(200):
            columns = columns_of(data[i], pool)
            stream = canonical_bytes(columns)
            if bytes(columns.value.data) != b"%02d" % i * 200 or b"%02d" % i not in bytes(stream[:64]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.used_bytes == 0
    assert pool.idle_bytes <= pool.max_idle_bytes


# Tests of all the error paths in arena.pyx follow:


@pytest.mark.parametrize("chunk_bytes", [0, -1, (1 << 30) + 1])
def test_a_chunk_size_that_cannot_be_is_refused(chunk_bytes):
    with pytest.raises(InvalidArgumentError, match="chunk_bytes"):
        ArenaPool(chunk_bytes)


def test_a_negative_idle_limit_is_refused():
    with pytest.raises(InvalidArgumentError, match="max_idle_bytes"):
        ArenaPool(max_idle_bytes=-1)


def test_rows_of_recycled_memory_show_nothing_of_what_lay_there_before():
    pool = ArenaPool()
    columns_of(batch_v2(record_v2(key=None, value=None, headers=[(b"h", None)]), base_timestamp=-1), pool)
    again = columns_of(batch_v2(record_v2(key=b"k", value=b"v", headers=[(b"g", b"x")])), pool)
    assert rows_of(again) == [(0, 0, b"k", b"v", (("g", b"x"),))]
    assert again.to_arrow().to_pylist()[0]["headers"] == [{"key": b"g", "value": b"x"}]
