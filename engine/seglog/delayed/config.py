"""Configuration of delayed messages: Pulsar's own keys, units and defaults.

The proposal (PIP-195) and the releases sometimes differ in a name; both are accepted. docs/config.md is generated from
the fields below.
"""
from collections.abc import Mapping
from typing import ClassVar

from seglog.config import Settings, setting

AT_THE_NEXT_SEAL = "; a change takes effect at the next seal"


class DelayedDeliveryConfig(Settings):
    """How delayed messages are tracked.

    Make one with `DelayedDeliveryConfig.of({"delayedDeliveryMaxNumBuckets": 20})`, which checks names and limits.
    """

    other_spellings: ClassVar[Mapping[str, str]] = {
        "enbaleBucketDelayedDeliveryTracker": "enableBucketDelayedDeliveryTracker",
        "delayedDeliveryBucketTrackerEnabled": "enableBucketDelayedDeliveryTracker",
        "enbaleShareDelayedMessageIndex": "enableShareDelayedMessageIndex",
        "delayedDeliveryTimeStepPerBucketSnapshotSegmentSeconds": "delayedDeliveryTimeStepPerBucketSnapshotSeconds",
    }

    bucket_tracker: bool = setting(
        True, "enableBucketDelayedDeliveryTracker", "boolean",
        "keep delayed messages in buckets with snapshots; false: all of them in memory",
        "PIP-195, which spells it enbale…; off in Pulsar",
    )
    shared_index: bool = setting(
        False, "enableShareDelayedMessageIndex", "boolean",
        "one index for all subscriptions of a topic",
        "PIP-195, which spells it enbale…; in no release of Pulsar",
    )
    ledger_step: int = setting(
        5, "delayedDeliveryLedgerStepPerBucket", "ledgers",
        "a bucket with 10 000 messages is sealed when a message comes from this many ledgers after its first one;"
        " 0: only by count, as in Pulsar" + AT_THE_NEXT_SEAL,
        "PIP-195; Pulsar 4.2.4 has the count only",
    )
    min_index_count: int = setting(
        50_000, "delayedDeliveryMinIndexCountPerBucket", "messages",
        "a bucket with this many messages is sealed when a message of a later ledger comes" + AT_THE_NEXT_SEAL,
        "ServiceConfiguration, Pulsar 4.2.4",
    )
    time_step_s: int = setting(
        300, "delayedDeliveryTimeStepPerBucketSnapshotSeconds", "s",
        "a segment of a snapshot spans less than this" + AT_THE_NEXT_SEAL,
        "PIP-195; in Pulsar 4.2.4 …SnapshotSegmentSeconds",
        low=1,
    )
    max_indexes_per_segment: int = setting(
        5_000, "delayedDeliveryMaxIndexesPerBucketSnapshotSegment", "messages",
        "a segment of a snapshot has at most this many; -1: no limit" + AT_THE_NEXT_SEAL,
        "ServiceConfiguration, Pulsar 4.2.4",
        low=1, besides=(-1,),
    )
    max_buckets: int = setting(
        20, "delayedDeliveryMaxNumBuckets", "buckets",
        "buckets are merged when there are more than this; -1: never",
        "PIP-195; -1 in Pulsar 4.2.4",
        low=1, besides=(-1,),
    )
    tick_time_ms: int = setting(
        1_000, "delayedDeliveryTickTimeMillis", "ms",
        "how early a message may be delivered if delivery is not strict",
        "ServiceConfiguration, Pulsar 4.2.4",
        low=1,
    )
    strict: bool = setting(
        True, "isDelayedDeliveryDeliverAtTimeStrict", "boolean",
        "never deliver a message before its time",
        "ServiceConfiguration; false in Pulsar",
    )
    max_delay_ms: int = setting(
        0, "delayedDeliveryMaxDelayInMillis", "ms",
        "longest delay that `DelayedDelivery.add_entry` or `reschedule` accept; 0: any; messages already in the log are"
        " delivered at their own time",
        "PIP-315",
        high=2**63 - 1,
    )
    max_delayed: int = setting(
        -1, "seglog.delayed.max.messages", "messages",
        "most messages that may be delayed at once; adding more is refused; -1: any number",
        "seglog's own",
        high=2**63 - 1, besides=(-1,),
    )

    relocate: bool = setting(
        False, "seglog.delayed.relocate", "boolean",
        "copy the messages that are still delayed out of a ledger in which all others are acknowledged, so that"
        " it and those after it can be trimmed",
        "seglog's own",
    )

    @property
    def time_step_ms(self) -> int:
        return self.time_step_s * 1000
