"""What goes by itself and what a conversion would cost, found beside a running broker."""
import dataclasses
import os
import shutil

import pytest

from seglog.conversion.directory import plan_conversion
from seglog.conversion.upgrade_plan import TopicPolicy, plan_upgrade, policies
from seglog.errors import InvalidConfigError
from seglog.fs.lock import lock_log_dir
from seglog.reading.partition import Partition
from seglog.state.checkpoints import format_offset_checkpoint
from support.conversion import UnsyncedFs, source_of, tree
from support.golden import golden_cases

CASES = {case.name: case for case in golden_cases()}
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


def add(logs, name, case):
    return shutil.copytree(source_of(CASES[case]), logs / name)


def plan(logs, policy=None, **options):
    return {row.partition: row for row in plan_upgrade(logs, lambda topic: policy or TopicPolicy(), **options)}


@pytest.mark.parametrize("case", ["v0-none-ct-k391", "v1-lz4-ct-k282", "mixed-formats-k282", "v2-none-ct-k411"])
def test_old_bytes_and_the_forecast_are_those_of_the_conversion(logs, case):
    add(logs, "orders-0", case)
    row = plan(logs)["orders-0"]
    conversion = plan_conversion(logs / "orders-0", fs=UnsyncedFs())
    old = sum(f.size_bytes for s in conversion.segments for f in s.formats if f.magic < 2)
    assert (row.old_bytes, sum(row.bytes_of)) == (old, conversion.size_bytes)
    assert row.segments == len(conversion.segments)
    assert row.old_segments == sum(any(f.magic < 2 for f in s.formats) for s in conversion.segments)
    if old:
        assert (row.forecast_bytes, row.forecast_is_exact) == (conversion.forecast_bytes, True)
        assert row.convert_seconds > 0
    else:
        assert (row.verdict, row.forecast_bytes, row.convert_seconds) == ("nothing", None, None)


def test_retention_by_time_waits_for_the_newest_record_before_the_last_old_segment(logs):
    add(logs, "orders-0", "v1-none-ct-k391")
    with Partition(logs / "orders-0") as partition:
        newest = max(record.timestamp for record in partition._records_in_files(0))
    row = plan(logs, TopicPolicy("delete", retention_ms=DAY_MS))["orders-0"]
    assert (row.verdict, row.gone_ms, row.gone_after_bytes) == ("retention", newest + DAY_MS, None)
    kept = plan(logs, TopicPolicy("delete", retention_ms=-1))["orders-0"]
    assert (kept.verdict, kept.gone_ms) == ("stays", None)


def test_v0_is_as_old_as_its_file(logs):
    add(logs, "orders-0", "v0-none-ct-k391")
    for n, log in enumerate(sorted((logs / "orders-0").glob("*.log"))):
        os.utime(log, ns=(0, (1_000_000 + n) * 1_000_000))
    row = plan(logs, TopicPolicy("delete", retention_ms=DAY_MS))["orders-0"]
    assert row.gone_ms == 1_000_000 + n + DAY_MS


def test_retention_by_size_waits_for_what_is_written_behind_the_last_old_segment(logs):
    add(logs, "orders-0", "mixed-formats-k282")
    *_, last = sorted((logs / "orders-0").glob("*.log"))
    size = last.stat().st_size          # of v2 alone
    policy = TopicPolicy("delete", retention_ms=-1, retention_bytes=10_000)
    assert plan(logs, policy)["orders-0"].gone_after_bytes == 10_000 - size
    assert plan(logs, dataclasses.replace(policy, retention_bytes=size))["orders-0"].gone_after_bytes == 0


def test_a_compacted_topic_waits_for_the_cleaner(logs):
    add(logs, "orders-0", "v1-none-ct-k391")
    first, _ = sorted((logs / "orders-0").glob("*.log"))
    row = plan(logs, TopicPolicy("compact"))["orders-0"]
    assert (row.verdict, row.dirty_ratio, row.gone_ms) == ("compaction", 1.0, None)
    assert row.active_old_bytes == row.old_bytes - first.stat().st_size
    (logs / "cleaner-offset-checkpoint").write_bytes(format_offset_checkpoint({("orders", 0): 70}))
    # The cleaner has been here: nobody need say that the topic is compacted.
    row = plan(logs)["orders-0"]
    assert (row.policy.cleanup_policy, row.verdict, row.dirty_ratio) == ("compact", "compaction", 0.0)
    both = plan(logs, TopicPolicy("compact,delete", retention_ms=DAY_MS))["orders-0"]
    assert both.verdict == "retention"


def test_the_brokers_own_topics_are_compacted(logs):
    add(logs, "__consumer_offsets-3", "v1-none-ct-k391")
    add(logs, "orders-0", "v1-none-ct-k391")
    rows = plan(logs)
    assert [row.policy.cleanup_policy for row in rows.values()] == ["compact", "delete"]


def test_nothing_changes_and_a_broker_s_lock_is_no_matter(logs):
    add(logs, "orders-0", "mixed-formats-k282")
    with lock_log_dir(UnsyncedFs(), logs):
        before = tree(logs)
        assert plan(logs)["orders-0"].old_bytes
        assert tree(logs) == before


def test_a_segment_that_the_broker_deletes_meanwhile_is_left_out(logs):
    add(logs, "orders-0", "v1-none-ct-k391")
    first, last = sorted((logs / "orders-0").glob("*.log"))
    size = last.stat().st_size
    rows = plan_upgrade(logs, progress=lambda partition: first.unlink() or (lambda done, total: None))
    row, = rows
    assert (row.segments, row.old_bytes) == (1, size)


def test_damage_is_told_and_passed_over(logs):
    add(logs, "orders-0", "v1-none-ct-k391")
    log = min((logs / "orders-0").glob("*.log"))
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    assert plan(logs)["orders-0"].damaged


# --- how long topics keep their data ---------------------------------------------------------------


def test_settings_of_a_topic_go_before_those_of_all():
    policy_of = policies(
        {"retention.ms": "1000"}, [("orders*", "retention.ms", "-1"), ("orders-eu", "cleanup.policy", "compact")]
    )
    assert policy_of("payments") == TopicPolicy("", 1000)
    assert policy_of("orders") == TopicPolicy("", -1)
    assert policy_of("orders-eu") == TopicPolicy("compact", -1)


@pytest.mark.parametrize(
    "wrong", [{"retention.hours": "1"}, {"retention.ms": "soon"}, {"cleanup.policy": "keep"}, {"retention.bytes": "x"}]
)
def test_what_no_topic_has_is_refused(wrong):
    with pytest.raises(InvalidConfigError):
        policies(wrong, [])
    with pytest.raises(InvalidConfigError):
        policies({}, [("*", *next(iter(wrong.items())))])
