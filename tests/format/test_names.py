"""Names of partition directories and segment files."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.errors import InvalidArgumentError, NotALogError
from seglog.format import names
from seglog.format.names import PartitionDir, SegmentFile, parse_file_name, parse_partition_dir

TOPICS = st.text("abzABZ019._-", min_size=1, max_size=40)
HEX = "0123456789abcdef0123456789abcdef"


# --- partition directories -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("orders-0", "orders", 0),
        ("orders-2147483647", "orders", 2147483647),
        ("eu-orders.v2_x-17", "eu-orders.v2_x", 17),
        ("a-1-2", "a-1", 2),
        ("--0", "-", 0),
        ("orders-delete-3", "orders-delete", 3),
        ("orders.future-3", "orders.future", 3),
        ("__consumer_offsets-49", "__consumer_offsets", 49),
        ("a.b-1.c-2", "a.b-1.c", 2),
    ],
)
def test_the_partition_stands_behind_the_last_dash(name, topic, partition):
    assert parse_partition_dir(name) == PartitionDir(topic, partition)
    assert str(parse_partition_dir(name)) == name


@pytest.mark.parametrize("mark", ["delete", "future", "stray"])
@pytest.mark.parametrize("topic", ["orders", "eu-orders.v2", "a-1.b-2"])
def test_marked_directories_keep_topic_and_partition(mark, topic):
    name = f"{topic}-7.{HEX}-{mark}"
    assert parse_partition_dir(name) == PartitionDir(topic, 7, mark, HEX)
    assert str(parse_partition_dir(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "", "-", "orders", "orders-", "-0", "orders-x", "orders-+1", "orders-1x", "orders-2147483648", "orders-\u0661",
        "orders-delete", "orders-0-delete", f"orders.{HEX}-delete", f"-0.{HEX}-stray", f"orders-x.{HEX}-future",
        f"or ders-0.{HEX}-delete", "remote-log-index-cache", ".lock",
    ],
)
def test_other_names_are_no_partition_directories(name):
    assert parse_partition_dir(name) is None


@given(TOPICS, st.integers(0, 2**31 - 1), st.sampled_from(["", "delete", "future", "stray"]))
def test_any_partition_directory_comes_back(topic, partition, mark):
    name = f"{topic}-{partition}.{HEX}-{mark}" if mark else names.partition_dir(topic, partition)
    parsed = parse_partition_dir(name)
    assert (parsed.topic, parsed.partition, parsed.mark) == (topic, partition, mark)
    assert str(parsed) == name


def test_every_golden_directory_is_a_partition_directory(golden_kafka):
    cases = list(golden_kafka.glob("cases/*"))
    assert len(cases) == 129
    for case in cases:
        parsed = parse_partition_dir(f"{case.name}-0")
        assert (parsed.topic, parsed.partition) == (case.name, 0)
        assert (case / str(parsed)).is_dir()


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("00000000000000000000.log", (0, ".log", "")),
        ("00000000000003252903.index", (3252903, ".index", "")),
        ("00000000000003252903.timeindex", (3252903, ".timeindex", "")),
        ("00000000000003252903.time.index", (3252903, ".time.index", "")),
        ("00000000000003252903.ranges.index", (3252903, ".ranges.index", "")),
        ("00000000000003252903.ranges.index.tmp", (3252903, ".ranges.index", ".tmp")),
        ("00000000000003252903.txnindex", (3252903, ".txnindex", "")),
        ("00000000000003252903.snapshot.deleted", (3252903, ".snapshot", ".deleted")),
        ("00000000000000000000.log.cleaned", (0, ".log", ".cleaned")),
        ("00000000000000000000.log.swap", (0, ".log", ".swap")),
        ("00000000000000000000.index.tmp", (0, ".index", ".tmp")),
        ("00000000000000000000.index.bak", (0, ".index", ".bak")),
        ("09223372036854775807.log", (2**63 - 1, ".log", "")),
    ],
)
def test_segment_files_have_an_offset_a_suffix_and_a_state(name, parts):
    assert parse_file_name(name) == SegmentFile(*parts)
    assert str(SegmentFile(*parts)) == name
    assert names.parse_base_offset(name) == parts[0]


@pytest.mark.parametrize(
    "name",
    [
        "", "0.log", "0000000000000000000.log", "000000000000000000000.log", "09223372036854775808.log",
        "00000000000000000000", "00000000000000000000.zonemap", "00000000000000000000.log.gz",
        "0000000000000000000x.log", "-0000000000000000001.log", "\u0660000000000000000000.log",
        "00000000000000000000.log\n", "leader-epoch-checkpoint",
    ],
)
def test_other_names_are_no_segment_files(name):
    assert parse_file_name(name) is None
    with pytest.raises(NotALogError, match="twenty digits"):
        names.parse_base_offset(name)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_a_file_name_needs_an_offset(offset):
    with pytest.raises(InvalidArgumentError, match=str(offset)):
        names.file_name(offset, names.LOG_SUFFIX)


@given(st.integers(0, 2**63 - 1), st.sampled_from(names.SUFFIXES), st.sampled_from(["", *names.STATES]))
def test_any_file_name_comes_back(offset, suffix, state):
    assert parse_file_name(names.file_name(offset, suffix, state)) == SegmentFile(offset, suffix, state)


def test_log_files_are_given_in_order_and_without_those_on_their_way_out(tmp_path):
    for name in [
        "00000000000000000200.log", "00000000000000000000.log", "00000000000000000030.log",
        "00000000000000000030.index", "00000000000000000100.log.deleted",
        "00000000000000000200.log.swap", "2024.log", "leader-epoch-checkpoint",
    ]:
        (tmp_path / name).touch()
    assert [path.name for path in names.log_files(tmp_path)] == [
        "00000000000000000000.log", "00000000000000000030.log", "00000000000000000200.log"
    ]
    assert names.log_files(str(tmp_path))[0] == tmp_path / "00000000000000000000.log"


def test_every_golden_file_is_known(golden_kafka):
    for path in golden_kafka.glob("cases/*/*-0/*"):
        assert parse_file_name(path.name) or path.name == names.LEADER_EPOCH_CHECKPOINT


# --- topics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["a", "...", "a.b-c_D9", "t" * 249, "__transaction_state"])
def test_topics_that_kafka_takes(topic):
    assert names.validate_topic(topic) == topic


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("", "empty"), (".", "directory"), ("..", "directory"), ("t" * 250, "250"), ("a b", "letters"),
        ("a/b", "letters"), ("ä", "letters"), ("a\n", "letters"),
    ],
)
def test_topics_that_kafka_refuses(topic, why):
    with pytest.raises(InvalidArgumentError, match=why):
        names.validate_topic(topic)
