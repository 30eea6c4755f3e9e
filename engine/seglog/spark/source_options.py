"""The options of `spark.read.format("seglog")`: those of Spark's Kafka source, and a few of seglog's."""
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from seglog.errors import InvalidArgumentError
from seglog.format.names import BROKER_TOPICS, METADATA_TOPIC
from seglog.frames.options import Text, checked_columns, checked_decode
from seglog.frames.plan import PartitionSource, places_of
from seglog.frames.stored import StoredPartition
from seglog.frames.stored_schemas import schemas_at, schemas_near
from seglog.frames.typed.column_decoder import Decoder, OnUndecodable
from seglog.frames.typed.decoding import Decoding, Typed
from seglog.logger import Logger
from seglog.reading.arguments import Isolation, is_read_committed
from seglog.reading.damage import OnCorrupt

_LOG = Logger(__name__)

EARLIEST, LATEST = -2, -1       # as in the JSON of Spark's Kafka source
SPLIT_BYTES = 64 << 20
# The column that only rows of lost records have.
LOST = "_seglog_lost"

TopicPartition = tuple[str, int]
Source = PartitionSource | StoredPartition
Strategy = Literal["error", "latest"]
_STRATEGY = "startingOffsetsByTimestampStrategy"

# The names as users write them; Spark ignores case in names of options.
_OURS = (
    "path", "assign", "subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "minPartitions", "includeHeaders", "failOnDataLoss", "maxOffsetsPerTrigger", "isolation", "onCorrupt", "columns",
    "splitBytes", "pushFilters", "nullTimestamps", "includeLost", "lossReport", "decode", "schemas", "onUndecodable",
)
_NAMES = {name.lower(): name for name in _OURS}
# Before the name of an option for the store of a URL: store.region.
_NAMED = 10     # topics in a hint
_STORE = "store."
# The Kafka source's name of `isolation`.
_KAFKA_ISOLATION = "kafka.isolation.level"
# Options of Spark's Kafka source about brokers or triggers, which do not affect the rows.
_IGNORED = {
    "groupid", "groupidprefix", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms",
    "minoffsetspertrigger", "maxtriggerdelay", "maxrecordsperpartition",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read starts or ends: at `offset` in all partitions (EARLIEST, LATEST), or at each one's in `offsets`, or
    at the first record from `time_ms` on, or from each one's time in `times_ms` on.
    """

    offset: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] | None = None

    def time_of(self, where: TopicPartition) -> int | None:
        return self.time_ms if self.times_ms is None else self.times_ms.get(where)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a read."""

    path: str
    store_options: Mapping[str, str]
    assign: Mapping[str, tuple[int, ...]] | None
    topics: tuple[str, ...] | None
    pattern: str | None
    start: Bound
    end: Bound
    strategy: Strategy
    min_partitions: int
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    isolation: Isolation
    on_corrupt: OnCorrupt
    columns: tuple[str, ...]
    split_bytes: int
    pushes_filters: bool
    null_timestamps: bool       # null for a record without a timestamp, not -1 ms
    loss_report: str | None     # the directory for the files in which tasks say what they lost
    texts: Mapping[str, Text]   # of keys and values that are text
    decoding: Decoding          # of those that have a schema

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_stream: bool | None = False) -> Self:
        """Parse the options. `is_stream`: None if both are possible. Raises InvalidArgumentError for unknown or invalid
        ones."""
        options = _known(given)
        path = options.get("path")
        if not path:
            raise InvalidArgumentError("the path is missing", hint='.load("/data/kafka"): a log dir or partition')
        chosen = [name for name in ("assign", "subscribe", "subscribePattern") if name in options]
        if len(chosen) > 1:
            raise InvalidArgumentError(f"{' and '.join(chosen)} cannot be combined: give only one of them")
        if is_stream:
            for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
                if name in options:
                    raise InvalidArgumentError(f"{name} is not possible: a stream has no end")
        elif is_stream is False and "maxOffsetsPerTrigger" in options:
            raise InvalidArgumentError("maxOffsetsPerTrigger is an option of readStream only")
        isolation, on_corrupt = options.get("isolation", "read_uncommitted"), options.get("onCorrupt", "failfast")
        is_read_committed(isolation)    # raises if it is invalid
        strategy = options.get(_STRATEGY, "error").lower()
        texts, decoding = _decoded(options)
        latest = None if is_stream is False else LATEST
        return cls(
            path=_path_or_url(path),
            store_options=_store_options(options),
            assign=_assigned(options["assign"]) if "assign" in options else None,
            topics=_listed(options["subscribe"]) if "subscribe" in options else None,
            pattern=_pattern(options["subscribePattern"]) if "subscribePattern" in options else None,
            start=_bound(options, "starting", LATEST if is_stream else EARLIEST, latest),
            end=_bound(options, "ending", LATEST, LATEST),
            strategy="latest" if one_of(_STRATEGY, strategy, ("error", "latest")) == "latest" else "error",
            min_partitions=count_of(options, "minPartitions") or 0,
            fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
            max_offsets_per_trigger=count_of(options, "maxOffsetsPerTrigger"),
            isolation=isolation,        # type: ignore[arg-type]
            on_corrupt="skip" if one_of("onCorrupt", on_corrupt, ("failfast", "skip")) == "skip" else "raise",
            columns=_columns(options),
            split_bytes=count_of(options, "splitBytes") or SPLIT_BYTES,
            pushes_filters=_flag(options, "pushFilters", default=False),
            null_timestamps=_flag(options, "nullTimestamps", default=False),
            loss_report=_directory(options, "lossReport"),
            texts=texts, decoding=decoding,
        )

    def decoders(self) -> dict[str, Decoder]:
        """Those of the keys and values that have a schema and are read, by column.

        Raises InvalidArgumentError, NotALogError, SchemaNotFoundError, StorageError.
        """
        if not any(name in self.columns for name in self.decoding.typed):
            return {}
        return self.decoding.decoders(self.partitions)

    def partitions(self) -> list[Source]:
        """The requested partitions that exist now, by topic and number.

        Raises NotALogError if there are no partitions, InvalidArgumentError if a requested topic or partition does not
        exist.
        """
        places = places_of([self.path], self.store_options)
        found = {(source.topic, source.partition): source for source in places}
        there = {topic for topic, _ in found}
        if self.assign is not None:
            wanted = [(topic, partition) for topic, numbers in self.assign.items() for partition in numbers]
            missing = [f"{topic}-{partition}" for topic, partition in wanted if (topic, partition) not in found]
            if missing:
                raise InvalidArgumentError(
                    f"assign: no such partition: {', '.join(missing)}", file=self.path,
                    hint=_there(f"{topic}-{partition}" for topic, partition in sorted(found)),
                )
            return [found[where] for where in sorted(set(wanted))]
        if self.topics is not None:
            absent = [topic for topic in self.topics if topic not in there]
            if absent:
                raise InvalidArgumentError(
                    f"subscribe: no such topic: {', '.join(absent)}", file=self.path, hint=_there(sorted(there)),
                )
            topics = set(self.topics)
        else:
            # Like an AdminClient's list, without the broker's internal topics unless they are named.
            topics = there.difference(BROKER_TOPICS, (METADATA_TOPIC,)) or there
            if self.pattern is not None:
                topics = {topic for topic in topics if re.fullmatch(self.pattern, topic)}
        return [found[where] for where in sorted(found) if where[0] in topics]


def _there(names: Iterable[str]) -> str:
    """A hint with the first of what there is."""
    *found, = names
    return f"there are {', '.join(found[:_NAMED])}{' and others' if len(found) > _NAMED else ''}"


def asked_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a batch or stream with these options: all except headers and LOST, which `includeHeaders` and
    `includeLost` add."""
    return _columns(_known(given))


# --- the options one by one --------------------------------------------------------------------------


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    listed = _listed(options["columns"]) if "columns" in options else None
    columns = checked_columns(listed, _flag(options, "includeHeaders", default=False))
    return (*columns, LOST) if _flag(options, "includeLost", default=False) else columns


def _store_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_STORE): value for name, value in options.items() if name.startswith(_STORE)}


def _decoded(options: Mapping[str, str]) -> tuple[dict[str, Text], Decoding]:
    """What keys and values are. `decode` is a kind for both, or JSON with one for each; in place of a kind there may be
    what `seglog.Typed` takes."""
    value = options.get("decode")
    how: Any = None
    if value is not None:
        how = _json("decode", value) if value.lstrip().startswith("{") else value
    if isinstance(how, dict):
        how = {name: _typed(one) if isinstance(one, dict) else one for name, one in how.items()}
    elif how == "kafka":
        raise InvalidArgumentError("decode=kafka is not for Spark", hint="use seglog.scan for Kafka's internal topics")
    texts, typed = checked_decode(how)
    schemas = options.get("schemas")
    if schemas is not None and not typed:
        raise InvalidArgumentError("schemas needs decode", hint='such as .option("decode", "avro")')
    source = None
    if schemas is not None:
        source = schemas_at(_path_or_url(schemas), _store_options(options))
    allowed: tuple[OnUndecodable, ...] = ("fail", "null", "raw")
    on_undecodable = one_of("onUndecodable", options.get("onUndecodable", "fail"), allowed)
    return texts, Decoding(typed, source, schemas_near, on_undecodable)     # type: ignore[arg-type]


def _typed(fields: Mapping[str, Any]) -> Typed:
    try:
        return Typed(**fields)
    except TypeError:
        raise InvalidArgumentError(
            f"decode: expected a kind, or what seglog.Typed takes, not {json.dumps(fields)}",
            hint='such as {"value": {"kind": "avro", "subject": "orders-value"}}',
        ) from None


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """{name as users write it: value}."""
    options: dict[str, str] = {}
    ignored, isolations = [], []
    if any(key.lower() == "provider" for key in given):     # a table's property
        raise InvalidArgumentError(
            "Spark does not pass the options of a table in its catalog to a source in Python",
            hint="make a view: CREATE TEMPORARY VIEW orders USING seglog OPTIONS (path '/data/kafka')",
        )
    for key, value in given.items():
        lower = key.lower()
        if lower in _NAMES:
            options[_NAMES[lower]] = value
        elif lower.startswith(_STORE):
            options[lower] = value
        elif lower == _KAFKA_ISOLATION:
            isolations.append(value)
        elif lower.startswith("kafka.") or lower in _IGNORED:
            ignored.append(key)
        else:
            raise InvalidArgumentError(
                f"unknown option {key!r}", hint=f"expected one of {', '.join(_OURS)}, or {_STORE}NAME"
            )
    for value in isolations:
        if options.setdefault("isolation", value) != value:
            raise InvalidArgumentError(
                f"isolation={options['isolation']} and {_KAFKA_ISOLATION}={value} contradict each other",
                hint="give only one of them",
            )
    if ignored:
        _LOG.warning("files are read without a broker: ignored %s", ", ".join(sorted(ignored)))
    return options


def _path_or_url(path: str) -> str:
    """A path, or the URL of a store: Hadoop's s3a://, and s3n://, is s3://."""
    if path.startswith("file:"):
        return local_path(path)
    return re.sub(r"^s3[an]://", "s3://", path)


def local_path(path: str) -> str:
    """The path of a `file:` URL, or of a path, to write to. Raises InvalidArgumentError for other URLs."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    if re.match(r"[A-Za-z][\w+.-]*://", path):
        raise InvalidArgumentError(
            f"not a path: {path}", hint="a log dir must be mounted on every executor under the same path"
        )
    return path


def _directory(options: Mapping[str, str], name: str) -> str | None:
    """The option `name` as an absolute path: the working directory of an executor is another one."""
    value = options.get(name)
    if value is None:
        return None
    path = local_path(value)
    if not os.path.isabs(path):
        raise InvalidArgumentError(f"{name} must be an absolute path, not {value!r}")
    return path


def one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    """The value of the option `name`. Raises InvalidArgumentError for one that is not allowed."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise InvalidArgumentError(f"{name} must be {' or '.join(allowed)}, not {value!r}")
    return value


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name)
    return default if value is None else one_of(name, value.lower(), ("true", "false")) == "true"


def count_of(options: Mapping[str, str], name: str) -> int | None:
    """The option `name` as a positive integer; None if it is not given. Raises InvalidArgumentError."""
    value = options.get(name)
    if value is None:
        return None
    if not value.isdecimal() or not int(value):
        raise InvalidArgumentError(f"{name} must be a positive integer, not {value!r}")
    return int(value)


def _listed(value: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not found:
        raise InvalidArgumentError(f"expected a list of names separated by commas, not {value!r}")
    return found


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise InvalidArgumentError(f"subscribePattern: {error}: {value!r}") from error
    return value


def _json(name: str, value: str) -> Any:
    try:
        body = json.loads(value)
    except ValueError as error:
        raise InvalidArgumentError(f"{name}: not valid JSON: {value!r}") from error
    if not isinstance(body, dict):
        raise InvalidArgumentError(f'{name}: expected a JSON object by topic, not {value!r}')
    return body


def _assigned(value: str) -> dict[str, tuple[int, ...]]:
    body = _json("assign", value)
    if not all(isinstance(numbers, list) and all(_is_number(n) for n in numbers) for numbers in body.values()):
        raise InvalidArgumentError(f"""assign: expected {{"topic": [0, 1]}}, not {value!r}""")
    return {topic: tuple(numbers) for topic, numbers in body.items()}


def by_partition(name: str, body: Any) -> dict[TopicPartition, int]:
    """Parse {"topic": {"0": number}}, the JSON of Spark's Kafka source. Raises InvalidArgumentError."""
    found = {}
    for topic, numbers in body.items() if isinstance(body, dict) else [("", None)]:
        if not isinstance(numbers, dict):
            raise InvalidArgumentError(f"""{name}: expected {{"topic": {{"0": 23}}}}, not {json.dumps(body)}""")
        for partition, number in numbers.items():
            if not (isinstance(partition, str) and partition.isdecimal() and _is_number(number)):
                raise InvalidArgumentError(f"""{name}: expected {{"topic": {{"0": 23}}}}, not {json.dumps(body)}""")
            found[topic, int(partition)] = number
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bound(options: Mapping[str, str], word: str, default: int, latest: int | None) -> Bound:
    """The bound from startingTimestamp, startingOffsetsByTimestamp, startingOffsets, or ending...: the first one given.

    `latest`: what -1 and "latest" mean; None if they are not allowed.
    """
    is_start = word == "starting"
    if f"{word}Timestamp" in options:
        value = options[f"{word}Timestamp"]
        if not value.isdecimal():
            raise InvalidArgumentError(f"{word}Timestamp: expected milliseconds since 1970, not {value!r}")
        return Bound(time_ms=int(value))
    name = f"{word}OffsetsByTimestamp"
    if name in options:
        return Bound(times_ms=by_partition(name, _json(name, options[name])))
    name = f"{word}Offsets"
    if name not in options:
        return Bound(default)
    value = options[name]
    if value.lower() in ("earliest", "latest"):
        offset = EARLIEST if value.lower() == "earliest" else LATEST
        _check_word(name, offset, is_start, latest)
        return Bound(offset)
    offsets = by_partition(name, _json(name, value))
    for offset in offsets.values():
        if offset < 0:
            _check_word(name, offset, is_start, latest)
    return Bound(offsets=offsets)


def _check_word(name: str, offset: int, is_start: bool, latest: int | None) -> None:
    """As in Spark's Kafka source, a batch cannot start at the latest offset, and no read can end at the earliest."""
    if offset == EARLIEST and not is_start:
        raise InvalidArgumentError(f"{name}: a read cannot end at the earliest offset (-2)")
    if offset == LATEST and latest is None:
        raise InvalidArgumentError(f"{name}: a batch cannot start at the latest offset (-1)")
    if offset < EARLIEST:
        raise InvalidArgumentError(f"{name}: {offset} is not an offset; -2 means earliest, -1 latest")
