"""seglog.time.index.minute.enabled, unset: a new log gets minute indexes, and one that has them keeps them up."""
import shutil

import pytest

import seglog
from seglog.config import LogConfig
from seglog.loading.loader import plan_load
from support.golden import unpack
from support.lookups import offset_at

NOW = 1_700_000_000_000


def fill(log, first=0):
    for n in range(40):
        log.append(b"x" * 300, timestamp=NOW + (first + n) * 20_000)


def minutes(directory):
    return {path.name[:20]: path.read_bytes() for path in directory.glob("*.time.index")}


@pytest.mark.parametrize(("setting", "has_them"), [(None, True), (True, True), (False, False)])
def test_a_new_log(tmp_path, setting, has_them):
    config = {"index.interval.bytes": 100} | ({} if setting is None else {"seglog.time.index.minute.enabled": setting})
    with seglog.open(tmp_path / "new-0", config=config, fsync="never") as log:
        assert log.config.time_index_minute_enabled is has_them
        fill(log)
        log.roll()
        fill(log, 40)
    found = minutes(tmp_path / "new-0")
    assert len(found) == 2 * has_them
    assert all(len(raw) > 12 for raw in found.values())


def test_a_new_log_of_a_log_dir(tmp_path):
    with seglog.open_dir(tmp_path / "logs", fsync="never") as logs:
        fill(logs.log("orders"))
    assert len(minutes(tmp_path / "logs/orders-0")) == 1


def test_an_existing_log_without_them_gets_none_until_it_is_asked(tmp_path):
    directory = tmp_path / "old-0"
    off, unset = {"index.interval.bytes": 100, "seglog.time.index.minute.enabled": False}, {"index.interval.bytes": 100}
    with seglog.open(directory, config=off, fsync="never") as log:
        fill(log)
    with seglog.open(directory, config=unset, fsync="never") as log:
        fill(log, 40)
        log.roll()
        fill(log, 80)
    assert minutes(directory) == {}
    with seglog.open(directory, config=unset | {"seglog.time.index.minute.enabled": True}, fsync="never") as log:
        fill(log, 120)
    assert len(minutes(directory)) == 2
    with seglog.open(directory, config=unset, fsync="never") as log:
        fill(log, 160)
        log.roll()
        fill(log, 200)
    assert len(minutes(directory)) == 3      # kept up
    assert seglog.verify(directory, config=unset).ok
    with seglog.open(directory, config=unset, fsync="never") as log:
        for n in range(0, 240, 7):
            assert offset_at(log, NOW + n * 20_000) == n


def test_a_directory_of_a_broker_stays_without(tmp_path):
    case = unpack("kafka") / "cases/v2-none-ct-k391"
    directory = tmp_path / "broker-0"
    shutil.copytree(case / f"{case.name}-0", directory)
    with seglog.open(directory, fsync="never") as log:
        log.append(b"later")
        log.roll()
        log.append(b"later")
    assert minutes(directory) == {}


def test_a_conversion_of_a_brokers_directory_makes_none(tmp_path):
    case = unpack("kafka") / "cases/v1-none-ct-k391"
    seglog.convert(case / f"{case.name}-0", tmp_path / "converted-0")
    assert minutes(tmp_path / "converted-0") == {}


@pytest.mark.parametrize("to", [1, 2])
def test_a_conversion_carries_those_that_there_are(tmp_path, to):
    config = {"index.interval.bytes": 100}
    with seglog.open(tmp_path / "new-0", config=config, fsync="never") as log:
        fill(log)
        log.roll()
        fill(log, 40)
    plan = seglog.plan_conversion(tmp_path / "new-0", tmp_path / "converted-0", to=to, config=config)
    assert not [name for name in plan.left_behind if name.endswith(".time.index")]
    plan.run()
    assert len(minutes(tmp_path / "converted-0")) == 2
    assert seglog.verify(tmp_path / "converted-0", config=config).ok
    off = config | {"seglog.time.index.minute.enabled": False}
    plan = seglog.plan_conversion(tmp_path / "new-0", tmp_path / "without-0", to=to, config=off)
    assert len([name for name in plan.left_behind if name.endswith(".time.index")]) == 2
    plan.run()
    assert minutes(tmp_path / "without-0") == {}


def test_a_backup_carries_them(tmp_path):
    with seglog.open(tmp_path / "new-0", config={"index.interval.bytes": 100}, fsync="never") as log:
        fill(log)
        log.roll()
        fill(log, 40)
        log.snapshot(tmp_path / "copy-0")
    copied = minutes(tmp_path / "copy-0")
    assert len(copied) == 2
    assert copied == minutes(tmp_path / "new-0")
    assert seglog.verify(tmp_path / "copy-0", config={"index.interval.bytes": 100}).ok


def test_a_log_whose_time_stood_still_is_taken_as_it_was_closed(tmp_path):
    """An entry of the .index came without one of the .timeindex, which has as many by the one at its end: that one has
    no part in the minute index. The log was recovered each time, and forgot producers of before its start."""
    path, config = tmp_path / "orders-0", {"index.interval.bytes": 100}
    with seglog.open(path, config=config, fsync="never") as log:
        for size, minute in ((300, 0), (300, 1), (0, 1), (0, 5)):
            log.append(b"x" * size, timestamp=NOW + minute * 60_000)
    assert [(path / f"{0:020d}{suffix}").stat().st_size for suffix in (".index", ".timeindex")] == [2 * 8, 2 * 12]
    plan = plan_load(path, LogConfig.of(config | {"seglog.time.index.minute.enabled": True}), clean=True)
    assert [segment.check for segment in plan.segments] == [None]
