"""Directories of every format as messages with tags, and back: all golden logs, what is lost, what stays with a log."""
import shutil

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.conversion.losses import LOSS_KINDS
from seglog.errors import InvalidArgumentError, UnsupportedForMessageFormatError
from seglog.format import names
from seglog.format import plain_tagged as plain_records
from support.command import seglog as run
from support.command import seglog_json
from support.conversion import but_of_compaction
from support.golden import golden_cases, unpack
from support.models import plain_tagged

NOW = 1_700_000_000_000
TAGGED = {"seglog.message.dialect": "tagged"}


def converted(src, dst, to, **more):
    return seglog.convert(src, dst, to=to, **more)


def records(path, **more):
    with seglog.open_partition(path) as partition:
        return [(r.offset, r.key, r.value, r.timestamp) for r in partition.read(**more)]


def golden(name):
    return unpack("kafka") / "cases" / name / f"{name}-0"


@pytest.fixture
def work(in_memory):
    return in_memory


def test_every_golden_log_comes_back_from_tags_with_the_same_records(work):
    seen = 0
    for case in golden_cases():
        source, steps = case / f"{case.name}-0", [work / f"{name}-0" for name in ("a", "b")]
        before = records(source)
        plan = seglog.plan_conversion(source, steps[0], to="tagged", allow_lossy=LOSS_KINDS, aborted="keep")
        assert plan.run().proof.holds
        converted(steps[0], steps[1], 2)
        for step in steps:
            assert records(step) == before, (case.name, step.name)
        reported = seglog.verify(steps[0], level="deep")
        assert not but_of_compaction(reported.findings), (case.name, reported.findings)
        plain = [m for log in names.log_files(steps[0]) for m in plain_tagged.records(log.read_bytes())]
        assert [(o, k, v, t) for o, t, k, v in plain] == before
        for step in steps:
            shutil.rmtree(step)
        seen += 1
    assert seen > 20


@pytest.mark.parametrize("to", [0, 1])
@pytest.mark.parametrize("name", ["v1-gzip-ct-k411", "v0-lz4-ct-k411", "v2-none-ct-k411"])
def test_down_to_the_old_formats(work, name, to):
    source = golden(name)
    converted(source, work / "tagged-0", "tagged", allow_lossy=LOSS_KINDS)
    converted(work / "tagged-0", work / "old-0", to, allow_lossy=LOSS_KINDS)
    before = records(source)
    assert records(work / "old-0") == [(*r[:3], -1 if to == 0 else r[3]) for r in before]
    assert seglog.verify(work / "old-0").ok


def test_the_source_says_what_is_lost_and_nothing_is_written_without_leave(work):
    path = work / "rich-0"
    with seglog.open(path, clock=ManualClock(NOW)) as log:
        log.append(b"v", headers=[("a", b"1"), ("seglog.tag.100", b"any"), ("b", None)])
        producer = log.producer(7)
        for end in (producer.commit, producer.abort):
            producer.begin()
            producer.append(b"of a transaction")
            end()
    plan = seglog.plan_conversion(path, to="tagged")
    assert (plan.losses.headers, plan.losses.control_batches, plan.losses.producer_batches) == (2, 0, 2)
    assert plan.losses.aborted_records == 1
    with pytest.raises(UnsupportedForMessageFormatError, match="tagged cannot store 2 headers"):
        seglog.plan_conversion(path, work / "tagged-0", to="tagged")
    assert not (work / "tagged-0").exists()
    with pytest.raises(InvalidArgumentError, match="would look committed"):
        seglog.plan_conversion(path, work / "tagged-0", to="tagged", allow_lossy=LOSS_KINDS)
    converted(path, work / "tagged-0", "tagged", allow_lossy=LOSS_KINDS, aborted="drop")
    kept = [(0, None, b"v", NOW), (1, None, b"of a transaction", NOW)]
    assert records(work / "tagged-0") == kept
    with seglog.open_partition(work / "tagged-0") as partition:
        raw = b"".join(log.read_bytes() for log in names.log_files(partition.path))
    assert [message.attributes & 15 for message in plain_tagged.parse(raw)] == [0, 0, 10, 11]
    converted(work / "tagged-0", work / "back-0", 2)
    with seglog.open_partition(work / "back-0") as back:
        found = list(back.read())
        assert [(r.offset, r.key, r.value, r.timestamp) for r in found] == kept
        assert found[0].headers == (("seglog.tag.100", b"any"),)
        assert [(b.is_control, b.producer_id) for b in back.batches()] == [
            (False, -1), (False, -1), (True, -1), (True, -1)]


@pytest.fixture
def foreign(work):
    """What another program may have written: control messages of all four kinds, tags that nobody knows, and none."""
    path = work / "foreign-0"
    raw = plain_tagged.message(0, b"k", b"v", seconds=NOW // 1000, tags=[(0, NOW), (5, 7), (100, b"abc")])
    for offset, kind in enumerate((8, 9, 10, 11), 1):
        raw += plain_tagged.message(offset, b"\0\0\0\1", b"\0\0\0\0\0\0", attributes=kind, seconds=NOW // 1000)
    inner = [plain_tagged.message(n, b"k", b"i%d" % n, seconds=NOW // 1000) for n in (0, 2)]
    raw += plain_tagged.wrapper(10, 1, inner, seconds=NOW // 1000)
    with seglog.open(path, clock=ManualClock(NOW), config=TAGGED) as log:
        log.append_batch(raw, assign_offsets=False)
    return path


def test_what_others_wrote_is_read_and_what_is_lost_of_it_is_counted(work, foreign):
    kept = [(0, b"k", b"v", NOW), (10, b"k", b"i0", NOW), (12, b"k", b"i2", NOW)]
    assert records(foreign) == kept
    assert seglog.plan_conversion(foreign, to=2).losses.control_batches == 2
    below = seglog.plan_conversion(foreign, to=1).losses
    assert (below.control_batches, below.headers) == (4, 2)
    with pytest.raises(UnsupportedForMessageFormatError, match="2 control batches"):
        seglog.plan_conversion(foreign, work / "b-0", to=2)
    converted(foreign, work / "b-0", 2, allow_lossy=LOSS_KINDS)
    assert records(work / "b-0") == kept
    converted(work / "b-0", work / "c-0", "tagged")
    assert records(work / "c-0") == kept
    (first, *_) = plain_tagged.parse(names.log_files(work / "c-0")[0].read_bytes())
    assert {tag: first.tags[tag] for tag in (5, 100)} == {5: 7, 100: b"abc"}
    with seglog.open_partition(foreign) as partition:
        list(partition.read())
        assert partition.segments[0]._tag_defaults.counts == {0: 5, 32: 1, 64: 1, 65: 1, 66: 1}


def test_the_dialect_is_the_result_s_and_other_settings_stay(work):
    with seglog.open(work / "a-0", config={"message.format.version": 1}) as log:
        log.append(b"v")
        log.configure({"segment.ms": 1000})
    converted(work / "a-0", work / "b-0", "tagged")
    with seglog.open(work / "b-0") as log:
        assert (log._dialect.name, log.config.segment_ms, log.config.message_format_version) == ("tagged", 1000, None)
        log.append(b"w")
    converted(work / "b-0", work / "c-0", 2)
    with seglog.open(work / "c-0") as log:
        assert (log._dialect.name, log.config.segment_ms) == ("kafka", 1000)
        assert [r.value for r in log.read()] == [b"v", b"w"]


def test_a_dry_run_forecasts_and_a_second_run_is_another_name(work):
    plan = seglog.plan_conversion(golden("v2-none-ct-k411"), to="tagged", allow_lossy=LOSS_KINDS)
    result = converted(golden("v2-none-ct-k411"), work / "b-0", "tagged", allow_lossy=LOSS_KINDS)
    assert plan.forecast_bytes == result.size_bytes
    assert plan.target is None
    assert seglog.plan_conversion(work / "b-0", to="tagged").changes_nothing


def test_on_the_command_line_a_partition_and_a_log_dir(work):
    data = work / "data"
    data.mkdir()
    for name in ("v2-none-ct-k411", "v1-gzip-ct-k411"):
        shutil.copytree(golden(name), data / f"{name}-0")
    source = data / "v1-gzip-ct-k411-0"
    assert "as tagged" in run("convert", source, work / "t-0", "--to", "tagged").stdout
    assert records(work / "t-0") == records(source)
    rows = seglog_json("convert", data, work / "tagged", "--to", "tagged", "--allow-lossy", ",".join(LOSS_KINDS))
    assert rows[-1]["type"] == "summary"
    for name in ("v2-none-ct-k411", "v1-gzip-ct-k411"):
        assert records(work / "tagged" / f"{name}-0") == records(data / f"{name}-0")
    again = run(
        "convert", data, work / "tagged", "--to", "tagged", "--allow-lossy", ",".join(LOSS_KINDS), "--resume"
    ).stdout
    assert "2 skipped" in again
    run("convert", source, work / "x-0", "--to", "tags", status=2)


@pytest.mark.parametrize("name", ["v1-gzip-ct-k411", "v0-lz4-ct-k411", "v2-none-ct-k411"])
def test_plain_python_proves_it_again_and_reads_the_result_alike(work, name):
    tagged = converted(golden(name), work / "a-0", "tagged", allow_lossy=LOSS_KINDS, proof="independent")
    back = converted(work / "a-0", work / "b-0", 2, proof="independent")
    assert min(tagged.proven_again, back.proven_again) > 0
    report = seglog.verify(work / "a-0", level="deep", witness_every=1)
    assert (report.findings, report.witnessed) == ([], report.segments)


def test_the_witness_is_another_reader(work, foreign, monkeypatch):
    assert "witness_differs" not in {f.code for f in seglog.verify(foreign, witness_every=1).findings}
    read = plain_records._message
    monkeypatch.setattr(plain_records, "_message", lambda raw: (read(raw)[0]._replace(key=b"other"), *read(raw)[1:]))
    assert "witness_differs" in {f.code for f in seglog.verify(foreign, witness_every=1).findings}


def test_in_place_and_the_way_back(work):
    data, backup = work / "data", work / "backup"
    data.mkdir()
    backup.mkdir()
    path = shutil.copytree(golden("v1-gzip-ct-k411"), data / "orders-0")
    before = records(path)
    run("convert", path, "--in-place", "--apply", "--backup", backup, "--to", "tagged")
    assert names.log_files(path)[0].suffix == ".tlog"
    assert records(path) == before
    run("convert", path, "--rollback", "--backup", backup)
    assert names.log_files(path)[0].suffix == ".log"
    assert records(path) == before
