"""A migration of record formats as the Kafka proposals have it (KIP-31, KIP-32): what copies, converts, compresses."""
import shutil

import pytest

import seglog
from support.made_logs import NOW, batches_of, open_log


@pytest.fixture
def path(in_memory):
    return in_memory / "data" / "orders-0"


def batch(magic, codec, *values):
    times = () if magic == 0 else (NOW,)
    return seglog.build_batch([(b"key", value, (), *times) for value in values], magic=magic, codec=codec)


def rows(log):
    return [(r.offset, r.key, r.value) for r in log]


def replicate(leader, follower, magic):
    """A follower that knows formats up to `magic` fetches what it lacks."""
    while len(fetched := bytes(leader.fetch(follower.log_end_offset, 300, magic=magic).view())):
        whole = batches_of(fetched)
        end = whole[-1].position + whole[-1].size_bytes
        follower.append_batch(fetched[:end], assign_offsets=False)


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("fetched", [0, 1, 2])
@pytest.mark.parametrize("produced", [0, 1, 2])
@pytest.mark.parametrize("on_disk", [0, 1, 2], ids=["phase 1", "phase 2", "v2 on disk"])
def test_the_table_of_the_proposal(path, on_disk, produced, fetched, codec):
    values = [b"one" * 30, b"two" * 30, b"three" * 30]
    with open_log(path, on_disk) as log:
        log.append_batch(batch(produced, codec, *values))
        counters, stored = log.format_counters, len(list(log.batches()))
        # Produce. Formats agree: offsets in place, nothing is compressed again, but for v0, whose offsets lie in
        # compressed bytes ("no worse than what the brokers are doing"). They differ: converted, so compressed again.
        is_in_place = produced == on_disk and (on_disk > 0 or codec == "none")
        assert counters.append_in_place_batches[on_disk].value == (stored if is_in_place else 0)
        assert counters.append_converted_batches[on_disk].value == (stored if produced != on_disk else 0)
        assert counters.append_recompressed_batches[on_disk].value == int(codec == "gzip" and not is_in_place)
        # Fetch. Who knows the format on disk gets the file's own bytes, whoever does not, converted ones.
        got = bytes(log.fetch(0, magic=fetched).view())
        size = log.segments[0].path.stat().st_size
        is_copied = fetched >= on_disk
        assert counters.fetch_zero_copy_bytes[fetched].value == (size if is_copied else 0)
        assert counters.fetch_converted_batches[fetched].value == (0 if is_copied else stored)
        assert {b.magic for b in batches_of(got)} == {min(fetched, on_disk)}
        assert [r.value for b in batches_of(got) for r in b] == values
        others = [s.value for s in counters.samples()]
        assert sum(map(bool, others)) == sum([
            is_in_place, produced != on_disk, codec == "gzip" and not is_in_place, True,
        ])


def test_a_canary_and_its_rollback(in_memory):
    mirror = open_log(in_memory / "a" / "orders-0", 0)          # everybody else is in phase 1
    canary_path = in_memory / "b" / "orders-0"
    canary = open_log(canary_path, 1)                           # broker B goes ahead
    for n in range(30):
        canary.append_batch(batch(n % 2, ["none", "gzip", "lz4"][n % 3], b"%d" % n, b"%d again" % n))
        if n % 4 == 3:
            replicate(canary, mirror, 0)
    replicate(canary, mirror, 0)
    assert {b.magic for b in canary.batches()} == {1}
    assert {b.magic for b in mirror.batches()} == {0}
    assert rows(mirror) == rows(canary) == [
        (n, b"key", b"%d again" % (n // 2) if n % 2 else b"%d" % (n // 2)) for n in range(60)
    ]
    # Something is wrong with it: shut it down, remove its data, set the format back, let it replicate.
    kept = rows(canary)
    canary.close()
    shutil.rmtree(canary_path)
    canary = open_log(canary_path, 0)
    replicate(mirror, canary, 1)
    assert rows(canary) == kept
    assert canary.segments[0].path.read_bytes() == mirror.segments[0].path.read_bytes()
    assert canary.format_counters.append_converted_batches[0].value == 0
    canary.append_batch(batch(1, "gzip", b"after"))
    assert next(iter(canary.batches(60))).magic == 0
    canary.close(), mirror.close()
