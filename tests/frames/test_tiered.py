"""Topics in a broker's tier as tables: objects that Aiven's plug-in wrote give the rows of the partitions it copied."""
import datetime as dt
import json
import pickle
import shutil

import pytest

import seglog
from seglog.errors import CorruptManifestError, CorruptRecordError, EncryptedPayloadError, NotALogError
from seglog.frames.bounds import Bounds
from support.golden import golden_cases, unpack
from support.objects_on_disk import ObjectsOnDisk, count_parts

TOPICS = ("rollms-v2-k411", "txn-v2-k411", "v1-none-ct-k411")
PLACES = {"plain": "", "compressed": "tier/"}


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """s3://bucket: what the plug-in wrote, in a directory for each of its settings."""
    ObjectsOnDisk(tmp_path, monkeypatch).bucket("bucket")
    shutil.copytree(unpack("tiered"), tmp_path / "bucket", dirs_exist_ok=True)
    return tmp_path / "bucket"


@pytest.fixture
def came(monkeypatch):
    """{path: bytes that came by ranges}"""
    return count_parts(monkeypatch)


def original(topic):
    (case,) = (case for case in golden_cases() if case.name == topic)
    return case / f"{topic}-0"


def directory(bucket, setting, topic):
    (found,) = (bucket / setting / PLACES.get(setting, "")).glob(f"{topic}-*")
    return found


def url(bucket, path):
    return f"s3://bucket/{path.relative_to(bucket)}"


@pytest.mark.parametrize("setting", PLACES)
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_rows_of_the_partition_that_was_copied(bucket, setting, topic, isolation):
    there = url(bucket, directory(bucket, setting, topic))
    here = seglog.scan(original(topic), isolation=isolation, include_headers=True)
    whole = here.to_arrow()
    scan = seglog.scan(there, isolation=isolation, include_headers=True)
    assert scan.to_arrow() == whole
    assert pickle.loads(pickle.dumps(scan)).to_arrow() == whole
    assert seglog.scan(f"{there}/0", isolation=isolation, include_headers=True).to_arrow() == whole
    offsets = whole["offset"].to_pylist()
    for first in range(0, len(offsets), 7):
        bounds = Bounds(from_offset=offsets[first], to_offset=offsets[first] + 9)
        assert scan._narrowed(bounds).to_arrow() == here._narrowed(bounds).to_arrow()
    times = [time for time in whole["timestamp"].to_pylist() if time is not None]
    for time in times[::9]:
        narrow = {"since": time, "until": time + dt.timedelta(seconds=2), "isolation": isolation}
        assert seglog.scan(there, **narrow).to_arrow() == seglog.scan(original(topic), **narrow).to_arrow()


@pytest.mark.parametrize("setting", PLACES)
def test_all_topics_of_a_tier_and_patterns_of_them(bucket, setting):
    top = url(bucket, directory(bucket, setting, TOPICS[0]).parent)
    expected = seglog.scan([original(topic) for topic in TOPICS], columns=["topic", "partition", "offset"]).to_arrow()
    assert seglog.scan(top, columns=["topic", "partition", "offset"]).to_arrow() == expected
    assert set(seglog.scan(f"{top}/*-v2-*", columns=["topic"]).to_arrow()["topic"].to_pylist()) == {*TOPICS[:2]}


def test_a_window_fetches_chunks_and_not_segments(bucket, came):
    there = url(bucket, directory(bucket, "compressed", "v1-none-ct-k411"))
    found = seglog.scan(there, from_offset=70, to_offset=75, columns=["offset"]).to_arrow()
    assert found["offset"].to_pylist() == [*range(70, 75)]
    logs = {path: size for path, size in came.items() if path.endswith(".log")}
    assert len(logs) == 1
    stored = directory(bucket, "compressed", "v1-none-ct-k411") / "0"
    assert sum(logs.values()) < 0.5 * max(path.stat().st_size for path in stored.glob("*65-*.log"))


def test_segments_of_two_leaders_overlap_and_each_record_is_read_once(bucket):
    """Each copied the log as it had rolled it: what one segment holds whole is passed over, the rest is cut."""
    there = url(bucket, directory(bucket, "leaders", "moved"))
    found = seglog.scan(there).to_arrow()
    assert found["offset"].to_pylist() == [*range(300)]
    assert found["key"].to_pylist() == [b"%d" % n for n in range(300)]
    for start in range(0, 300, 11):
        found = seglog.scan(there, from_offset=start, to_offset=start + 13, columns=["offset"]).to_arrow()
        assert found["offset"].to_pylist() == [*range(start, min(start + 13, 300))]


def test_what_has_no_manifest_is_not_there(bucket):
    """A copy that did not end, and one whose deletion has begun."""
    stored = directory(bucket, "plain", "rollms-v2-k411") / "0"
    last = max(stored.glob("*.rsm-manifest"))
    last.unlink()
    found = seglog.scan(url(bucket, stored), columns=["offset"]).to_arrow()["offset"].to_pylist()
    assert found == [n for n in seglog.scan(original("rollms-v2-k411")).to_arrow()["offset"].to_pylist() if n < 38]
    for path in stored.glob("*.rsm-manifest"):
        path.unlink()
    with pytest.raises(NotALogError, match="no segment"):
        seglog.scan(url(bucket, stored)).to_arrow()


def test_an_encrypted_segment_names_its_manifest(bucket):
    with pytest.raises(EncryptedPayloadError, match="only the brokers have the key") as caught:
        seglog.scan("s3://bucket/encrypted").to_arrow()
    assert caught.value.file.endswith(".rsm-manifest")


@pytest.mark.parametrize("setting", PLACES)
def test_damage_is_an_error_that_names_the_object_or_the_segment(bucket, setting):
    stored = directory(bucket, setting, "v1-none-ct-k411") / "0"
    log = min(stored.glob("*.log"))
    whole = log.read_bytes()
    for at in (100, len(whole) // 2, len(whole) - 20):
        raw = bytearray(whole)
        raw[at] ^= 0x41
        log.write_bytes(raw)
        with pytest.raises((CorruptManifestError, CorruptRecordError)) as caught:
            seglog.scan(url(bucket, stored)).to_arrow()
        assert caught.value.file in (url(bucket, log), f"{url(bucket, stored)}/00000000000000000000.log")
    log.write_bytes(whole[:-30])
    with pytest.raises(seglog.SeglogError):
        seglog.scan(url(bucket, stored)).to_arrow()


def test_a_manifest_of_another_segment_is_refused(bucket):
    stored = directory(bucket, "plain", "rollms-v2-k411") / "0"
    first, second = sorted(stored.glob("*.rsm-manifest"))[:2]
    first.write_bytes(second.read_bytes())
    with pytest.raises(CorruptManifestError, match="begins at 12"):
        seglog.scan(url(bucket, stored)).to_arrow()


def test_names_that_are_no_tier_are_passed_over(bucket):
    (bucket / "plain/notes").mkdir()
    (bucket / "plain/notes/readme").write_bytes(b"x")
    stored = directory(bucket, "plain", "rollms-v2-k411")
    for name in ("x", "-1", "00", "99999999999"):
        (stored / name).mkdir()
        (stored / name / "file").write_bytes(b"x")
    (stored / "0/00000000000000000000-short.rsm-manifest").write_bytes(json.dumps({}).encode())
    assert set(seglog.scan("s3://bucket/plain", columns=["topic"]).to_arrow()["topic"].to_pylist()) == {*TOPICS}
