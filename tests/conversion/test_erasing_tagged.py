"""Records of some keys erased from logs of messages with tags: all other messages keep their bytes and offsets."""
import errno
import os
from collections import Counter

import pytest

import seglog as engine
from seglog.clock import ManualClock
from seglog.conversion.erasing import erase, plan_erasure
from seglog.conversion.in_place import is_converted, roll_back
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.errors import InvalidArgumentError, StorageError
from seglog.format import names
from support.command import seglog, seglog_json
from support.conversion import UnsyncedFs
from support.faultfs import FailingFs, RecordingFs
from support.models import plain_tagged
from support.models.tagged_author import Author

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
NOW = 1_700_000_000_000
CONFIG = {"seglog.message.dialect": "tagged", "segment.bytes": 3000, "index.interval.bytes": 200}


def written(path, messages):
    with engine.open(path, config=CONFIG, fsync="never", clock=ManualClock(NOW)) as log:
        for raw in messages:
            log.append_batch(raw, assign_offsets=False)
    return path


def some_messages(seed, count=150):
    """Of every shape; the last one is of a key that nobody erases."""
    author = Author(seed)
    return [*(author.next() for _ in range(count)), plain_tagged.message(author.end, b"the last", b"1", seconds=1)]


def stored(path):
    return [one for log in names.log_files(path) for one in plain_tagged.parse(log.read_bytes())]


def parts(messages):
    """(offset, bytes behind it, key) of every message, sets opened."""
    return [part for outer in messages for part in plain_tagged.parts_of(outer)]


def contents(path):
    """Without the proof, in which paths stand, and what each opening writes."""
    ours = (PROOF_FILE, ".seglog.lock", ".seglog.live")
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name not in ours}


@pytest.mark.parametrize("seed", range(60 if FULL else 4))
def test_what_stays_is_what_a_model_leaves_with_all_tags(in_memory, seed):
    """Sets with holes, with and without each tag, unknown tags, control messages, in several segments."""
    path = written(in_memory / "logs/orders-0", some_messages(seed))
    before = stored(path)
    counted = Counter(key for _, _, key in parts(before) if key is not None).most_common()
    keys = {key for key, _ in counted[: 1 + seed % 4]}
    left = [part for part in parts(before) if part[2] is None or part[2] not in keys]
    old = contents(path)
    plan = plan_erasure(path, keys, in_memory / "backups", config={"segment.bytes": 3000}, fs=UnsyncedFs())
    assert plan.losses.erased_records == len(parts(before)) - len(left) > 5
    result = plan.run()
    assert result.proof.holds
    assert not plan.left_behind
    after = stored(path)
    assert parts(after) == left
    untouched = {outer.raw for outer in before if not keys & {key for _, _, key in plain_tagged.parts_of(outer)}}
    assert untouched <= {outer.raw for outer in after}
    with engine.open_partition(path) as partition:
        assert partition.log_end_offset == before[-1].offset + 1
        found = [(r.offset, r.key) for r in partition.read()]
        assert found == [(r[0], r[2]) for r in plain_tagged.records(b"".join(outer.raw for outer in after))]
        for offset, key in found[::11]:
            assert partition[offset].key == key
    assert contents(path)[".seglog.config"] == old[".seglog.config"]
    assert not [name for name in contents(path) if name.endswith((".snapshot", ".log", ".index"))]
    report = engine.verify(path, level="deep", witness_every=1)
    assert report.ok
    # (The author leaves tags out, and what was erased leaves gaps.)
    assert {finding.code for finding in report.findings} <= {"tags_missing", "segment_gap_compacted"}
    with engine.open(path, fsync="never", clock=ManualClock(NOW)) as log:
        assert log.append(b"more", key=b"a") == before[-1].offset + 1
    assert Proof.read(path / PROOF_FILE).left_out == (
        f"{plan.losses.erased_records} records of {len(keys)} erased keys",)


def test_a_set_that_loses_its_last_messages_still_reaches_as_far(in_memory):
    """Also one that did not say it: then tag 33 does, so that no offset is given again."""
    some = [plain_tagged.message(n, key, b"v", seconds=1) for n, key in enumerate([b"a", b"b", b"secret", b"secret"])]
    path = written(in_memory / "logs/orders-0", [plain_tagged.wrapper(0, 1, some)])
    erase(path, [b"secret"], in_memory / "backups", fs=UnsyncedFs())
    outer, = stored(path)
    assert (outer.offset, outer.tags[32], outer.tags[33]) == (0, 2, 3)
    with engine.open(path, fsync="never") as log:
        assert log.append(b"more", key=b"c") == 4


def test_the_epochs_of_its_leaders_stay_and_there_are_no_producers(in_memory):
    path = in_memory / "logs/orders-0"
    with engine.open(path, config=CONFIG, fsync="never") as log:
        for n in range(200):
            log.append(b"%d" % n, key=b"key %d" % (n % 7))
    before = contents(path)
    plan = plan_erasure(path, [b"key 2"], in_memory / "backups", config={"segment.bytes": 3000}, fs=UnsyncedFs())
    assert not plan.left_behind
    assert not plan.run().notes
    after = contents(path)
    assert after["leader-epoch-checkpoint"] == before["leader-epoch-checkpoint"]
    assert after.keys() == before.keys()


def test_the_last_messages_are_refused_for_their_offsets_would_be_given_again(in_memory):
    path = written(in_memory / "logs/orders-0", [
        plain_tagged.message(0, b"a", b"1", seconds=1), plain_tagged.message(1, b"b", b"2", seconds=1)])
    before = contents(path)
    with pytest.raises(InvalidArgumentError, match=r"from offset 1 on.*offsets would be assigned again"):
        plan_erasure(path, [b"b"], in_memory / "backups")
    assert contents(path) == before


def test_a_segment_may_lose_everything(in_memory):
    mine = [plain_tagged.message(n, b"secret", b"v" * 400, seconds=1) for n in range(20)]
    path = written(in_memory / "logs/orders-0", [*mine, plain_tagged.message(20, b"b", b"2", seconds=1)])
    assert len(names.log_files(path)) > 2
    erase(path, [b"secret"], in_memory / "backups", config={"segment.bytes": 3000}, fs=UnsyncedFs())
    with engine.open(path, fsync="never") as log:
        assert [(r.offset, r.key) for r in log.read()] == [(20, b"b")]
        assert log.append(b"more") == 21
    found = {f.code for f in engine.verify(path, level="deep", witness_every=1).findings}
    assert found == {"tags_missing", "segment_gap_compacted"}


def test_the_command_erases_and_brings_back(in_memory):
    path = written(in_memory / "logs/orders-0", some_messages(3))
    before = contents(path)
    partition, _ = seglog_json("erase", path, "--key", "key 1", status=1)
    assert partition["status"] == "planned"
    assert partition["erased_records"] > 0
    assert partition["bytes_out"] < partition["bytes_in"]
    assert contents(path) == before
    said = seglog("erase", path, "--key", "of nobody", "--apply", "--backup", in_memory / "others").stdout
    assert "nothing was changed" in said
    assert contents(path) == before
    done, _ = seglog_json("erase", path, "--key", "key 1", "--apply", "--backup", in_memory / "backups")
    assert (done["status"], done["bytes_out"]) == ("erased", partition["bytes_out"])
    assert b"key 1" not in {key for _, _, key in parts(stored(path))}
    assert contents(in_memory / "backups/orders-0") == before
    seglog("erase", in_memory / "logs", "--rollback", "--backup", in_memory / "backups")
    assert contents(path) == before


def test_a_log_dir_may_hold_both_dialects(in_memory):
    with engine.open(in_memory / "logs/orders-0", fsync="never") as log:
        log.append_many([(b"key 1", b"1"), (b"key 2", b"2")])
    path = written(in_memory / "logs/orders-1", some_messages(4))
    *rows, summary = seglog_json(
        "erase", in_memory / "logs", "--key", "key 1", "--apply", "--backup", in_memory / "backups")
    assert [(row["partition"], row["status"]) for row in rows] == [("orders-0", "erased"), ("orders-1", "erased")]
    assert summary["failed"] == 0
    assert rows[0]["erased_records"] == 1
    assert b"key 1" not in {key for _, _, key in parts(stored(path))}
    with engine.open_partition(in_memory / "logs/orders-0") as partition:
        assert [r.key for r in partition.read()] == [b"key 2"]


def test_whatever_a_crash_leaves_is_the_old_log_or_the_new_one(in_memory):
    disk = in_memory / "disk"
    path = written(disk / "logs/orders-0", some_messages(5, 40))
    old = contents(path)

    def run(place, fs):
        erase(place / "logs/orders-0", [b"key 1", b"key 2"], place / "backups", fs=fs)

    recording = RecordingFs(disk, UnsyncedFs())
    run(disk, recording)
    recording.mark("returned")
    new = contents(path)
    assert new != old
    seen = Counter()
    for state in recording.crash_states(limit=4000 if FULL else 100, seed=17):
        with state.materialise() as place:
            stands = is_converted(place / "logs/orders-0", place / "backups", fs=UnsyncedFs())
            assert contents(place / "logs/orders-0") == (new if stands else old), state.story()
            assert stands or not state.marks, state.story()
            seen[stands] += 1
            if not stands and seen[False] % 4:
                continue
            if not stands:
                run(place, UnsyncedFs())
                assert contents(place / "logs/orders-0") == new
            roll_back(place / "logs/orders-0", place / "backups", fs=UnsyncedFs())
            assert contents(place / "logs/orders-0") == old
    assert min(seen[True], seen[False]) > 2


def test_a_full_disk_at_any_change_leaves_the_old_log(in_memory):
    messages = some_messages(6, 30)
    count = FailingFs(UnsyncedFs())
    whole = written(in_memory / "whole/logs/orders-0", messages)
    erase(whole, [b"key 1"], in_memory / "whole/backups", fs=count)
    new = contents(whole)
    for k in range(0, len(count.calls), 1 if FULL else 5):
        disk = in_memory / str(k)
        path = written(disk / "logs/orders-0", messages)
        old = contents(path)
        fs = FailingFs(UnsyncedFs(), fail_at=k, error=errno.ENOSPC, once=True, short=True)
        try:
            erase(path, [b"key 1"], disk / "backups", fs=fs)
        except StorageError:
            is_done = is_converted(path, disk / "backups", fs=UnsyncedFs())
        else:
            is_done = True
        assert contents(path) == (new if is_done else old)
