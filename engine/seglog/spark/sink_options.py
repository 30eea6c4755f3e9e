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

_OURS = ("path", "topic", "numPartitions", "ifExists", "queryId", "checkpointLocation")
_NAMES = {name.lower(): name for name in _OURS}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`path`: the log dir. `topic` overrides the column. `partitions`: of a topic, for rows without one; None: as many
    as the log dir has of it. `query`: which stream it is, that counts its batches; None for a batch.
    """

    path: str
    topic: str | None
    partitions: int | None
    may_exist: bool
    query: str | None
    config: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_stream: bool = False) -> Self:
        """Raises InvalidArgumentError for what is unknown or cannot be meant. Keys of Kafka's topic configuration
        (`compression.type`) are those of logs that are made.
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
                f"an option that is none of ours ({', '.join(_OURS)}), or of a topic's configuration: {error}"
            ) from error
        path = options.get("path")
        if not path:
            raise InvalidArgumentError("no path", hint='.save("/data/kafka"): a log dir')
        exists = one_of("ifExists", options.get("ifExists", "append").lower(), ("append", "error"))
        count = count_of(options, "numPartitions")
        topic = options.get("topic")
        if topic is not None and not has_shape(f"{topic}-0", Shape.PARTITION):
            raise InvalidArgumentError(f"no name of a topic: {topic!r}")
        return cls(
            path=local_path(path).rstrip("/"), topic=topic, partitions=count,
            may_exist=exists == "append", query=_query(options) if is_stream else None,
            config=tuple(sorted(config.items())),
        )


def _query(options: Mapping[str, str]) -> str:
    """The name by which a stream's batches are counted: the id that Spark keeps in the checkpoint of the query.

    The number of a batch alone says nothing: a query with another checkpoint begins at 0 again.
    """
    if "queryId" in options:
        return options["queryId"]
    place = options.get("checkpointLocation")
    hint = '.option("queryId", "a name of this query alone") says it otherwise'
    if place is None:
        raise InvalidArgumentError("no checkpointLocation, which tells one query from another", hint=hint)
    try:
        path = local_path(place)
        return str(json.loads(read_file(f"{path}/metadata"))["id"])
    except (OSError, ValueError, KeyError, SeglogError) as error:
        raise InvalidArgumentError(
            f"the checkpoint does not tell the id of its query: {error}", file=place, hint=hint
        ) from error
