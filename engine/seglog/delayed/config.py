"""Configuration of delayed messages: Pulsar's own keys, units and defaults.

The proposal (PIP-195) and the releases do not always agree on a name; both are taken. docs/config.md is made from the
fields below.
"""
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from seglog.config import Key, parsed_settings
from seglog.errors import InvalidConfigError

AT_THE_NEXT_SEAL = "; a change counts from the next seal on"


class FlagKey(Key):
    """A key that is true or false."""

    __slots__ = ()

    @property
    def limits(self) -> str:
        return "true or false"

    def parse(self, value: object) -> bool:
        text = str(value).strip().lower() if isinstance(value, str | bool) else ""
        if text not in {"true", "false"}:
            raise InvalidConfigError(f"{self.name} is {self.limits}, not {value!r}")
        return text == "true"


def _key(default: Any, name: str, unit: str, meaning: str, source: str, **limits: Any) -> Any:
    return field(default=default, metadata={"key": Key(name, unit, meaning, source, **limits)})


def _flag(default: bool, name: str, meaning: str, source: str) -> Any:
    return field(default=default, metadata={"key": FlagKey(name, "flag", meaning, source)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedDeliveryConfig:
    """How delayed messages are tracked.

    Make one by `DelayedDeliveryConfig.of({"delayedDeliveryMaxNumBuckets": 20})`, which checks names and limits.
    """

    bucket_tracker: bool = _flag(
        True, "enableBucketDelayedDeliveryTracker",
        "keep delayed messages in buckets with snapshots; false: all of them in memory",
        "PIP-195, which spells it enbale…; off in Pulsar",
    )  # fmt: skip
    shared_index: bool = _flag(
        False, "enableShareDelayedMessageIndex",
        "one index for all subscriptions of a topic",
        "PIP-195, which spells it enbale…; in no release of Pulsar",
    )  # fmt: skip
    ledger_step: int = _key(
        5, "delayedDeliveryLedgerStepPerBucket", "ledgers",
        "a bucket is sealed when a message comes from so many ledgers after its first one; 0: by count alone, as Pulsar"
        + AT_THE_NEXT_SEAL,
        "PIP-195; Pulsar 4.2.4 has the count only",
    )  # fmt: skip
    min_index_count: int = _key(
        50_000, "delayedDeliveryMinIndexCountPerBucket", "messages",
        "a bucket with so many messages is sealed when a message of a later ledger comes" + AT_THE_NEXT_SEAL,
        "ServiceConfiguration, Pulsar 4.2.4",
    )  # fmt: skip
    time_step_s: int = _key(
        300, "delayedDeliveryTimeStepPerBucketSnapshotSeconds", "s",
        "a segment of a snapshot spans less than this" + AT_THE_NEXT_SEAL,
        "PIP-195; in Pulsar 4.2.4 …SnapshotSegmentSeconds",
        low=1,
    )  # fmt: skip
    max_indexes_per_segment: int = _key(
        5_000, "delayedDeliveryMaxIndexesPerBucketSnapshotSegment", "messages",
        "a segment of a snapshot holds at most so many; -1: no bound" + AT_THE_NEXT_SEAL,
        "ServiceConfiguration, Pulsar 4.2.4",
        low=1, besides=(-1,),
    )  # fmt: skip
    max_buckets: int = _key(
        20, "delayedDeliveryMaxNumBuckets", "buckets",
        "buckets are merged when there are more; -1: never",
        "PIP-195; -1 in Pulsar 4.2.4",
        low=1, besides=(-1,),
    )  # fmt: skip
    merge_fan_in: int = _key(
        4, "merge.fan.in", "buckets",
        "how many neighbours are merged at once, at most; 2 is the proposal's",
        "MAX_MERGE_NUM of BucketDelayedDeliveryTracker, Pulsar 4.2.4; the key is ours",
        low=2,
    )  # fmt: skip
    tick_time_ms: int = _key(
        1_000, "delayedDeliveryTickTimeMillis", "ms",
        "how much too early a message may be delivered where delivery is not strict",
        "ServiceConfiguration, Pulsar 4.2.4",
        low=1,
    )  # fmt: skip
    strict: bool = _flag(
        True, "isDelayedDeliveryDeliverAtTimeStrict",
        "never deliver a message before its time",
        "ServiceConfiguration; false in Pulsar",
    )  # fmt: skip
    max_delay_ms: int = _key(
        0, "delayedDeliveryMaxDelayInMillis", "ms",
        "longest delay that may be asked for; 0: any",
        "PIP-315",
        high=2**63 - 1,
    )  # fmt: skip
    max_delayed: int = _key(
        -1, "delayedDeliveryMaxDelayedMessages", "messages",
        "most messages that are delayed at once; adding more is refused; -1: any number",
        "ours",
        high=2**63 - 1, besides=(-1,),
    )  # fmt: skip

    @property
    def time_step_ms(self) -> int:
        return self.time_step_s * 1000

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Self:
        """The configuration of `settings`, Pulsar's names with values as they are or as text. Raises InvalidConfigError
        for an unknown key, one given twice, or a value outside its limits."""
        return cls(**parsed_settings(keys(), settings, lambda name: OTHER_SPELLINGS.get(name, name)))

    def items(self) -> Iterator[tuple[str, int | bool]]:
        """Key and value of every setting."""
        for attribute, key in keys():
            yield key.name, getattr(self, attribute)


OTHER_SPELLINGS = {
    "enbaleBucketDelayedDeliveryTracker": "enableBucketDelayedDeliveryTracker",
    "delayedDeliveryBucketTrackerEnabled": "enableBucketDelayedDeliveryTracker",
    "enbaleShareDelayedMessageIndex": "enableShareDelayedMessageIndex",
    "delayedDeliveryTimeStepPerBucketSnapshotSegmentSeconds": "delayedDeliveryTimeStepPerBucketSnapshotSeconds",
    "merge_fan_in": "merge.fan.in",
}


def keys() -> list[tuple[str, Key]]:
    """Attribute and key of every field."""
    return [(f.name, f.metadata["key"]) for f in fields(DelayedDeliveryConfig)]
