"""Topics on an object store that are not whole: dead compactions, missing segments, wrong transaction indexes.

What a scan of the store gives is what a scan of the same files on a disk gives.
"""
import shutil

import pytest

import seglog
from seglog.errors import UnfinishedChangeError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.state.checkpoints import format_offset_checkpoint
from seglog.state.kept_settings import put_settings
from support.dead_swaps import dead_in_the_swap
from support.flipped import changed_transaction_indexes
from support.golden import golden_cases
from support.objects_on_disk import ObjectsOnDisk, count_parts

CASES = [pytest.param(case, id=case.name) for case in golden_cases() if case.name.startswith("txn-v2-")]
THERE = "s3://bucket/orders-0"


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    ObjectsOnDisk(tmp_path, monkeypatch).bucket("bucket")
    return tmp_path / "bucket"


# --- a compaction that died in its swap -------------------------------------------------------------


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    found = list(dead_in_the_swap(tmp_path_factory.mktemp("swaps")))
    assert len(found) > 10
    return found


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_dead_swap_is_read_as_from_the_disk(states, bucket, isolation):
    swapped = 0
    for state in states:
        here = shutil.copytree(state, bucket / "orders-0")
        swapped += bool(list(here.glob("*.log.swap")))
        whole = seglog.scan(here, isolation=isolation).to_arrow()
        assert whole.num_rows
        assert seglog.scan(THERE, isolation=isolation).to_arrow() == whole, state
        narrow = {"from_offset": whole["offset"][3].as_py(), "to_offset": whole["offset"][-3].as_py()}
        found = seglog.scan(THERE, isolation=isolation, **narrow).to_arrow()
        assert found == seglog.scan(here, isolation=isolation, **narrow).to_arrow(), state
        shutil.rmtree(here)
    assert swapped


def test_a_damaged_swap_is_refused(states, bucket):
    here = shutil.copytree(max(states, key=lambda state: len(list(state.glob("*.log.swap")))), bucket / "orders-0")
    log = max(here.glob("*.log.swap"), key=lambda path: path.stat().st_size)
    raw = bytearray(log.read_bytes())
    raw[-3] ^= 1
    log.write_bytes(raw)
    with pytest.raises(UnfinishedChangeError) as caught:
        seglog.scan(THERE).to_arrow()
    assert caught.value.file == f"{THERE}/{log.name}"
    assert caught.value.position is not None


# --- missing segments -------------------------------------------------------------------------------


@pytest.fixture
def gappy(bucket):
    """The directory of a log without one of its middle segments, and the offsets that are gone."""
    here = bucket / "orders-0"
    with seglog.open(here, config={"segment.bytes": 1000}, fsync="never") as log:
        for n in range(60):
            log.append(b"%d" % n + b"v" * 30, key=b"key %d" % n)
        bases = [segment.base_offset for segment in log.segments]
    for file in here.glob(f"{bases[1]:020d}.*"):
        file.unlink()
    return here, (bases[1], bases[2] - 1)


def lost_of(scan):
    scan.to_arrow()
    return [(gap.first_offset, gap.last_offset) for gap in scan.lost]


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_a_missing_segment_is_told(gappy, on_corrupt):
    here, gap = gappy
    for narrow in ({}, {"from_offset": gap[0] + 1}, {"to_offset": gap[1] - 1}, {"to_offset": gap[0]},
                   {"from_offset": gap[1] + 1}, {"from_offset": gap[0] + 1, "to_offset": gap[1] + 5}):
        scan = seglog.scan(THERE, on_corrupt=on_corrupt, **narrow)
        assert lost_of(scan) == lost_of(seglog.scan(here, on_corrupt=on_corrupt, **narrow)), narrow
    scan = seglog.scan(THERE, on_corrupt=on_corrupt)
    assert lost_of(scan) == [gap]
    assert scan.lost[0].file.startswith(THERE)
    assert str(gap[1]) in scan.lost[0].reason
    assert scan.lost[0].size_bytes == 0


def test_a_table_of_a_store_counts_what_is_missing(gappy, tmp_path, caplog):
    _, (first, last) = gappy
    written = seglog.write_table(THERE, tmp_path / "lake")
    assert sum(part.missing_offsets for part in written) == last - first + 1
    assert str(last) in caplog.text


@pytest.mark.parametrize("sign", ["settings", "checkpoint", "topic", "hole"])
def test_a_gap_that_compaction_left_is_not_told(gappy, sign):
    here, _ = gappy
    there = THERE
    match sign:
        case "settings":
            put_settings(OsFileSystem(), here, {"cleanup.policy": "compact"})
        case "checkpoint":
            (here.parent / names.CLEANER_CHECKPOINT).write_bytes(format_offset_checkpoint({("orders", 0): 20}))
        case "topic":
            here.rename(here.parent / "__consumer_offsets-0")
            there = "s3://bucket/__consumer_offsets-0"
        case "hole":
            (log,) = here.glob(f"{0:020d}.log")
            with seglog.open_partition(here) as partition:
                second = list(partition.segments[0].batches())[1]
                raw = log.read_bytes()
            log.write_bytes(raw[: second.position] + raw[second.position + second.size_bytes :])
            for index in here.glob(f"{0:020d}.*index"):
                index.unlink()
    assert lost_of(seglog.scan(there)) == []


def test_a_log_that_is_whole_or_compacted_tells_of_nothing(states, bucket):
    here = bucket / "orders-0"
    with seglog.open(here, config={"segment.bytes": 1000}, fsync="never") as log:
        for _ in range(60):
            log.append(b"v" * 30)
        log.delete_records(13)
        with log.producer(7) as producer:
            producer.begin()
            producer.append_many([(None, b"never")] * 3)
            producer.abort()
        log.roll()
    for isolation in ("read_uncommitted", "read_committed"):
        assert lost_of(seglog.scan(THERE, isolation=isolation)) == []
    for state in states:
        shutil.rmtree(here)
        shutil.copytree(state, here)
        assert lost_of(seglog.scan(THERE)) == [], state


# --- a transaction index with a changed byte ---------------------------------------------------------


def committed(source, **narrow):
    found = seglog.scan(source, isolation="read_committed", columns=["offset"], **narrow).to_arrow()
    return found["offset"].to_pylist()


@pytest.mark.parametrize("case", CASES)
def test_a_changed_byte_of_a_transaction_index_changes_nothing_that_is_read(case, bucket):
    here = shutil.copytree(case / f"{case.name}-0", bucket / f"{case.name}-0")
    there = f"s3://bucket/{here.name}"
    right, late = committed(there), committed(there, from_offset=60)
    assert right == committed(here)
    wrong = [
        where for where in changed_transaction_indexes(here)
        if (committed(there), committed(there, from_offset=60)) != (right, late)
    ]
    assert not wrong, wrong


def test_only_segments_with_aborted_transactions_are_walked_for_them(bucket, monkeypatch):
    """They are fetched once more; all others are not."""
    here = bucket / "orders-0"
    with seglog.open(here, config={"segment.bytes": 20_000}, fsync="never") as log:
        for n in range(200):
            if n == 120:
                with log.producer(7) as producer:
                    producer.begin()
                    producer.append(b"never")
                    producer.abort()
            log.append(bytes(900))
    logs = {path: path.stat().st_size for path in here.glob("*.log")}
    (aborts,) = here.glob("*.txnindex")
    came = count_parts(monkeypatch)
    assert len(committed(THERE)) == 200
    twice = {path.rpartition("/")[2] for path in came if came[path] > 1.5 * logs[here / path.rpartition("/")[2]]}
    assert twice == {aborts.with_suffix(".log").name}
