"""What is not converted, and that nothing is made or changed then."""
import fcntl
import json
import os
import subprocess
import sys

import pytest

from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog.conversion import directory as directory_conversion
from seglog.conversion.directory import convert, plan_conversion
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    InvalidConfigError,
    LogLockedError,
    NotALogError,
    ProofMismatchError,
    RecordTooLargeError,
    StorageError,
    UnfinishedChangeError,
    UnsupportedCompressionTypeError,
)
from seglog.format.compression import compress
from seglog.reading.partition import Partition
from support.conversion import UnsyncedFs, converted, copied, rows, source_of, tree
from support.golden import golden_cases, unpack
from support.waiting import line_of

GZIP = 1
CORRUPT = [pytest.param(d, id=d.name) for d in sorted((unpack("kafka") / "corrupt").iterdir())]
# Damage in indexes, snapshots and checkpoints: the log is whole, and what comes of it has none of it.
BESIDE_THE_LOG = ("index-", "timeindex-", "epoch-", "snapshot-")
# The end of a write that did not finish, or what looks like it: a size that reaches behind the end of the file.
TORN = ("tail-cut", "zero-tail")
MAY_BE_TORN = ("garbage-tail", "size-huge")


@pytest.fixture
def source(tmp_path):
    case = next(c for c in golden_cases() if c.name == "v1-gzip-ct-k391")
    return copied(source_of(case), tmp_path / "logs" / "orders-0")


@pytest.fixture
def target(tmp_path):
    (tmp_path / "made").mkdir()
    return tmp_path / "made" / "orders-0"


def assert_nothing_made(target):
    left = {path.name for path in [*target.parent.iterdir(), *target.parent.parent.iterdir()]}
    assert not {name for name in left if "staging" in name or "-delete" in name or name == target.name}


# --- paths -------------------------------------------------------------------------------------


def test_a_target_that_exists_is_refused(source, target):
    target.mkdir()
    with pytest.raises(InvalidArgumentError, match="exists"):
        plan_conversion(source, target)


def test_a_target_that_came_to_exist_since_the_plan_is_refused(source, target):
    plan = plan_conversion(source, target)
    target.mkdir()
    with pytest.raises(InvalidArgumentError, match="exists"):
        plan.run()


@pytest.mark.parametrize("path", ["", "inner-0"])
def test_a_target_in_the_source_is_refused(source, path):
    before = tree(source)
    with pytest.raises(InvalidArgumentError, match="is inside the source"):
        plan_conversion(source, source / path)
    assert tree(source) == before


def test_a_target_in_the_source_is_seen_through_a_link(source, tmp_path):
    (tmp_path / "link").symlink_to(source, target_is_directory=True)
    with pytest.raises(InvalidArgumentError, match="is inside the source"):
        plan_conversion(source, tmp_path / "link" / "inner-0")


@pytest.mark.parametrize("name", ["orders", "orders-", "-0", "orders-x", "orders-0.0123-delete"])
def test_a_target_that_a_broker_would_not_take_is_refused(source, tmp_path, name):
    with pytest.raises(InvalidArgumentError, match="is not a valid name for a partition directory"):
        plan_conversion(source, tmp_path / name)


def test_a_file_in_the_place_of_the_log_dir_is_refused(source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotALogError, match="expected a directory, found a file"):
        plan_conversion(source, tmp_path / "file" / "orders-0")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_a_source_that_is_no_log_is_refused(tmp_path, target, make):
    make(tmp_path / "nothing-0")
    with pytest.raises((NotALogError, StorageError)):
        plan_conversion(tmp_path / "nothing-0", target)


def test_a_dry_run_cannot_be_carried_out(source):
    with pytest.raises(InvalidArgumentError, match="a dry run"):
        plan_conversion(source).run()


@pytest.mark.parametrize(("options", "error"), [
    ({"to": 3}, InvalidArgumentError),
    ({"to": 1, "repack_bytes": 100}, InvalidArgumentError),
    ({"to": 1, "delete_horizon_ms": 0}, InvalidArgumentError),
    ({"to": 1, "codec": "zstd"}, UnsupportedCompressionTypeError),
    ({"to": 1, "aborted": "perhaps"}, InvalidArgumentError),
    ({"repack_bytes": -1}, InvalidArgumentError),
    ({"repack_bytes": 2**31}, InvalidArgumentError),
    ({"repack_bytes": 100, "delete_horizon_ms": 0}, InvalidArgumentError),
    ({"codec": "brotli"}, UnsupportedCompressionTypeError),
    ({"config": {"segment.byts": 1}}, InvalidConfigError),
])
def test_options_that_cannot_be_meant_are_refused(source, target, options, error):
    with pytest.raises(error):
        plan_conversion(source, target, **options)


# --- locks -------------------------------------------------------------------------------------


@pytest.fixture
def broker_holding():
    """broker_holding(log_dir): another process holds its .lock as a broker does."""
    holders = []

    def hold(log_dir):
        code = (
            "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB);"
            "print('held', flush=True); sys.stdin.read()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(log_dir / ".lock")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        holders.append(process)
        assert line_of(process) == "held\n"

    yield hold
    for process in holders:
        process.communicate("")


def test_a_source_under_a_live_broker_is_refused(source, target, broker_holding):
    broker_holding(source.parent)
    with pytest.raises(LogLockedError) as e:
        plan_conversion(source, target)
    assert e.value.exit_status == 5
    # To look at it is no change of it.
    assert plan_conversion(source).segments


def test_a_source_that_a_broker_took_since_the_plan_is_refused(source, target, broker_holding):
    plan = plan_conversion(source, target)
    broker_holding(source.parent)
    with pytest.raises(LogLockedError):
        plan.run()
    assert_nothing_made(target)


def test_a_source_is_found_locked_through_a_link(source, target, tmp_path, broker_holding):
    broker_holding(source.parent)
    (tmp_path / "copies").mkdir()
    link = tmp_path / "copies" / "orders-0"
    link.symlink_to(source, target_is_directory=True)
    with pytest.raises(LogLockedError):
        plan_conversion(link, target)


def test_a_target_under_a_live_broker_is_refused(source, target, broker_holding):
    broker_holding(target.parent)
    plan = plan_conversion(source, target)
    with pytest.raises(LogLockedError):
        plan.run()
    assert_nothing_made(target)


def test_both_log_dirs_are_locked_while_it_runs(source, target):
    (source.parent / ".lock").write_bytes(b"")
    tried = []

    def try_lock(path):
        code = (
            "import fcntl, sys; f = open(sys.argv[1], 'a')\n"
            "try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
            "except OSError: print('refused')"
        )
        return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True).stdout.strip()

    def look(done, total):
        if not tried:
            tried.extend(try_lock(log_dir / ".lock") for log_dir in (source.parent, target.parent))

    plan_conversion(source, target).run(look)
    assert tried == ["refused", "refused"]
    assert [try_lock(log_dir / ".lock") for log_dir in (source.parent, target.parent)] == ["", ""]


def test_no_lock_file_is_made_beside_the_source(source, target):
    convert(source, target)
    assert not (source.parent / ".lock").exists()
    assert (target.parent / ".lock").exists()


def test_a_target_beside_the_source_needs_one_lock(source):
    result = convert(source, source.parent / "orders-1")
    assert rows(result.target) == [dict(row) for row in rows(source)]


# --- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CORRUPT)
def test_a_damaged_golden_directory_is_refused_or_loses_only_a_torn_end(case, tmp_path):
    source, before = source_of(case), tree(source_of(case))
    target = tmp_path / "made" / source.name
    kind = case.name.split("--")[1]
    result = refusal = None
    try:
        result = converted(source, target)
    except CorruptRecordError as e:
        refusal = e
    if refusal is not None:
        assert not kind.startswith((*BESIDE_THE_LOG, *TORN))
        assert refusal.file.startswith(str(source))
        assert refusal.position is not None
        assert_nothing_made(target)
    else:
        assert kind.startswith((*BESIDE_THE_LOG, *TORN, *MAY_BE_TORN))
        # As many records as the real broker keeps after an unclean start.
        unclean = json.loads((case / "check-3.9.1.json").read_text())["unclean"]
        assert result.proof.records == unclean["records"]
        assert (result.plan.tail is None) == kind.startswith(BESIDE_THE_LOG)
        with Partition(result.target) as partition:
            assert partition.log_end_offset == unclean["log_end_offset"]
    assert tree(source) == before


def partition_of(directory, **segments):
    directory.mkdir(parents=True)
    for name, data in segments.items():
        (directory / f"{int(name[1:]):020d}.log").write_bytes(data)
    return directory


def v1(offset, value=b"v"):
    builder = MessageSetBuilder(1)
    builder.append(offset, 1000, None, value)
    return builder.payload()


def wrapper(payload, offset):
    """A v1 wrapper whose checksum is right, whatever is in it."""
    builder = MessageSetBuilder(1, wrapped_from=offset)
    builder.append(offset, 1000, None, b"v")
    return builder.wrap(payload, GZIP)


@pytest.mark.parametrize(("inside", "what"), [
    (b"no gzip at all", "gzip"),
    (compress(GZIP, 1, b"no messages in it, though compressed well"), "."),
    (compress(GZIP, 1, v1(0)[:-1]), "."),
])
def test_damage_that_only_opening_shows_is_named_and_leaves_nothing(tmp_path, target, inside, what):
    whole = v1(40) + v1(41)
    source = partition_of(tmp_path / "logs" / "orders-0", s40=whole + wrapper(inside, 42))
    plan = plan_conversion(source, target)
    with pytest.raises(CorruptRecordError, match=what) as e:
        plan.run()
    assert (e.value.file, e.value.position, e.value.offset) == (
        str(source / "00000000000000000040.log"), len(whole), 42,
    )
    assert_nothing_made(target)


def test_a_wrapper_that_begins_in_the_batch_before_it_is_refused(tmp_path, target):
    inner = MessageSetBuilder(1, wrapped_from=38)
    for offset in range(38, 43):
        inner.append(offset, 1000, None, b"v")
    data = v1(40) + v1(41) + inner.wrap(compress(GZIP, 1, inner.payload()), GZIP)
    source = partition_of(tmp_path / "logs" / "orders-0", s30=data)
    with pytest.raises(CorruptRecordError, match="begins below") as e:
        convert(source, target)
    assert e.value.offset == 38
    assert_nothing_made(target)


def test_a_bomb_is_stopped_at_the_limit(tmp_path, target):
    data = wrapper(compress(GZIP, 1, bytes(2 << 20)), 0)
    source = partition_of(tmp_path / "logs" / "orders-0", s0=data)
    with pytest.raises(RecordTooLargeError, match=r"max\.decompressed\.message\.bytes"):
        convert(source, target, config={"max.decompressed.message.bytes": 1 << 20})
    assert_nothing_made(target)


def test_segments_that_overlap_are_refused(tmp_path, target):
    source = partition_of(tmp_path / "logs" / "orders-0", s0=v1(0) + v1(1) + v1(2), s2=v1(2))
    with pytest.raises(CorruptRecordError, match="the next segment begins at 2") as e:
        plan_conversion(source, target)
    assert (e.value.position, e.value.offset) == (2 * len(v1(0)), 2)


def test_offsets_below_the_segment_are_refused(tmp_path, target):
    source = partition_of(tmp_path / "logs" / "orders-0", s5=v1(4))
    with pytest.raises(CorruptRecordError, match="expected 5 or above"):
        plan_conversion(source, target)


def test_a_torn_end_is_said_and_left_behind(tmp_path, target):
    whole = v1(0) + v1(1)
    for torn in (v1(2)[:-1], v1(2)[:5], bytes(3000)):
        source = partition_of(tmp_path / str(len(torn)) / "orders-0", s0=whole + torn)
        plan = plan_conversion(source, target.with_name(f"orders-{len(torn)}"))
        assert (plan.tail.file, plan.tail.position, plan.tail.size_bytes) == (
            "00000000000000000000.log", len(whole), len(torn),
        )
        assert [row["offset"] for row in rows(plan.run().target)] == [0, 1]


def test_a_torn_end_of_an_earlier_segment_is_damage(tmp_path, target):
    source = partition_of(tmp_path / "logs" / "orders-0", s0=v1(0) + bytes(100), s5=v1(5))
    with pytest.raises(CorruptRecordError, match="zero bytes"):
        plan_conversion(source, target)


def test_an_unfinished_compaction_with_a_damaged_segment_is_refused(source, target):
    (source / "00000000000000000000.log.swap").write_bytes(b"x" * 100)
    with pytest.raises(UnfinishedChangeError) as e:
        plan_conversion(source, target)
    assert e.value.file == str(source / "00000000000000000000.log.swap")


def test_a_source_that_grew_since_the_plan_is_refused(tmp_path, target):
    source = partition_of(tmp_path / "logs" / "orders-0", s0=v1(0))
    plan = plan_conversion(source, target)
    with open(source / "00000000000000000000.log", "ab") as log:
        log.write(v1(1))
    with pytest.raises(InvalidArgumentError, match="changed since it was planned"):
        plan.run()
    assert_nothing_made(target)


def test_a_segment_that_came_since_the_plan_is_refused(tmp_path, target):
    source = partition_of(tmp_path / "logs" / "orders-0", s0=v1(0))
    plan = plan_conversion(source, target)
    (source / f"{1:020d}.log").write_bytes(v1(1))
    with pytest.raises(InvalidArgumentError, match="changed since it was planned"):
        plan.run()
    assert_nothing_made(target)


# --- the proof ---------------------------------------------------------------------------------


class SpoilingFs(UnsyncedFs):
    """Lets one byte of one file go wrong on its way to the disk, once all of it was written."""

    def __init__(self, suffix, spoil):
        self.suffix, self.spoil = suffix, spoil

    def set_mtime(self, path, mtime_ns):
        super().set_mtime(path, mtime_ns)
        if str(path).endswith(self.suffix):
            self.spoil(path)


def rewrite_value(path):
    """Another value in the first record, with a checksum that fits."""
    builder = BatchBuilder(0)
    builder.append(0, 1000, None, b"w")
    data = builder.finish()
    with open(path, "r+b") as file:
        file.write(data)


def test_a_record_that_changed_on_its_way_fails_the_proof(tmp_path, target):
    source = partition_of(tmp_path / "logs" / "orders-0", s0=v1(0) + v1(1))
    with pytest.raises(ProofMismatchError, match="2 records with digest") as e:
        convert(source, target, fs=SpoilingFs(".log", rewrite_value))
    assert e.value.file == str(source / "00000000000000000000.log")
    assert_nothing_made(target)


def test_a_record_that_was_lost_on_its_way_fails_the_proof(tmp_path, target):
    source = partition_of(tmp_path / "logs" / "orders-0", s0=v1(0) + v1(1))
    fs = SpoilingFs(".log", lambda path: os.truncate(path, os.path.getsize(path) // 2))
    with pytest.raises(ProofMismatchError):
        convert(source, target, fs=fs)
    assert_nothing_made(target)


def flip(path):
    with open(path, "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize(("suffix", "error"), [
    (".log", CorruptRecordError), (".index", ProofMismatchError), (".timeindex", ProofMismatchError),
])
def test_a_flipped_bit_on_its_way_fails_the_proof(source, target, suffix, error):
    with pytest.raises(error) as e:
        convert(source, target, fs=SpoilingFs(suffix, flip), config={"index.interval.bytes": 256})
    assert suffix in e.value.file
    assert_nothing_made(target)


def test_cancelling_leaves_nothing(source, target):
    class Enough(Exception):
        pass

    def cancel(done, total):
        if done > total * 0.7:
            raise Enough

    with pytest.raises(Enough):
        plan_conversion(source, target).run(cancel)
    assert_nothing_made(target)


def test_progress_rises_to_the_total(source, target):
    told = []
    plan = plan_conversion(source, target, progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] == plan.size_bytes
    told.clear()
    plan.run(lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (2 * plan.size_bytes, 2 * plan.size_bytes)
    told.clear()
    result = convert(source, target.with_name("orders-1"), progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert {total for _, total in told} == {3 * plan.size_bytes}
    assert told[-1][0] == 3 * plan.size_bytes
    assert result.target.is_dir()


@pytest.mark.parametrize("options", [{"proof": "dependent"}, {"proof": True}, {"proof_every": 0}])
def test_an_unknown_second_proof_is_refused(source, target, options):
    with pytest.raises(InvalidArgumentError, match="proof"):
        convert(source, target, **options)
    assert not target.exists()


def test_the_lock_of_the_target_is_free_after_a_refusal(source, target, monkeypatch):
    monkeypatch.setattr(directory_conversion, "Staging", None)
    with pytest.raises(AttributeError):
        convert(source, target)
    with open(target.parent / ".lock", "a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
