"""Configuration of delayed messages: Pulsar's names, the proposal's and the release's spellings."""
import pytest

from seglog.delayed.config import DelayedDeliveryConfig
from seglog.errors import InvalidConfigError


def test_the_defaults_are_the_proposals_and_pulsars():
    assert dict(DelayedDeliveryConfig().items()) == {
        "enableBucketDelayedDeliveryTracker": True,
        "enableShareDelayedMessageIndex": False,
        "delayedDeliveryLedgerStepPerBucket": 5,
        "delayedDeliveryMinIndexCountPerBucket": 50_000,
        "delayedDeliveryTimeStepPerBucketSnapshotSeconds": 300,
        "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 5_000,
        "delayedDeliveryMaxNumBuckets": 20,
        "delayedDeliveryTickTimeMillis": 1_000,
        "isDelayedDeliveryDeliverAtTimeStrict": True,
        "delayedDeliveryMaxDelayInMillis": 0,
        "seglog.delayed.max.messages": -1,
        "seglog.delayed.relocate": False,
    }


@pytest.mark.parametrize(
    ("spelling", "attribute"),
    [
        ("enbaleBucketDelayedDeliveryTracker", "bucket_tracker"),
        ("enbaleShareDelayedMessageIndex", "shared_index"),
        ("isDelayedDeliveryDeliverAtTimeStrict", "strict"),
    ],
)
@pytest.mark.parametrize("value", [False, "false", " False "])
def test_flags_are_taken_in_both_spellings(spelling, attribute, value):
    assert getattr(DelayedDeliveryConfig.of({spelling: value}), attribute) is False


def test_the_releases_name_of_the_time_step_is_taken():
    key = "delayedDeliveryTimeStepPerBucketSnapshotSegmentSeconds"
    assert DelayedDeliveryConfig.of({key: "60"}).time_step_ms == 60_000


def test_the_items_make_the_configuration_again():
    config = DelayedDeliveryConfig.of({"delayedDeliveryMaxNumBuckets": -1})
    assert DelayedDeliveryConfig.of(dict(config.items())) == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delayedDeliveryMaxNumBuckets", 0), ("delayedDeliveryMaxNumBuckets", -2),
        ("delayedDeliveryTimeStepPerBucketSnapshotSeconds", 0), ("isDelayedDeliveryDeliverAtTimeStrict", "yes"),
        ("isDelayedDeliveryDeliverAtTimeStrict", 1), ("seglog.delayed.max.messages", -2),
        ("delayedDeliveryMaxIndexesPerBucketSnapshotSegment", 0),
    ],
)
def test_a_value_outside_its_limits_is_refused(key, value):
    with pytest.raises(InvalidConfigError, match=key):
        DelayedDeliveryConfig.of({key: value})


def test_an_unknown_key_is_refused_with_those_that_are_close():
    with pytest.raises(InvalidConfigError, match="did you mean delayedDeliveryMaxNumBuckets"):
        DelayedDeliveryConfig.of({"delayedDeliveryMaxNumBucket": 1})


def test_a_key_given_in_two_spellings_is_refused():
    with pytest.raises(InvalidConfigError, match="twice"):
        DelayedDeliveryConfig.of({"enbaleShareDelayedMessageIndex": True, "enableShareDelayedMessageIndex": True})
