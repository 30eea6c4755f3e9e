"""The options of `df.write.format("seglog")` and `writeStream`."""
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from seglog.config import LogConfig
from seglog.errors import InvalidArgumentError, InvalidConfigError, SeglogError
from seglog.format.foreign_names import Shape, has_shape
from seglog.fs.mapping import read_file
from seglog.spark.source_options import count_of, local_path, one_of

_OURS = ("path", "topic", "numPartitions", "ifExists", "batchId", "queryId", "checkpointLocation")
_NAMES = {name.lower(): name for name in _OURS}
_ID_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`path`: the log dir. `topic` overrides the column. `partitions`: how many a topic has, for rows without one; if
    None, as many as the log dir has. `query`: the id of the stream that counts the batches; None for a batch. `batch`:
    the id of a batch, which is in the log dir once; None if it has none, and for a stream.
    """

    path: str
    topic: str | None
    partitions: int | None
    may_exist: bool
    query: str | None
    config: tuple[tuple[str, str], ...]
    batch: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_stream: bool = False) -> Self:
        """Parse the options. Raises InvalidArgumentError for unknown or invalid ones. Keys of Kafka's topic
        configuration (`compression.type`) configure logs that are created.
        """
        options, config = {}, {}
        for key, value in given.items():
            if key.lower() in _NAMES:
                options[_NAMES[key.lower()]] = value
            elif not key.lower().startswith("kafka."):
                config[key] = value
        try:
            LogConfig.of(config)
        except InvalidConfigError as error:
            raise InvalidArgumentError(
                f"{error.what} (options are {', '.join(_OURS)}, and the keys of the topic configuration)"
            ) from error
        path = options.get("path")
        if not path:
            raise InvalidArgumentError("the path is missing", hint='.save("/data/kafka"): a log dir')
        exists = one_of("ifExists", options.get("ifExists", "append").lower(), ("append", "error"))
        count = count_of(options, "numPartitions")
        topic = options.get("topic")
        if topic is not None and not has_shape(f"{topic}-0", Shape.PARTITION):
            raise InvalidArgumentError(f"invalid topic name {topic!r}")
        batch = options.get("batchId")
        if batch is not None and is_stream:
            raise InvalidArgumentError(
                "a stream takes no batchId", hint="leave it out: its checkpoint identifies each of its batches"
            )
        if batch is not None and not 0 < len(batch) <= _ID_CHARACTERS:
            raise InvalidArgumentError(f"batchId must have 1 to {_ID_CHARACTERS} characters, not {len(batch)}")
        return cls(
            path=local_path(path).rstrip("/"), topic=topic, partitions=count,
            may_exist=exists == "append", query=_query(options) if is_stream else None,
            config=tuple(sorted(config.items())), batch=batch,
        )


def _query(options: Mapping[str, str]) -> str:
    """The name under which a stream's batches are counted: the id that Spark stores in the query's checkpoint.

    The number of a batch is not enough: a query with another checkpoint starts at 0 again.
    """
    if "queryId" in options:
        return options["queryId"]
    place = options.get("checkpointLocation")
    hint = 'set .option("queryId", "a unique name of this query") instead'
    if place is None:
        raise InvalidArgumentError("the checkpointLocation, which identifies the query, is missing", hint=hint)
    try:
        path = local_path(place)
        return str(json.loads(read_file(f"{path}/metadata"))["id"])
    except (OSError, ValueError, KeyError, SeglogError) as error:
        raise InvalidArgumentError(
            f"cannot read the query's id from the checkpoint: {error}", file=place, hint=hint
        ) from error
