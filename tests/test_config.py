"""Configuration keys: Kafka's names and limits, given the ways that people give them."""
import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog.config import OTHER_TOPIC_SETTINGS, LogConfig, parse_bytes
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.endpoint.settings import ServerConfig
from seglog.errors import InvalidConfigError
from seglog.format.compression import _LEVELS
from seglog.ledger.config import ManagedLedgerConfig
from seglog.upkeep.cleaner_config import CleanerConfig


def test_the_defaults_are_kafkas_but_for_flush_ms():
    never = 2**63 - 1
    assert dict(LogConfig().items()) == {
        "segment.bytes": 1073741824,
        "segment.index.bytes": 10485760,
        "index.interval.bytes": 4096,
        "max.message.bytes": 1048588,
        "max.decompressed.message.bytes": 67108864,
        "message.timestamp.type": "CreateTime",
        "compression.gzip.level": -1,
        "compression.lz4.level": 9,
        "compression.zstd.level": 3,
        "compression.type": "producer",
        "cleanup.policy": "delete",
        "segment.ms": 604800000,
        "segment.jitter.ms": 0,
        "message.timestamp.before.max.ms": never,
        "message.timestamp.after.max.ms": 3600000,
        "flush.messages": never,
        "producer.id.expiration.ms": 86400000,
        "transaction.max.timeout.ms": 900000,
        "num.recovery.threads.per.data.dir": 2,
        "retention.bytes": -1,
        "file.delete.delay.ms": 60000,
        "min.cleanable.dirty.ratio": 0.5,
        "min.compaction.lag.ms": 0,
        "max.compaction.lag.ms": never,
        "delete.retention.ms": 86400000,
        # Ours, or ours in value: one copy of the data, which no replica holds too.
        "flush.ms": 1000,
        "linger.ms": 0,
        "seglog.linger.bytes": 16384,
        "seglog.segment.idle.roll": False,
        "seglog.time.index.minute.enabled": None,
        "seglog.time.index.ranges.enabled": False,
        "seglog.recovery.mode": "fail",
        "retention.ms": -1,
        "seglog.retention.granularity": "segment",
        "seglog.retention.head.rewrite.ratio": 0.5,
        "seglog.retention.ignore.future.timestamps": False,
        "seglog.retention.respect.cursors": False,
        "seglog.message.dialect": "kafka",
        "seglog.message.tagged.timestamp.ms": True,
        "message.format.version": None,
        "seglog.compaction.upgrade.format": False,
        "seglog.compaction.merge.bytes": 0,
        "seglog.cleaner.dedupe.exact": "uncompressed",
        "message.downconversion.enable": True,
        "seglog.timestamp.check": True,
    }


@pytest.mark.parametrize(("value", "meant"), [(True, True), ("false", False), (" TRUE ", True)])
def test_a_truth_value_may_be_text(value, meant):
    assert LogConfig.of({"seglog.segment.idle.roll": value}).segment_idle_roll is meant


@pytest.mark.parametrize("value", [1, 0, "yes", "", None])
def test_nothing_else_is_a_truth_value(value):
    with pytest.raises(InvalidConfigError, match="true or false"):
        LogConfig.of({"seglog.segment.idle.roll": value})


@pytest.mark.parametrize(("value", "meant"), [(0, 0), (1, 1), (0.25, 0.25), ("0.25", 0.25), (" .5 ", 0.5)])
def test_a_ratio_is_a_fraction_of_one(value, meant):
    assert LogConfig.of({"seglog.retention.head.rewrite.ratio": value}).retention_head_rewrite_ratio == meant


@pytest.mark.parametrize("value", [1.5, -1, "1.01", True, "half", "1e-1", None, float("nan")])
def test_nothing_else_is_a_ratio(value):
    with pytest.raises(InvalidConfigError, match="0 to 1"):
        LogConfig.of({"seglog.retention.head.rewrite.ratio": value})


@pytest.mark.parametrize("key", ["segment.bytes", "segment_bytes", " segment.bytes "])
@pytest.mark.parametrize("value", [67108864, "67108864", "64MiB", "64 mb", "64m", "65536K", "0.0625GiB", "67_108_864"])
def test_keys_are_dotted_or_underscored_and_values_may_have_units(key, value):
    assert LogConfig.of({key: value}).segment_bytes == 64 << 20


@pytest.mark.parametrize("value", [
    604800000, "604800000", "7d", "1w", " 6d24h ", "168h", timedelta(days=7), timedelta(days=7, microseconds=-1),
])
def test_a_time_may_have_units_or_be_a_timedelta(value):
    assert LogConfig.of({"retention.ms": value}).retention_ms == 604_800_000


@pytest.mark.parametrize("value", ["7 days", "1.5h", "d", "7D", "-7d", 1.5, True, timedelta(days=-7), "", None, b"7d"])
def test_what_is_no_time_is_refused_with_examples(value):
    with pytest.raises(InvalidConfigError, match=r"retention\.ms must be -1 or "):
        LogConfig.of({"retention.ms": value})


def test_a_time_with_a_unit_is_kept_in_milliseconds(tmp_path):
    with seglog.open(tmp_path / "orders-0", config={"segment.ms": timedelta(days=1)}) as log:
        log.configure({"retention.ms": "7d"})
    with seglog.open(tmp_path / "orders-0") as log:
        assert log.settings["retention.ms"].value == 604_800_000


def test_a_configuration_is_frozen_and_its_items_make_it_again():
    config = LogConfig.of({"index.interval.bytes": 0, "message.timestamp.type": "LogAppendTime"})
    assert LogConfig.of(dict(config.items())) == config
    with pytest.raises(AttributeError, match="frozen"):
        config.segment_bytes = 1
    with pytest.raises(AttributeError, match="frozen"):
        del config.segment_bytes
    assert config.segment_bytes == 1 << 30


def test_the_settings_of_golden_segments_and_indexes_are_taken(golden_kafka):
    wanted = {"segment.bytes", "index.interval.bytes", "segment.index.bytes", "message.timestamp.type"}
    for path in golden_kafka.glob("cases/*/case.json"):
        settings = json.loads(path.read_text())["config"]
        config = dict(LogConfig.of({key: settings[key] for key in settings.keys() & wanted}).items())
        assert all(str(config[key]) == settings[key] for key in settings.keys() & wanted)


@pytest.mark.parametrize(
    ("key", "suggested"),
    [("segment.byte", "segment.bytes"), ("segmnt_bytes", "segment.bytes"), ("index.interval", "index.interval.bytes")],
)
def test_an_unknown_key_is_refused_with_those_that_are_close(key, suggested):
    with pytest.raises(InvalidConfigError, match=f"{key}.*did you mean .*{suggested}"):
        LogConfig.of({key: 1})


def test_an_unknown_key_that_is_like_no_other_is_refused():
    with pytest.raises(InvalidConfigError, match=r"no such key: zookeeper\n"):
        LogConfig.of({"zookeeper": 1})


def test_a_key_given_twice_is_refused():
    with pytest.raises(InvalidConfigError, match="twice"):
        LogConfig.of({"segment.bytes": 1000, "segment_bytes": 2000})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("segment.bytes", 13), ("segment.bytes", 2**31), ("segment.bytes", "2GiB"), ("segment.bytes", "-1"),
        ("segment.bytes", "many"), ("segment.bytes", ""), ("segment.bytes", None), ("segment.bytes", 1.5),
        ("segment.bytes", True), ("segment.bytes", "1e6"), ("segment.index.bytes", 3),
        ("max.decompressed.message.bytes", 0), ("message.timestamp.type", "createtime"), ("message.timestamp.type", 1),
        ("compression.gzip.level", 0), ("compression.gzip.level", 10), ("compression.lz4.level", "fast"),
        ("compression.lz4.level", "9k"), ("compression.zstd.level", 23),
    ],
)
def test_a_value_outside_its_limits_is_refused_with_them(key, value):
    limits = {k.name: k.limits for k in LogConfig.keys.values()}[key]
    with pytest.raises(InvalidConfigError) as error:
        LogConfig.of({key: value})
    assert key in str(error.value)
    assert limits in str(error.value)
    assert error.value.exit_status == 2


def test_a_value_that_is_no_choice_is_refused_with_the_choices_alone():
    with pytest.raises(InvalidConfigError) as error:
        LogConfig.of({"message.timestamp.type": "now"})
    assert error.value.what == "message.timestamp.type must be CreateTime or LogAppendTime, not 'now'"


@given(st.integers(0, 2**40), st.sampled_from(["k", "m", "g", "t"]), st.sampled_from(["", "b", "ib"]))
def test_units_are_powers_of_1024(number, unit, rest):
    scale = 1024 ** ("kmgt".index(unit) + 1)
    for text in (f"{number}{unit}{rest}", f"{number} {unit.upper()}{rest}"):
        assert parse_bytes(text) == number * scale


def test_levels_are_those_of_the_codecs():
    by_name = {key.name: key for key in LogConfig.keys.values()}
    for codec, (low, high, default) in _LEVELS.items():
        key = by_name[f"compression.{codec.label}.level"]
        assert (key.low, key.high, dict(LogConfig().items())[key.name]) == (low, high, default)


# The constants of org.apache.kafka.common.config.TopicConfig, 3.9.1 and 4.4.0.
TOPIC_CONFIG = {
    "errors.deadletterqueue.group.enable", "max.decompressed.message.bytes", "remote.copy.lag.bytes",
    "remote.copy.lag.ms", "cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type",
    "compression.zstd.level", "delete.retention.ms", "file.delete.delay.ms", "flush.messages", "flush.ms",
    "index.interval.bytes", "local.retention.bytes", "local.retention.ms", "max.compaction.lag.ms",
    "max.message.bytes", "message.downconversion.enable", "message.format.version",
    "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.difference.max.ms",
    "message.timestamp.type", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas",
    "preallocate", "remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable",
    "retention.bytes", "retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms",
    "unclean.leader.election.enable"
}


def test_kafkas_topic_settings_are_gone_by_or_kept():
    used = {key.name for key in LogConfig.keys.values()}
    assert not TOPIC_CONFIG - used - OTHER_TOPIC_SETTINGS
    assert not used & OTHER_TOPIC_SETTINGS


@pytest.mark.parametrize("config", [
    LogConfig, CleanerConfig, ServerConfig, CoordinatorConfig, ManagedLedgerConfig, DelayedDeliveryConfig,
])
def test_keys_that_neither_kafka_nor_pulsar_has_begin_with_the_name_of_this_library(config):
    for key in config.keys.values():
        assert key.name.startswith("seglog.") == key.source.startswith("seglog's own"), key


def test_the_former_name_of_such_a_key_leads_to_its_name():
    with pytest.raises(InvalidConfigError, match=r"no such key: linger\.bytes; did you mean seglog\.linger\.bytes"):
        LogConfig.of({"linger.bytes": 1})
