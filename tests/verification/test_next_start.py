"""What a dead broker leaves and its next start repairs is a note; what that start would cut, or would trust, is not."""
import fcntl
import os
import shutil
import struct

import pytest

import seglog
from seglog.state.checkpoints import format_offset_checkpoint
from seglog.verification.findings import Severity
from seglog.verification.verify import verify
from support.command import seglog as command
from support.command import seglog_json
from support.golden import unpack
from support.old_directories import partitions

CASE = "v2-none-ct-k391"
FIRST, SECOND = "00000000000000000000", "00000000000000000081"
SMALL = {"index.interval.bytes": 256, "segment.index.bytes": 8192}

# A change of one index file, and the code of what is found then.
INDEX_DAMAGES = {
    "index_missing": (".index", lambda path: path.unlink()),
    "index_corrupt": (".index", lambda path: path.write_bytes(path.read_bytes()[:-3])),
    "index_misleads": (".index", lambda path: path.write_bytes(
        path.read_bytes()[:8] + struct.pack(">ii", *add_one(path.read_bytes()[8:16])) + path.read_bytes()[16:])),
    "index_zero_tail": (".index", lambda path: path.write_bytes(path.read_bytes() + bytes(80))),
    "index_too_large": (".index", lambda path: path.write_bytes(path.read_bytes().ljust(9000, b"\0"))),
    "index_empty": (".index", lambda path: path.write_bytes(b"")),
    "timeindex_missing": (".timeindex", lambda path: path.unlink()),
    "timeindex_corrupt": (".timeindex", lambda path: path.write_bytes(path.read_bytes()[:-3])),
    "timeindex_empty": (".timeindex", lambda path: path.write_bytes(b"")),
}


def add_one(entry):
    offset, position = struct.unpack(">ii", entry)
    return offset, position + 1


@pytest.fixture
def logs(tmp_path):
    """The log dir of a broker that was killed: two segments, of which the first is before the recovery point."""
    logs = tmp_path / "logs"
    shutil.copytree(unpack("kafka") / "cases" / CASE / f"{CASE}-0", logs / "orders-0")
    (logs / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    put_recovery_point(logs, 100)
    assert {path.stem for path in (logs / "orders-0").glob("*.log")} == {FIRST, SECOND}
    return logs


def put_recovery_point(logs, offset):
    (logs / "recovery-point-offset-checkpoint").write_bytes(format_offset_checkpoint({("orders", 0): offset}))


def found(logs):
    return [(f.code, str(f.severity)) for f in verify(logs / "orders-0", config=SMALL).findings]


@pytest.mark.parametrize(("version", "directory"), partitions("killed"))
def test_what_kill_9_of_an_old_broker_left_is_clean(version, directory):
    report = verify(directory, level="deep")
    assert report.ok, report.findings
    assert {f.code for f in report.findings} <= {"index_zero_tail", "timeindex_none"}


@pytest.mark.parametrize("code", INDEX_DAMAGES)
def test_an_index_that_an_unclean_start_rebuilds_is_a_note(logs, code):
    suffix, change = INDEX_DAMAGES[code]
    change(logs / f"orders-0/{SECOND}{suffix}")
    assert (code, "note") in found(logs)
    assert verify(logs / "orders-0", config=SMALL).ok
    settings = [f"--config={name}={value}" for name, value in SMALL.items()]
    *_, summary = seglog_json("verify", logs, *settings)
    assert summary["suggest"] == ["nothing: the next start of a broker, or opening the log with seglog, repairs it"]


@pytest.mark.parametrize("code", INDEX_DAMAGES)
def test_an_index_that_a_clean_start_trusts_is_a_warning(logs, code):
    (logs / ".kafka_cleanshutdown").touch()
    suffix, change = INDEX_DAMAGES[code]
    change(logs / f"orders-0/{SECOND}{suffix}")
    assert (code, "warning") in found(logs)


@pytest.mark.parametrize("code", INDEX_DAMAGES)
def test_an_index_before_the_recovery_point_is_not_rebuilt(logs, code):
    suffix, change = INDEX_DAMAGES[code]
    change(logs / f"orders-0/{FIRST}{suffix}")
    assert (code, "warning") in found(logs)
    put_recovery_point(logs, 80)        # in the first segment: the start recovers that, too
    assert (code, "note") in found(logs)
    (logs / "recovery-point-offset-checkpoint").write_bytes(b"broken\n")       # which counts as 0
    assert (code, "note") in found(logs)


@pytest.mark.parametrize("code", INDEX_DAMAGES)
def test_every_start_recovers_the_metadata_log_from_its_beginning(logs, code):
    """After any stop (KafkaMetadataLog). A clean one of 4.4.0 leaves indexes of its last segment preallocated."""
    (logs / ".kafka_cleanshutdown").touch()
    metadata = (logs / "orders-0").rename(logs / "__cluster_metadata-0")
    suffix, change = INDEX_DAMAGES[code]
    for base in (FIRST, SECOND):
        change(metadata / f"{base}{suffix}")
    report = verify(metadata, config=SMALL)
    assert {(f.code, str(f.severity)) for f in report.findings} >= {(code, "note")}
    assert report.ok


@pytest.mark.parametrize("holder", ["broker", "writer"])
def test_a_running_process_rebuilds_nothing(logs, holder):
    (logs / f"orders-0/{SECOND}.index").unlink()
    with open(logs / ".lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if holder == "broker":      # only another process sees a lock
            pid = os.fork()
            if not pid:
                os._exit(found(logs) != [("index_missing", "warning")])
            assert os.waitpid(pid, 0)[1] == 0
    if holder == "writer":
        with seglog.open(logs / "other-0"):
            assert found(logs) == [("index_missing", "warning")]


@pytest.mark.parametrize(("name", "clean", "unclean"), [
    (f"{FIRST}.log.deleted", "note", "note"),          # any start removes it: a clean stop does not wait for it
    (f"{FIRST}.timeindex.deleted", "note", "note"),
    (f"{FIRST}.log.cleaned", "warning", "note"),
    (f"{SECOND}.index.swap", "warning", "warning"),
    ("00000000000000009999.index", "warning", "note"),
])
def test_files_of_changes_in_progress(logs, name, clean, unclean):
    (logs / "orders-0" / name).write_bytes(b"")
    assert [severity for _, severity in found(logs)] == [unclean]
    (logs / ".kafka_cleanshutdown").touch()
    assert [severity for _, severity in found(logs)] == [clean]


def test_bytes_of_a_log_that_a_start_would_cut_are_a_warning_with_bytes_and_offsets(logs):
    log = logs / f"orders-0/{SECOND}.log"
    log.write_bytes(log.read_bytes()[:-7])
    index = logs / f"orders-0/{SECOND}.index"
    index.write_bytes(index.read_bytes() + bytes(80))
    report = verify(logs / "orders-0", config=SMALL)
    torn, missing = (f for f in report.findings if f.severity == Severity.WARNING)
    assert torn.code == "torn_tail"
    # The broker had closed the log: so it is no unfinished write.
    assert missing.code == "end_missing"
    assert (missing.offset, missing.last_offset) == (report.log_end_offset, 146)
    assert torn.position + torn.size_bytes == log.stat().st_size
    assert (torn.offset, torn.last_offset) == (report.log_end_offset, 146)
    assert "offset 146: " in command("verify", logs, status=1).stdout


@pytest.mark.parametrize(("kept_bytes", "last_offset"), [(27, 146), (26, None), (17, None), (5, None)])
def test_a_torn_header_says_the_last_offset_if_it_has_it(logs, kept_bytes, last_offset):
    log = logs / f"orders-0/{SECOND}.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:-7])
    torn, = (f for f in verify(logs / "orders-0", config=SMALL).findings if f.code == "torn_tail")
    log.write_bytes(whole[: torn.position + kept_bytes])
    torn, = (f for f in verify(logs / "orders-0", config=SMALL).findings if f.code == "torn_tail")
    assert torn.last_offset == last_offset


def test_a_writer_of_ours_that_was_killed_leaves_notes(tmp_path):
    live = tmp_path / "live/orders-0"
    with seglog.open(live, config={"segment.index.bytes": 4096}) as log:
        log.append_many([(None, bytes(100))] * 100)
        copy = shutil.copytree(live.parent, tmp_path / "dead")
    index = copy / f"orders-0/{FIRST}.timeindex"
    index.write_bytes(b"")
    assert ("timeindex_empty", "note") in found(copy)
    (live / f"{FIRST}.timeindex").write_bytes(b"")
    assert ("timeindex_empty", "warning") in found(live.parent)
    assert (live.parent / ".kafka_cleanshutdown").exists()


def test_a_copy_of_a_running_broker_s_partition_is_clean_but_a_damaged_index_is_not(logs):
    alone = shutil.copytree(logs / "orders-0", logs.parent / "alone/orders-0")
    for path in alone.glob(f"{SECOND}.*index"):
        path.write_bytes(path.read_bytes() + bytes(120))
    assert verify(alone, config=SMALL).ok
    (alone / f"{FIRST}.index").write_bytes((alone / f"{FIRST}.index").read_bytes() + bytes(80))
    assert not verify(alone, config=SMALL).ok
