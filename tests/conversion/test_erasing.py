"""Records of some keys erased: every other record, every offset and every format stay, and there is a way back."""
import json
from collections import Counter

import pytest

import seglog as engine
from seglog._kernels.batch_filter import BatchFilter
from seglog._kernels.key_map import KeyMap
from seglog.conversion.erasing import erase, plan_erasure
from seglog.conversion.in_place import roll_back
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.errors import InvalidArgumentError, LogLockedError, ProofMismatchError
from seglog.format.conversion_profile import Profile
from seglog.fs.lock import lock_log_dir
from seglog.reading.partition import Partition
from seglog.verification.verify import verify
from support.command import seglog, seglog_json
from support.conversion import UnsyncedFs, config_of, copied, source_of
from support.conversion import tree as whole_tree
from support.golden import golden_cases

CASES = {case.name: case for case in golden_cases()}
# A marker of a transaction has such a key, which is none.
MARKER = b"\x00\x00\x00\x01"


def tree(directory):
    """Without locks and marks of ours, which every opening writes."""
    return {name: state for name, state in whole_tree(directory).items() if not name.rpartition("/")[2].startswith(".")}


def content(directory):
    """By the lazy records, which share no code with what erases."""
    with Partition(directory) as partition:
        return [
            (batch.is_control, r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers)
            for _, table in partition.tables(0) for batch in table for r in batch
        ]


def batches(directory):
    with Partition(directory) as partition:
        return [batch for _, table in partition.tables(0) for batch in table]


def shape(batch):
    """What erasing leaves of a v2 batch, whatever goes out of it."""
    return (
        batch.base_offset, batch.last_offset, batch.codec if batch.count else 0, batch.leader_epoch, batch.producer_id,
        batch.producer_epoch, batch.base_sequence, batch.is_control, batch.is_transactional,
    )


def some_keys(records):
    """The commonest key, the rarest, and that of a marker."""
    keys = [key for control, _, _, _, key, *_ in records if key is not None and not control]
    counted = [key for key, _ in Counter(keys).most_common()]
    return {*counted[:1], *counted[-1:], MARKER}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in golden_cases()])
def test_every_golden_log_keeps_all_other_records_and_all_offsets(case, tmp_path):
    directory = copied(source_of(case), tmp_path / "logs" / source_of(case).name)
    before, old = content(directory), batches(directory)
    keys = some_keys(before)
    left = [row for row in before if row[0] or row[4] not in keys]
    if old and old[-1].magic < 2 and left[-1:] != before[-1:]:
        with pytest.raises(InvalidArgumentError, match="offsets would be assigned again"):
            plan_erasure(directory, keys, tmp_path / "backups", config=config_of(case))
        return
    plan = plan_erasure(directory, keys, tmp_path / "backups", config=config_of(case), fs=UnsyncedFs())
    assert plan.losses.erased_records == len(before) - len(left)
    if plan.changes_nothing:
        assert left == before
        return
    end, aborted = plan.log_end_offset, aborted_of(directory)
    findings = {(f.code, f.file) for f in verify(directory, config=config_of(case)).findings}
    result = plan.run()
    assert content(directory) == left
    assert result.proof.holds
    assert result.proof.records == len(left)
    assert Proof.read(directory / PROOF_FILE).left_out == (
        f"{len(before) - len(left)} records of {len(keys)} erased keys",)
    with Partition(directory) as partition:
        assert partition.log_end_offset == end
    assert aborted_of(directory) == aborted
    after = batches(directory)
    # Batches that keep all their records stay as they are, to the byte.
    raw = {batch.base_offset: bytes(batch.raw()) for batch in after}
    for batch in old:
        if batch.magic == 2:
            assert batch.base_offset in raw
        if all(record.key not in keys for record in batch) or batch.is_control:
            assert raw[batch.base_offset] == bytes(batch.raw())
    assert [shape(b) for b in after if b.magic == 2 and b.count] == [
        shape(b) for b in old if b.magic == 2 and (b.is_control or any(r.key not in keys for r in b))]
    new = {(f.code, f.file) for f in verify(directory, config=config_of(case), level="deep").findings}
    left_by_erasing = {"segment_gap_compacted"}
    assert {code for code, _ in new} <= {code for code, _ in findings} | left_by_erasing, new


def aborted_of(directory):
    with Partition(directory) as partition:
        return [list(segment.transaction_index or ()) for segment in partition.segments]


def written(directory, values=b"value-%d", *, count=60, **config):
    with engine.open(directory, fsync="never", config=config) as log:
        for n in range(count):
            log.append(values % n, key=None if n % 7 == 3 else b"user-%d" % (n % 5), timestamp=1_700_000_000_000 + n)
    return directory


def test_a_batch_that_loses_all_its_records_stays_as_its_header_so_that_no_offset_is_given_again(tmp_path):
    directory = written(tmp_path / "logs/orders-0", count=8)       # the last key is user-2
    with engine.open(directory, fsync="never") as log:
        log.append(b"secret", key=b"the last one")
    erase(directory, [b"the last one"], tmp_path / "backups", fs=UnsyncedFs())
    last = batches(directory)[-1]
    assert (last.base_offset, last.last_offset, last.count, len(bytes(last.raw()))) == (8, 8, 0, 61)
    assert b"secret" not in b"".join(p.read_bytes() for p in directory.iterdir())
    assert not verify(directory).findings
    with engine.open(directory, fsync="never") as log:
        assert log.append(b"more") == 9
        assert [r.offset for r in log.read()] == [*range(8), 9]


def test_tombstones_and_records_without_a_key_stay_and_get_no_delete_horizon(tmp_path):
    directory = tmp_path / "logs/orders-0"
    with engine.open(directory, fsync="never") as log:
        log.append_many([(b"a", b"1"), (b"b", None), (None, b"no key"), (b"", b"empty key"), (b"c", b"2")])
    erase(directory, ["a"], tmp_path / "backups", fs=UnsyncedFs())
    batch, = batches(directory)
    assert [(r.offset, r.key, r.value) for r in batch] == [
        (1, b"b", None), (2, None, b"no key"), (3, b"", b"empty key"), (4, b"c", b"2")]
    assert batch.delete_horizon_ms is None
    assert (batch.base_offset, batch.last_offset) == (0, 4)
    erase(directory, [b""], tmp_path / "others", fs=UnsyncedFs())
    assert [r.key for batch in batches(directory) for r in batch] == [b"b", None, b"c"]


def test_the_last_records_of_an_old_format_are_refused(tmp_path):
    case = CASES["v1-none-ct-k282"]
    directory = copied(source_of(case), tmp_path / "logs/orders-0")
    *_, last_key, _, _ = content(directory)[-1]
    before = tree(directory)
    with pytest.raises(InvalidArgumentError, match="their offsets would be assigned again") as caught:
        plan_erasure(directory, [last_key], tmp_path / "backups")
    assert "convert the partition to v2" in caught.value.hint
    assert tree(directory) == before


@pytest.mark.parametrize("keys", [[], "text", b"bytes", [5], [None]])
def test_keys_are_bytes_or_str_and_one_at_least(tmp_path, keys):
    with pytest.raises(InvalidArgumentError, match="key"):
        plan_erasure(tmp_path, keys)


@pytest.mark.parametrize("wrong", [[b"user-1", b"user-2"], [b"user-3"]], ids=["too many", "others"])
def test_a_result_that_lost_other_records_is_never_put_in_place(tmp_path, monkeypatch, wrong):
    directory = written(tmp_path / "logs/orders-0")
    plan = plan_erasure(directory, [b"user-1"], tmp_path / "backups", fs=UnsyncedFs())
    before = tree(directory)

    def misled(self, config, decompress):
        keys = KeyMap(1 << 20)
        for key in wrong:
            keys.put(key, 0)
        return BatchFilter(keys, latest_offset=2**63 - 1, now_ms=0, delete_retention_ms=0, erases=True)

    monkeypatch.setattr(Profile, "eraser", misled)
    with pytest.raises(ProofMismatchError):
        plan.run()
    assert tree(directory) == before


def test_a_broker_that_runs_is_not_disturbed(tmp_path):
    directory = written(tmp_path / "logs/orders-0")
    with lock_log_dir(UnsyncedFs(), tmp_path / "logs"):
        with pytest.raises(LogLockedError):
            plan_erasure(directory, [b"user-1"], tmp_path / "backups")
        assert "locked" in seglog(
            "erase", directory, "--key", "user-1", "--apply", "--backup", tmp_path / "backups", status=5).stderr


# --- the command ---------------------------------------------------------------------------------------------------


def test_until_it_is_told_to_the_records_are_counted_and_nothing_is_changed(tmp_path):
    directory = written(tmp_path / "logs/orders-0")
    before = tree(tmp_path)
    partition, summary = seglog_json("erase", directory, "--key", "user-1", "--key", "none of them", status=1)
    gone = sum(key == b"user-1" for *_, key, _, _ in content(directory))
    assert (partition["status"], partition["erased_records"]) == ("planned", gone)
    assert partition["bytes_out"] < partition["bytes_in"]
    assert (summary["keys"], summary["erased_records"], summary["planned"]) == (2, gone, 1)
    for given, more in (((), " --apply --backup DIR"), (("--backup", tmp_path / "kept"), " --apply")):
        last = seglog("erase", directory, "--key", "user-1", *given, status=1).stdout.splitlines()[-1]
        assert last.startswith("dry run: nothing was changed. To do it: seglog erase")
        assert last.endswith(more)
    assert "nothing to do" in seglog("erase", directory, "--key", "none of them").stdout
    assert tree(tmp_path) == before


def test_they_go_from_a_log_dir_and_come_back_with_rollback(tmp_path):
    logs, backups = tmp_path / "logs", tmp_path / "backups"
    for name in ("orders-0", "orders-1", "payments-0"):
        written(logs / name, **{"segment.bytes": 1000})
    with engine.open(logs / "orders-2", fsync="never") as log:
        log.append(b"1", key=b"of nobody")
    before = {name: tree(logs / name) for name in ("orders-0", "orders-1", "orders-2", "payments-0")}
    (tmp_path / "keys").write_bytes(b"user-1\nuser-2\n")
    apply = "--apply", "--backup", backups
    *_, summary = seglog_json("erase", logs, "--key-file", tmp_path / "keys", "--topic", "orders", *apply)
    assert (summary["erased"], summary["unchanged"], summary["failed"]) == (2, 1, 0)
    for name in ("orders-0", "orders-1"):
        assert {key for *_, key, _, _ in content(logs / name)} == {None, b"user-0", b"user-3", b"user-4"}
        seglog("verify", logs / name, "--level", "deep")
    assert {name: tree(logs / name) for name in ("orders-2", "payments-0")} == {
        name: before[name] for name in ("orders-2", "payments-0")}
    assert tree(backups / "orders-0") == before["orders-0"]
    said = seglog("erase", logs, "--rollback", "--backup", backups).stdout
    assert "is restored to what it was before records were erased" in said
    assert {name: tree(logs / name) for name in before} == before


def test_a_run_says_where_the_erased_records_still_are_and_a_second_one_finds_none(tmp_path):
    directory = written(tmp_path / "logs/orders-0")
    apply = "--apply", "--backup", tmp_path / "backups"
    said = seglog("erase", directory, "--key", b"user-1".hex(), "--hex", *apply).stdout
    assert "still contains the erased records" in said
    assert "no record of 1 key: nothing was changed" in seglog(
        "erase", directory, "--key", "user-1", "--apply", "--backup", tmp_path / "others").stdout
    roll_back(directory, tmp_path / "backups")


def test_a_partition_that_fails_ends_with_7_and_the_others_go_on(tmp_path):
    logs = tmp_path / "logs"
    written(logs / "orders-0")
    damaged = written(logs / "orders-1")
    log, = damaged.glob("*.log")
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    apply = "--apply", "--backup", tmp_path / "backups"
    *rows_, summary = seglog_json("erase", logs, "--key", "user-1", *apply, status=7)
    assert [(row["partition"], row["status"]) for row in rows_] == [("orders-0", "erased"), ("orders-1", "failed")]
    assert rows_[1]["error"] == "corrupt_record"
    assert summary["failed"] == 1


@pytest.mark.parametrize(("arguments", "words"), [
    ((), "--key or --key-file"),
    (("--hex", "--key", "xyz"), "--hex"),
    (("--key", "a", "--apply"), "--apply needs --backup"),
    (("--rollback",), "--rollback needs --backup"),
    (("--topic", "x", "--key", "a"), "--topic"),
    (("--key-file", "{}/empty"), "line 2 is empty"),
])
def test_a_wrong_call_ends_with_2(tmp_path, arguments, words):
    directory = written(tmp_path / "orders-0")
    (tmp_path / "empty").write_bytes(b"a\n\nb\n")
    assert words in seglog("erase", directory, *(a.format(tmp_path) for a in arguments), status=2).stderr


def test_the_proof_names_no_key(tmp_path):
    directory = written(tmp_path / "logs/orders-0")
    erase(directory, [b"user-1"], tmp_path / "backups", fs=UnsyncedFs())
    proof = (directory / PROOF_FILE).read_text()
    assert "user-1" not in proof
    assert json.loads(proof)["left_out"] == ["11 records of 1 erased keys"]
