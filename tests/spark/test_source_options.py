"""The options of the source, the offsets that they mean, and what filters prune; no Spark is needed."""
import datetime as dt
import pickle
import shutil

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, Not

import seglog
from seglog.errors import InvalidArgumentError, OffsetOutOfRangeError
from seglog.spark.offset_ranges import limited, ranges, to_json
from seglog.spark.row_schema import schema_of
from seglog.spark.source_filters import Pruning
from seglog.spark.source_options import SourceOptions, by_partition
from seglog.spark.source_splits import read_split, splits
from seglog.spark.stream import HAS_LIMITS, make_stream_reader
from support.objects_on_disk import ObjectsOnDisk
from support.remote_log_dir import put_log_dir

if HAS_LIMITS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

T = 1_700_000_000_000
NO_TIME = dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC)        # -1 ms


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """orders-0 and orders-1 with offsets 10 to 59, time T + offset; payments-0 with 5 records."""
    path = tmp_path_factory.mktemp("topics") / "data"
    for name, count in (("orders-0", 60), ("orders-1", 60), ("payments-0", 5)):
        with seglog.open(path / name, fsync="never") as log:
            log.append_many([(b"k", b"v", (), T + n) for n in range(count)])
            if count > 5:
                log.delete_records(10)
    return path


def options(data, *, is_stream=False, **given):
    return SourceOptions.of(CaseInsensitiveDict({"path": str(data), **given}), is_stream=is_stream)


def found(data, **given):
    return {
        f"{one.source.topic}-{one.source.partition}": (one.start, one.end) for one in ranges(options(data, **given))
    }


WHOLE = {"orders-0": (10, 60), "orders-1": (10, 60), "payments-0": (0, 5)}
ORDERS = {"orders-0": (10, 60), "orders-1": (10, 60)}


def of_orders(start, end):
    return dict.fromkeys(ORDERS, (start, end))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, WHOLE),
        ({"subscribe": "orders"}, ORDERS),
        ({"subscribe": "orders, payments"}, WHOLE),
        ({"subscribePattern": "ord.*"}, ORDERS),
        ({"subscribePattern": "ord"}, {}),
        ({"assign": '{"orders": [1]}'}, {"orders-1": (10, 60)}),
        ({"subscribe": "orders", "startingOffsets": "earliest", "endingOffsets": "latest"}, ORDERS),
        ({"subscribe": "orders", "startingOffsets": '{"orders": {"0": 23, "1": -2}}'},
         {"orders-0": (23, 60), "orders-1": (10, 60)}),
        ({"subscribe": "orders", "endingOffsets": '{"orders": {"0": 23, "1": -1}}'},
         {"orders-0": (10, 23), "orders-1": (10, 60)}),
        ({"subscribe": "orders", "startingTimestamp": str(T + 30)}, of_orders(30, 60)),
        ({"subscribe": "orders", "endingTimestamp": str(T + 30)}, of_orders(10, 30)),
        ({"subscribe": "orders", "endingTimestamp": str(T + 900)}, of_orders(10, 60)),
        ({"subscribe": "orders", "startingTimestamp": str(T + 30), "startingOffsets": '{"orders": {"0": 1, "1": 1}}'},
         of_orders(30, 60)),
        ({"subscribe": "orders", "startingOffsetsByTimestamp": f'{{"orders": {{"0": {T + 20}, "1": {T + 40}}}}}'},
         {"orders-0": (20, 60), "orders-1": (40, 60)}),
        ({"subscribe": "orders", "startingTimestamp": str(T + 900), "startingOffsetsByTimestampStrategy": "latest"},
         of_orders(60, 60)),
        ({"subscribe": "orders", "startingOffsets": '{"orders": {"0": 3, "1": 20}}', "failOnDataLoss": "false"},
         {"orders-0": (10, 60), "orders-1": (20, 60)}),
        ({"SUBSCRIBE": "payments", "kafka.bootstrap.servers": "there:9092", "groupIdPrefix": "x"},
         {"payments-0": (0, 5)}),
    ],
    ids=str,
)
def test_options_mean_what_they_mean_to_sparks_kafka_source(data, given, expected):
    assert found(data, **given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "orders", "assign": '{"orders": [0]}'}, "assign and subscribe cannot be combined"),
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset'"),
        ({"startingOffsets": "latest"}, "cannot start at the latest"),
        ({"endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "cannot end at the earliest"),
        ({"startingOffsets": '{"orders": [1]}'}, 'expected {"topic": {"0": 23}}, not'),
        ({"startingOffsets": "soon"}, "not valid JSON"),
        ({"startingOffsets": '{"orders": {"0": -7}}'}, "-7 is not an offset"),
        ({"subscribe": "orders", "startingOffsets": '{"orders": {"0": 12}}'}, "must name exactly the partitions"),
        ({"subscribe": "nobody"}, "no such topic: nobody"),
        ({"assign": '{"orders": [7]}'}, "no such partition: orders-7"),
        ({"subscribe": "orders", "startingTimestamp": str(T + 900)}, "no record at or after the time"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"maxOffsetsPerTrigger": "5"}, "option of readStream only"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"minPartitions": "0"}, "minPartitions must be a positive integer"),
        ({"isolation": "serializable"}, "isolation"),
        ({"kafka.isolation.level": "serializable"}, "isolation"),
        ({"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"}, "contradict each other"),
        ({"columns": "offset,nothing"}, "unknown column 'nothing'"),
        ({"path": "ftp://lake/kafka"}, "no store for ftp"),
        ({"path": "s3://lake/kafka", "store.nonsense": "1"}, "unknown store option nonsense"),
        ({"owner": "me", "provider": "seglog"}, "Spark does not pass the options of a table"),
        ({"path": ""}, "the path is missing"),
        ({"subscribePattern": "("}, "subscribePattern"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(data, given, words):
    with pytest.raises(InvalidArgumentError, match=words):
        found(data, **given)


def test_lost_data_fails_unless_told_otherwise(data):
    with pytest.raises(OffsetOutOfRangeError, match="offsets 3 to 9 are gone: the log begins at offset 10") as error:
        found(data, subscribe="orders", startingOffsets='{"orders": {"0": 3, "1": 20}}')
    assert error.value.file.endswith("orders-0")
    with pytest.raises(OffsetOutOfRangeError, match="log ends at offset 60, before offset 61, where this read ends"):
        found(data, subscribe="orders", endingOffsets='{"orders": {"0": 61, "1": 20}}')
    with pytest.raises(OffsetOutOfRangeError, match="log ends at offset 60, before offset 500, where this read b"):
        found(data, subscribe="orders", startingOffsets='{"orders": {"0": 500, "1": 20}}')


def test_a_stream_has_no_end_and_starts_at_the_latest(data):
    assert options(data, is_stream=True).start.offset == -1
    with pytest.raises(InvalidArgumentError, match="a stream has no end"):
        options(data, is_stream=True, endingOffsets="latest")


def test_offsets_are_the_json_of_sparks_kafka_source():
    offsets = {("orders", 1): 7, ("orders", 0): 23, ("a", 10): 0}
    assert to_json(offsets) == {"a": {"10": 0}, "orders": {"0": 23, "1": 7}}
    assert by_partition("offset", to_json(offsets)) == offsets


def test_a_trigger_takes_of_each_partition_in_proportion():
    start = {("t", 0): 100, ("t", 1): 0, ("t", 2): 50}
    end = {("t", 0): 1100, ("t", 1): 1000, ("t", 2): 50}
    assert limited(start, end, 600) == {("t", 0): 400, ("t", 1): 300, ("t", 2): 50}
    assert limited(start, end, 5000) == end
    # One record at least, where there is one: a small partition is not starved.
    assert limited({("t", 0): 0, ("t", 1): 0}, {("t", 0): 10**6, ("t", 1): 3}, 10)[("t", 1)] == 1


def test_filters_prune_partitions_offsets_and_times(data):
    def pruned(*filters):
        pruning = Pruning()
        for one in filters:
            pruning.add(one)
        kept = [pruning.of(one) for one in ranges(options(data))]
        return {f"{one.source.topic}-{one.source.partition}": (one.start, one.end) for one in kept if one}, pruning

    assert pruned(EqualTo(("topic",), "orders"))[0] == ORDERS
    assert pruned(In(("partition",), (1, 7)))[0] == {"orders-1": (10, 60)}
    assert pruned(GreaterThan(("partition",), 0))[0] == {"orders-1": (10, 60)}
    assert pruned(GreaterThan(("offset",), 20), LessThan(("offset",), 30), EqualTo(("topic",), "orders"))[0] == (
        of_orders(21, 30)
    )
    assert pruned(EqualTo(("topic",), "orders"), EqualTo(("topic",), "payments"))[0] == {}
    assert pruned(*(EqualTo(("topic",), name) for name in ("orders", "payments", "orders")))[0] == {}
    assert pruned(*(In(("partition",), numbers) for numbers in ((0, 1), (7,), (1,))))[0] == {}
    # What says nothing of these: all is read.
    for other in (Not(EqualTo(("topic",), "orders")), EqualTo(("value",), b"x"), EqualTo(("headers", "key"), "x"),
                  EqualTo(("offset",), None)):
        assert pruned(other)[0] == WHOLE
    when = dt.datetime.fromtimestamp(T / 1000, dt.UTC) + dt.timedelta(microseconds=300)
    _, pruning = pruned(GreaterThanOrEqual(("timestamp",), when), LessThan(("timestamp",), when))
    # A record's time is a whole ms. None that may fit is left out.
    assert pruning.times_ms == (T, T + 1)
    assert pruned(GreaterThan(("timestamp",), when))[1].times_ms[0] == T


@pytest.mark.parametrize("given", ['{"orders": {"0": 12}}', '{"orders": {"0": 12, "1": 12, "2": 12}}'])
def test_a_stream_too_starts_at_offsets_of_all_partitions_or_of_none(data, given):
    asked = options(data, is_stream=True, subscribe="orders", startingOffsets=given)
    with pytest.raises(InvalidArgumentError, match=r"startingOffsets must name exactly .* differs in orders-"):
        make_stream_reader(asked, schema_of(asked.columns)).initialOffset()


# --- stores and backups ------------------------------------------------------------------------


@pytest.fixture(params=["bucket", "backup"])
def stored(request, data, tmp_path, monkeypatch):
    """(where the topics of `data` are, the options that it takes)"""
    if request.param == "backup":
        seglog.backup(data, tmp_path / "backups")
        return f"{tmp_path}/backups#latest", {}
    server = ObjectsOnDisk(tmp_path / "cloud", monkeypatch)
    url = put_log_dir(data, f"{server.bucket('lake')}/kafka", server.options)
    return url.replace("s3://", "s3a://"), {f"store.{name}": value for name, value in server.options.items()}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_topics_on_a_store_have_the_offsets_and_rows_of_a_directory(data, stored, isolation):
    url, more = stored
    assert found(url, isolation=isolation, **more) == WHOLE
    asked = {
        "subscribe": "orders", "startingOffsets": '{"orders": {"0": 23, "1": -2}}',
        "endingOffsets": '{"orders": {"0": 40, "1": -1}}', "isolation": isolation,
    }
    there, here = options(url, **asked, **more), options(data, **asked)
    assert found(url, **asked, **more) == {"orders-0": (23, 40), "orders-1": (10, 60)}
    rows_there, rows_here = (
        [row for split in splits(one, ranges(one)) for rows in read_split(pickle.loads(pickle.dumps(split)))
         for row in rows.to_pylist()]
        for one in (there, here)
    )
    assert rows_there == rows_here
    assert len(rows_there) == 17 + 50


def test_a_stream_ends_where_a_store_ends_and_starts_where_it_was(stored):
    url, more = stored
    reader = make_stream_reader(
        options(url, is_stream=True, subscribe="orders", startingOffsets="earliest", **more), schema_of(["offset"])
    )
    start = reader.initialOffset()
    assert start == {"orders": {"0": 10, "1": 10}}
    end = reader.latestOffset(start, ReadAllAvailable()) if HAS_LIMITS else reader.latestOffset()
    assert end == {"orders": {"0": 60, "1": 60}}
    rows = [rows for split in reader.partitions(start, end) for rows in reader.read(split)]
    assert sum(len(one) for one in rows) == 100


def test_times_are_not_looked_up_on_a_store(stored):
    url, more = stored
    with pytest.raises(InvalidArgumentError, match="the time 5 cannot be looked up on a store") as error:
        found(url, startingTimestamp="5", **more)
    assert "timestamp" in error.value.hint


def test_the_end_on_a_store_is_found_whatever_the_index_says(data, tmp_path, monkeypatch):
    server = ObjectsOnDisk(tmp_path / "cloud", monkeypatch)
    with seglog.open(tmp_path / "d/t-0", config={"index.interval.bytes": 100, "segment.bytes": 5000}) as log:
        for n in range(100):
            log.append(b"%d" % n)
    [*_, index] = sorted((tmp_path / "d/t-0").glob("*.index"))
    for number, raw in enumerate((index.read_bytes(), b"", b"\xff" * 16, b"\0\0\0\1\0\0\0\x07", None)):
        if raw is None:
            index.unlink()
        else:
            index.write_bytes(raw)
        url = put_log_dir(tmp_path / "d", f"{server.bucket(f'b{number}')}/kafka", server.options)
        assert found(url, **{"store.region": "nowhere"}) == {"t-0": (0, 100)}


# --- a stream whose records or partitions are gone -------------------------------------------


def planned(data, start, end, **given):
    """{partition: (first offset, end)} of the tasks for a trigger."""
    reader = make_stream_reader(options(data, is_stream=True, **given), schema_of(["offset"]))
    return {
        f"{part.topic}-{part.partition}": (part.start_offset, part.stop_offset)
        for split in reader.partitions(start, end) for part in split.parts
    }


def test_a_stream_fails_if_retention_took_records_that_it_has_not_read_unless_told_otherwise(data):
    start, end = {"orders": {"0": 3, "1": 20}}, {"orders": {"0": 60, "1": 60}}
    with pytest.raises(OffsetOutOfRangeError, match="offsets 3 to 9 are gone: the log begins at offset 10") as error:
        planned(data, start, end)
    assert error.value.file.endswith("orders-0")
    assert planned(data, start, end, failOnDataLoss="false") == {"orders-0": (10, 60), "orders-1": (20, 60)}


def test_a_stream_fails_if_a_partition_of_its_checkpoint_is_gone_unless_told_otherwise(data):
    start, end = {"orders": {"0": 20, "7": 5}}, {"orders": {"0": 60, "7": 9}}
    with pytest.raises(OffsetOutOfRangeError, match="no longer exist: orders-7"):
        planned(data, start, end)
    assert planned(data, start, end, failOnDataLoss="false") == {"orders-0": (20, 60)}


class Trigger:
    """A run of a query with the trigger availableNow, as Spark calls the reader."""

    def __init__(self, data, start, **given):
        self.reader = make_stream_reader(options(data, is_stream=True, **given), schema_of(["offset"]))
        self.reader.prepareForTriggerAvailableNow()
        self.start = start

    def next(self):
        """The ranges of the next batch, and the offsets after it; None: there is no batch."""
        end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
        if end == self.start:
            return None
        parts = [part for split in self.reader.partitions(self.start, end) for part in split.parts]
        self.start = end
        return [(part.start_offset, part.stop_offset) for part in parts], end["orders"]["0"]


needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="Spark calls a stream so from 4.2 on")


@needs_limits
@pytest.mark.parametrize("given", [{}, {"maxOffsetsPerTrigger": "7"}])
def test_a_stream_fails_if_a_log_ends_before_its_checkpoint_unless_told_otherwise(tmp_path, given):
    """As Spark's Kafka source does for a topic that was made again. Else what comes up to the checkpoint is lost."""
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        for _ in range(10):
            log.append_many([(None, b"v")] * 10)
        log.truncate_to(40)
    start = {"orders": {"0": 100}}
    with pytest.raises(OffsetOutOfRangeError, match=r"ends at offset 40, before offset 100, .*: it was truncated"):
        Trigger(tmp_path, start, **given).next()
    forgiving = Trigger(tmp_path, start, failOnDataLoss="false", **given)
    assert forgiving.next() == ([], 40)
    assert forgiving.next() is None
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        log.append_many([(None, b"v")] * 5)
    assert Trigger(tmp_path, forgiving.start, **given).next() == ([(40, 45)], 45)


@needs_limits
def test_a_last_stable_offset_that_went_back_is_no_loss(tmp_path):
    producer = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        log.append_many([(None, b"v")] * 10)
        log.append_batch(seglog.build_batch([(None, b"v")] * 5, base_sequence=0, **producer))
        assert (log.last_stable_offset, log.log_end_offset) == (10, 15)
    assert Trigger(tmp_path, {"orders": {"0": 12}}, isolation="read_committed").next() is None
    with pytest.raises(OffsetOutOfRangeError, match="the log ends at offset 15, before offset 16"):
        Trigger(tmp_path, {"orders": {"0": 16}}, isolation="read_committed").next()


@pytest.mark.parametrize(("given", "expected"), [({}, NO_TIME), ({"nullTimestamps": "true"}, None)])
@pytest.mark.parametrize("more", [{}, {"minPartitions": "2"}])
def test_a_record_without_a_timestamp_has_that_of_kafkas_source_or_null(golden_kafka, tmp_path, given, expected, more):
    shutil.copytree(golden_kafka / "cases/v0-none-ct-k391/v0-none-ct-k391-0", tmp_path / "data/orders-0")
    with seglog.open(tmp_path / "data/orders-1", fsync="never") as log:
        log.append(b"v", timestamp=T)
    asked = options(tmp_path / "data", columns="partition,timestamp", **given, **more)
    rows = [row for split in splits(asked, ranges(asked)) for batch in read_split(split) for row in batch.to_pylist()]
    assert {row["timestamp"] for row in rows if row["partition"] == 0} == {expected}
    assert [row["timestamp"] for row in rows if row["partition"] == 1] == [dt.datetime.fromtimestamp(T / 1000, dt.UTC)]
    assert seglog.scan(tmp_path / "data/orders-0").to_arrow()["timestamp"].null_count == len(rows) - 1
