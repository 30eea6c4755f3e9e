"""`seglog diff`: what two copies of a partition have that the other has not."""
import random
import shutil

import crc32c
import pytest

import seglog as engine
from seglog.format.batch import build_batch
from support.command import partition_of, seglog, seglog_json
from support.internal_topics import cluster, cluster_answers, kraft


def written(path, values, *, start=0, epoch=0, codec="none", at_once=3):
    """A log with these values, so many in a batch."""
    with engine.open(path) as log:
        for n in range(0, len(values), at_once):
            records = [(b"k", value, (), 1_700_000_000_000) for value in values[n : n + at_once]]
            log.append_batch(build_batch(records, base_offset=n, codec=codec, leader_epoch=epoch))
    return path


VALUES = [b"v%d" % n for n in range(20)]


@pytest.fixture
def pair(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path / "a/orders-0", tmp_path / "b/orders-0"


def compared(a, b, status):
    *lines, summary = seglog_json("diff", a, b, status=status)
    partition, = [line for line in lines if line["type"] == "partition"]
    ranges = [(line["kind"], line["first_offset"], line["last_offset"], line["records"])
              for line in lines if line["type"] == "differing_range"]
    assert summary["differing"] == int(not partition["same"])
    return partition, ranges


def test_batches_and_codecs_do_not_matter(pair):
    a, b = pair
    written(a, VALUES)
    written(b, VALUES, codec="gzip", at_once=7)
    partition, ranges = compared(a, b, 0)
    assert (partition["same"], partition["equal_records"], partition["same_bytes"], ranges) == (True, 20, 0, [])
    assert "20 records are the same, 20 of them in batches with other bytes" in seglog("diff", a, b).output
    (b / "00000000000000000000.index").unlink()
    assert compared(a, shutil.copytree(a, b.parent / "other"), 0)[0]["same_bytes"] == 20


def test_a_tail_that_one_lacks_and_records_that_differ(pair):
    a, b = pair
    written(a, VALUES)
    written(b, [*VALUES[:10], b"X", b"Y", *VALUES[12:15]])
    partition, ranges = compared(a, b, 1)
    assert ranges == [("different", 10, 11, 2), ("only_in_a", 15, 19, 5)]
    assert (partition["first_offset"], partition["different"], partition["only_in_a"]) == (10, 2, 5)
    text = seglog("diff", a, b, status=1).output
    assert "first difference at offset 10" in text
    assert "only in A" in text


def test_where_leader_epochs_part(pair):
    """As after an unclean election: the same offsets, written by two leaders."""
    a, b = pair
    for path, epoch, tail in ((a, 1, b"old"), (b, 2, b"new")):
        with engine.open(path) as log:
            log.append_batch(build_batch([(None, value) for value in VALUES[:6]], timestamp=5))
            for n in range(3):
                log.append_batch(
                    build_batch([(None, tail + b"%d" % n)], base_offset=6 + n, leader_epoch=epoch, timestamp=9),
                    assign_offsets=False,
                )
    partition, ranges = compared(a, b, 1)
    assert (partition["epoch_offset"], partition["epochs"]) == (6, [1, 2])
    assert ranges == [("different", 6, 8, 3)]
    assert "leader epochs part at offset 6: 1 in A, 2 in B" in seglog("diff", a, b, status=1).output


# --- three brokers after unclean elections -----------------------------------------------


@pytest.mark.parametrize(("topic", "follower", "leader"), [("orders", 1, 3), ("table", 1, 3), ("table", 2, 3)])
def test_a_replica_is_cut_where_kafka_cut_it_and_loses_what_only_it_had(topic, follower, leader):
    """Kafka says where it cut the follower once it was back."""
    answers = cluster_answers()
    cut = answers["cuts"][str(follower)][topic][-1]
    partition, ranges = compared(
        cluster("before", follower) / f"{topic}-0", cluster("before", leader) / f"{topic}-0", 1
    )
    assert partition["epoch_offset"] == partition["first_offset"] == partition["equal_records"] == cut
    read = answers[f"read from {follower}"][topic], answers["read at last"][topic]
    gone, came = ([row for row in rows if row[0] >= cut] for rows in read)
    assert gone
    assert came
    assert not {value for *_, value in gone} & {value for *_, value in came}
    assert partition["cut_records"] == [len(gone), len(came)]
    assert (partition["different"], sum(n for *_, n in ranges)) == (
        min(len(gone), len(came)), max(len(gone), len(came))
    )


def test_a_tail_that_no_election_replaced_is_only_in_one():
    """The topic allows no unclean election: the others fetched the rest when its leader was back."""
    partition, ranges = compared(cluster("before", 1) / "lagged-0", cluster("before", 2) / "lagged-0", 1)
    assert ranges == [("only_in_a", 40, 59, 20)]
    assert (partition["epoch_offset"], partition["cut_records"]) == (None, [0, 0])
    assert len(cluster_answers()["read at last"]["lagged"]) == 60


def test_the_text_says_what_the_follower_would_lose():
    text = seglog("diff", cluster("before", 1) / "orders-0", cluster("before", 3) / "orders-0", status=1).output
    assert "leader epochs part at offset 40: 0 in A, 1 in B\n" in text
    assert "the one that follows the other is cut there: A would lose 20 records, B 15\n" in text


def test_replicas_that_have_followed_their_leader_are_the_same():
    for broker in (1, 2):
        *lines, summary = seglog_json("diff", cluster("after", broker), cluster("after", 3), status=None)
        same = {line["partition"]: line["same"] for line in lines if line["type"] == "partition"}
        assert {name for name, is_same in same.items() if is_same} >= {"orders-0", "lagged-0", "table-0"}
        assert summary["unread"] == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_our_readers_give_what_the_clients_of_three_brokers_read(when):
    answers = cluster_answers()
    reads = [(3, answers["read at last"])] if when == "after" else [
        (broker, answers[f"read from {broker}"]) for broker in (1, 2, 3)
    ]
    for broker, by_topic in reads:
        for topic, rows in by_topic.items():
            with engine.open_partition(cluster(when, broker) / f"{topic}-0") as log:
                assert [[r.offset, r.key.decode(), r.value.decode()] for r in log.read()] == rows


def test_a_start_that_retention_moved_is_told(pair):
    a, b = pair
    written(a, VALUES)
    shutil.copytree(a, b)
    with engine.open(b) as log:
        log.delete_records(5)
    assert compared(a, b, 1)[1] == [("only_in_a", 0, 4, 5)]


def test_golden_conversions_hold_the_same_records(golden_kafka, tmp_path):
    source = partition_of(golden_kafka / "cases/v1-gzip-ct-k391")
    seglog("convert", source, tmp_path / "new" / source.name, status=0)
    partition, _ = compared(source, tmp_path / "new" / source.name, 0)
    assert partition["equal_records"] > 10
    assert partition["same_bytes"] == 0


def test_log_dirs_are_compared_by_partition(tmp_path):
    a = shutil.copytree(kraft("4.1.1"), tmp_path / "a")
    b = shutil.copytree(kraft("4.1.1"), tmp_path / "b")
    assert "7 partitions: 7 with the same records, 0 not" in seglog("diff", a, b).output
    shutil.rmtree(b / "table-0")
    with engine.open(b / "orders-1") as log:
        log.append(b"more")
    result = seglog("diff", a, b, status=1)
    assert "table-0   only in A" in result.output
    assert "7 partitions: 5 with the same records, 2 not" in result.output
    lines = seglog_json("diff", a, b, status=1)
    assert {line["partition"] for line in lines if line["type"] == "partition" and not line["same"]} == {
        "orders-1", "table-0",
    }


def test_random_logs_against_a_dict(tmp_path):
    """Two logs with random holes and changes; the plain answer by offsets."""
    rnd = random.Random(37)
    for n in range(25):
        sides = []
        base = {offset: b"%d" % offset for offset in range(40) if rnd.random() < 0.8}
        for name in "ab":
            held = {offset: (b"other" if rnd.random() < 0.1 else value) for offset, value in base.items()
                    if rnd.random() < 0.85}
            path = tmp_path / f"{n}{name}" / "orders-0"
            with engine.open(path) as log:
                for offset, value in held.items():
                    log.append_batch(
                        build_batch([(None, value)], base_offset=offset, timestamp=1), assign_offsets=False
                    )
            sides.append((path, held))
        (a, left), (b, right) = sides
        partition, _ = compared(a, b, None)
        assert partition["different"] == sum(left[o] != right[o] for o in left.keys() & right.keys())
        assert partition["only_in_a"] == len(left.keys() - right.keys())
        assert partition["only_in_b"] == len(right.keys() - left.keys())
        assert partition["equal_records"] == sum(left[o] == right[o] for o in left.keys() & right.keys())


def test_damage_is_reported_and_the_others_are_compared(tmp_path):
    a = shutil.copytree(kraft("4.1.1"), tmp_path / "a")
    b = shutil.copytree(kraft("4.1.1"), tmp_path / "b")
    log = b / "orders-0/00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[300] ^= 1
    log.write_bytes(raw)
    result = seglog("diff", a, b, status=7)
    assert "B is damaged: offsets 0…19" in result.stdout
    assert "6 with the same records, 1 not" in result.stdout


def test_single_segments_are_refused():
    segment = kraft("4.1.1") / "orders-0/00000000000000000000.log"
    assert "not single segments" in seglog("diff", segment, segment, status=2).stderr


# --- damage ----------------------------------------------------------------------------------------


def flip(directory, position=80):
    """By default in the first batch's records; 100 is in the size of the second batch."""
    log, = directory.glob("*.log")
    raw = bytearray(log.read_bytes())
    raw[position] ^= 1
    log.write_bytes(raw)


def test_a_comparison_goes_on_behind_damage_that_both_have(pair):
    """Red: it ended at the damage, with an error whose hint did not help."""
    a, b = pair
    written(a, VALUES)
    flip(a)
    shutil.copytree(a, b)
    partition, ranges = compared(a, b, 7)
    assert (partition["same"], partition["same_damage"], partition["equal_records"], ranges) == (True, True, 17, [])
    text = seglog("diff", a, b, status=7).output
    assert "both have the same damaged bytes: offsets 0…2, " in text
    assert "17 records are the same" in text
    lost = [line for line in seglog_json("diff", a, b, status=7) if line["type"] == "lost_range"]
    assert [(line["of"], line["first_offset"], line["last_offset"]) for line in lost] == [("a", 0, 2), ("b", 0, 2)]


def test_damage_with_other_bytes_is_not_the_same(pair):
    a, b = pair
    written(a, VALUES)
    shutil.copytree(a, b)
    flip(a)
    flip(b, 81)
    assert compared(a, b, 7)[0]["same_damage"] is False
    text = seglog("diff", a, b, status=7).output
    assert "A is damaged: offsets 0…2" in text
    assert "B is damaged: offsets 0…2" in text


def test_records_that_no_reader_decodes_are_damage_at_their_place_though_the_checksum_is_right(pair):
    """Red: it ended with an error, since it took the directory for the file."""
    a, b = pair
    written(a, VALUES)
    log, = a.glob("*.log")
    raw = bytearray(log.read_bytes())
    size = 12 + int.from_bytes(raw[8:12], "big")
    raw[size + 61] = 0x7F       # the size of the second batch's first record
    second = bytes(raw[size + 21 : size + 12 + int.from_bytes(raw[size + 8 : size + 12], "big")])
    raw[size + 17 : size + 21] = crc32c.crc32c(second).to_bytes(4, "big")
    log.write_bytes(raw)
    shutil.copytree(a, b)
    raw[size + 15] = 5          # its leader epoch, which no checksum covers
    (b / log.name).write_bytes(raw)
    partition, _ = compared(a, b, 7)
    assert (partition["same_damage"], partition["equal_records"]) == (False, 17)
    lost = [line for line in seglog_json("diff", a, b, status=7) if line["type"] == "lost_range"]
    assert [(line["of"], line["file"], line["position"], line["first_offset"], line["last_offset"]) for line in lost] \
        == [("a", str(log), size, 3, 5), ("b", str(b / log.name), size, 3, 5)]


def test_a_damaged_size_in_the_last_segment_ends_no_comparison(pair):
    a, b = pair
    written(a, VALUES)
    flip(a, 100)
    shutil.copytree(a, b)
    partition, _ = compared(a, b, 7)
    assert (partition["same_damage"], partition["equal_records"]) == (True, 17)


def test_what_only_the_whole_copy_has_where_the_other_is_damaged(pair):
    a, b = pair
    written(a, VALUES)
    shutil.copytree(a, b)
    flip(a)
    partition, ranges = compared(a, b, 7)
    assert ranges == [("only_in_b", 0, 2, 3)]
    assert (partition["equal_records"], partition["same_bytes"]) == (17, 17)
    shutil.copytree(b, a.parent / "sound-0")
    shutil.copytree(b, b.parent / "sound-0")
    assert seglog("diff", a.parent, b.parent, status=7).output.splitlines()[-1] == (
        "2 partitions: 1 with the same records, 1 not")
    shutil.rmtree(b)
    shutil.copytree(a, b)
    assert seglog("diff", a.parent, b.parent, status=7).output.splitlines()[-1] == (
        "2 partitions: 1 with the same records, 0 not, 1 the same except for damage")
