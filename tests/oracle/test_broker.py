"""A real broker takes up the logs that were written here, serves them, and hands them back: in turns, for rounds."""
import hashlib

import pytest

import seglog
from seglog.clock import SystemClock
from seglog.errors import LogLockedError
from seglog.format import names
from seglog.verification.verify import verify
from support.conversion import kept, row_of
from support.kafka_oracle import VERSIONS, OracleError
from support.written_logs import NOW, WRITERS, Producer, Writer, killed, topic_config, write

pytestmark = pytest.mark.oracle

LOG_SUFFIXES = (".log", ".index", ".timeindex", ".time.index", ".txnindex")
TIMES_MOST = 60


def create(broker, name):
    """The topic of a log; a broker of 4.x would not let segments be as small under their own key."""
    config = topic_config(name)
    config["internal.segment.bytes"] = config.pop("segment.bytes")
    broker.create(name, config)


def contents(directory):
    """{name: digest} of the log and its indexes."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir() if path.name.endswith(LOG_SUFFIXES)
    }


def held(log, isolation="read_uncommitted"):
    """What a consumer shall be given."""
    return [kept(row_of(record)) for record in log.read(isolation=isolation)]


def consumed(records):
    return [kept(record) | {"control": False} for record in records]


def times_of(log):
    """Times at, between and around those of the records, not too many."""
    found = sorted({record.timestamp for record in log.read() if record.timestamp >= 0})
    sample = found[:: len(found) // TIMES_MOST + 1]
    return sorted({0, *(time + around for time in sample for around in (-1, 0, 1)), (found or [0])[-1] + 1, 2 * NOW})


def found_at(log, times):
    answers = [log.offset_for_time(time) for time in times]
    return [answer and (answer.offset, answer.timestamp) for answer in answers]


# --- served ------------------------------------------------------------------------------------------


class Served:
    """What we found in the logs, what the broker's clients did, and the files before and after the broker."""

    def __init__(self, broker):
        self.ours, self.kafkas = {}, {}
        broker.start()
        for name in WRITERS:
            create(broker, name)
        broker.stop()
        paths = {name: broker.log_dir / f"{name}-0" for name in WRITERS}
        for name, path in paths.items():
            write(name, path)
        self.was_clean = (broker.log_dir / names.CLEAN_SHUTDOWN).exists()
        self.before = {name: contents(path) for name, path in paths.items()}
        for name, path in paths.items():
            with seglog.open(path) as log:
                times = times_of(log)
                self.ours[name] = {
                    "records": held(log), "committed": held(log, "read_committed"), "times": found_at(log, times),
                    "begin": log.log_start_offset, "end": log.log_end_offset, "stable": log.last_stable_offset,
                }
            self.kafkas[name] = {"asked": times}
        broker.start()
        for name, path in paths.items():
            records = broker.consume(path.name)
            committed = broker.consume(path.name, "read_committed")
            self.kafkas[name] |= {
                "records": consumed(records.records), "committed": consumed(committed.records),
                "times": broker.times(path.name, self.kafkas[name]["asked"]),
                "begin": records.begin, "end": records.end, "stable": committed.end,
            }
        broker.stop()
        self.after = {name: contents(path) for name, path in paths.items()}


@pytest.fixture(scope="module")
def served(kafka_oracle, tmp_path_factory):
    with kafka_oracle("4.1.1").serving(tmp_path_factory.mktemp("served")) as broker:
        return Served(broker)


@pytest.fixture(params=WRITERS)
def name(request):
    return request.param


def test_the_mark_of_a_clean_stop_is_back_when_all_our_logs_are_closed(served):
    """So that the broker of the tests below trusts them."""
    assert served.was_clean


def test_a_broker_serves_the_records_that_were_appended(served, name):
    ours, kafkas = served.ours[name], served.kafkas[name]
    assert kafkas["records"] == ours["records"]
    assert (kafkas["begin"], kafkas["end"]) == (ours["begin"], ours["end"])


def test_a_broker_serves_what_is_committed(served, name):
    ours, kafkas = served.ours[name], served.kafkas[name]
    assert kafkas["committed"] == ours["committed"]
    assert kafkas["stable"] == ours["stable"]


def test_a_broker_finds_times_where_we_do(served, name):
    asked = served.kafkas[name]["asked"]
    found = zip(asked, served.kafkas[name]["times"], served.ours[name]["times"], strict=True)
    assert [row for row in found if row[1] != row[2]] == []


def test_a_broker_leaves_logs_and_indexes_as_they_are_and_the_minute_index_alone(served, name):
    assert served.after[name] == served.before[name]


# --- in turns ----------------------------------------------------------------------------------------

BROKERS = VERSIONS[1:]       # which of them start brokers
ROUNDS = 4
IN_TURNS = (
    "codec-none", "codec-lz4", "codec-zstd", "idempotent", "transactional", "log-append-time", "compacted",
    "minute-index", "time-ranges", "roll-index-full", "truncated", "empty", "deleted-records",
)
HALF_A_DAY_MS = 43_200_000


class Turns:
    """One log that we and the broker write by turns. `held`: what it shall hold."""

    def __init__(self, name, directory):
        self.name = name
        self.writer = Writer(directory, WRITERS[name].config)
        # Within what a broker takes for now, and remembers producers for.
        self.writer.clock.set(SystemClock().now_ms() - HALF_A_DAY_MS)
        self.producers = [Producer(self.writer, 5000 + n) for n in range(2)]
        self.last_sent = None
        self.held, self.stable, self.begin, self.produced = [], 0, 0, 0

    @property
    def partition(self):
        return f"{self.name}-0"

    def our_turn(self, number):
        with self.writer.open(leader_epoch=number) as log:
            assert log.recovery.lost == ()
            self.is_as_left(log)
            if self.last_sent is not None:
                result, raw = self.last_sent
                assert log.append_batch(raw) == (result.first_offset, result.last_offset, True), self.name
            if self.name != "compacted":
                self.writer.fill(log, rounds=3)
            for n in range(20):
                log.append(b"ours %d" % n, key=b"k%d" % (n % 7))
            if self.name in ("idempotent", "transactional"):
                self.send(log, number)
            if self.name == "truncated":
                log.truncate_to(log.log_end_offset - 7)
            if self.name == "deleted-records":
                log.delete_records(log.log_start_offset + 40)
            self.note(log)
        with seglog.open_partition(self.writer.directory) as partition:
            assert held(partition) == self.held

    def is_as_left(self, log):
        assert held(log) == self.held, self.name
        assert (log.log_start_offset, log.last_stable_offset) == (self.begin, self.stable), self.name

    def send(self, log, number):
        transactional = self.name == "transactional"
        one, two = self.producers
        for n in range(6):
            self.last_sent = one.send(log, transactional=transactional)
            two.send(log, transactional=transactional)
            if transactional and n % 3 == 2:
                one.end(log, commit=n == 2)
        if transactional and number % 2:
            two.end(log, commit=True)       # of a transaction that began a turn ago

    def note(self, log):
        self.held, self.stable, self.begin = held(log), log.last_stable_offset, log.log_start_offset
        self.committed = held(log, "read_committed")
        self.times = times_of(log)
        self.found = found_at(log, self.times)

    def their_turn(self, broker, number):
        with pytest.raises(LogLockedError):
            self.writer.open()
        self.is_served(broker)
        assert broker.times(self.partition, self.times) == self.found, self.name
        for codec in ("none", "lz4", "zstd"):
            self.produce(broker, 13, codec=codec)
        if self.name == "transactional":
            for end in ("commit", "abort", "commit", "abort" if number % 2 else "open"):
                self.produce(broker, 6, transaction=("kafkas", end))
        if self.name == "deleted-records":
            self.begin += 25
            broker.delete_records(self.partition, self.begin)
        self.held = consumed(broker.consume(self.partition).records)
        committed = broker.consume(self.partition, "read_committed")
        self.committed, self.stable = consumed(committed.records), committed.end

    def is_served(self, broker):
        uncommitted, committed = (broker.consume(self.partition, i) for i in ("read_uncommitted", "read_committed"))
        assert consumed(uncommitted.records) == self.held, self.name
        assert consumed(committed.records) == self.committed, self.name
        assert (uncommitted.begin, committed.end) == (self.begin, self.stable), self.name

    def produce(self, broker, count, **how):
        self.writer.clock.advance(60_000)
        broker.produce(self.partition, self.produced, count, self.writer.clock.now_ms(), **how)
        self.produced += count


def loads_as_it_is(oracle, logs):
    """Real classes load copies of these logs after any stop, and change nothing after a clean one."""
    directories = [log.writer.directory for log in logs]
    for directory, found in oracle.check(directories).items():
        for start in ("clean", "unclean"):
            answer, where = found[start], (directory.name, start, found[start])
            assert "open_failed" not in answer, where
            assert not answer["log_truncated_or_changed"], where
            assert all(s["all_crc_valid"] and s["index_sanity"] == "ok" for s in answer["segments"]), where
        assert not found["clean"]["index_rebuilt_or_changed"], directory.name
    for directory, found in oracle.index_check(directories).items():
        assert found["bad"] == [], directory.name


@pytest.mark.parametrize("version", BROKERS)
def test_we_and_a_broker_write_a_log_by_turns(kafka_oracle, tmp_path, version):
    oracles = [kafka_oracle(judge) for judge in dict.fromkeys((VERSIONS[0], version))]
    with kafka_oracle(version).serving(tmp_path) as broker:
        broker.start()
        for name in IN_TURNS:
            create(broker, name)
        broker.stop()
        logs = [Turns(name, broker.log_dir / f"{name}-0") for name in IN_TURNS]
        metadata = {path: path.read_bytes() for path in broker.log_dir.glob("*/partition.metadata")}
        assert len(metadata) > len(logs)
        for number in range(ROUNDS):
            mark = (broker.log_dir / names.CLEAN_SHUTDOWN).read_bytes()
            for log in logs:
                log.our_turn(number)
            assert (broker.log_dir / names.CLEAN_SHUTDOWN).read_bytes() == mark
            loads_as_it_is(oracles[number % 2], logs)
            broker.start()
            for log in logs:
                log.their_turn(broker, number)
            broker.stop()
        for oracle in oracles:
            loads_as_it_is(oracle, logs)
        for log in logs:
            with log.writer.open() as ours:
                log.is_as_left(ours)
                assert len(ours.segments) > 3 or log.name == "empty", log.name
        assert {path: path.read_bytes() for path in metadata} == metadata


# --- with deaths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BROKERS)
def test_a_broker_that_is_killed_leaves_a_log_that_opens_here(kafka_oracle, tmp_path, version):
    oracle = kafka_oracle(version)
    with oracle.serving(tmp_path) as broker:
        broker.start()
        create(broker, "codec-none")
        broker.stop()
        write("codec-none", broker.log_dir / "codec-none-0")
        broker.start()
        broker.produce("codec-none-0", 0, 50, NOW)
        before = consumed(broker.consume("codec-none-0").records)
    assert not (broker.log_dir / names.CLEAN_SHUTDOWN).exists()
    reports = [verify(log.parent) for log in broker.log_dir.glob("*/*.log")]
    assert [finding for report in reports for finding in report.findings if finding.severity != "note"] == []
    assert {finding.code for report in reports for finding in report.findings} >= {"index_zero_tail"}
    writer = Writer(broker.log_dir / "codec-none-0", WRITERS["codec-none"].config)
    with writer.open() as log:
        assert log.recovery.repairs == log.recovery.lost == ()
        assert held(log) == before
        writer.fill(log)
        after = held(log)
    with oracle.serving(tmp_path) as broker:
        broker.start()
        assert consumed(broker.consume("codec-none-0").records) == after
        broker.stop()


@pytest.mark.parametrize("version", BROKERS)
def test_one_of_our_writers_is_killed_and_another_closes_the_broker_recovers_both(kafka_oracle, tmp_path, version):
    """A torn tail under the mark of a clean stop would be served."""
    torn, whole = "codec-lz4", "codec-none"
    with kafka_oracle(version).serving(tmp_path) as broker:
        broker.start()
        for name in (torn, whole):
            create(broker, name)
        broker.stop()
        mark = broker.log_dir / names.CLEAN_SHUTDOWN
        assert mark.exists()
        writers = {name: Writer(broker.log_dir / f"{name}-0", WRITERS[name].config) for name in (torn, whole)}
        with writers[whole].open() as log:
            writers[whole].fill(log)
            killed(lambda: writers[torn].fill(writers[torn].open()))
            writers[whole].fill(log)
        assert not mark.exists()
        with seglog.open_partition(writers[torn].directory) as partition:
            expected = held(partition)
        last = names.log_files(writers[torn].directory)[-1]
        sound = last.read_bytes()
        last.write_bytes(sound + b"half of a batch")
        broker.start()
        assert consumed(broker.consume(f"{torn}-0").records) == expected
        assert broker.produce(f"{torn}-0", 0, 1, NOW) == expected[-1]["offset"] + 1
        broker.stop()
        assert mark.exists()
        assert last.read_bytes().startswith(sound)
        for writer in writers.values():
            with writer.open() as log:
                assert log.recovery.lost == ()


def test_a_broker_does_not_start_while_a_log_of_ours_is_open(kafka_oracle, tmp_path):
    with kafka_oracle("4.1.1").serving(tmp_path) as broker:
        broker.start()
        create(broker, "codec-none")
        broker.stop()
        with seglog.open(broker.log_dir / "codec-none-0") as log:
            log.append(b"x")
            with pytest.raises(OracleError, match="lock"):
                broker.start()
            log.append(b"y")
