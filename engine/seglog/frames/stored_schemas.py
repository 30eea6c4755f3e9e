"""The topic `_schemas` in a store or a backup, where typed columns find their schemas as they do on a disk."""
import os
from collections.abc import Iterator, Mapping, Sequence

from seglog.errors import InvalidArgumentError, NotALogError
from seglog.frames.libraries import library
from seglog.frames.limits import Limits
from seglog.frames.options import ReadOptions
from seglog.frames.stored import StoredPartition, is_stored, stored_ends, stored_partitions, stored_parts
from seglog.frames.typed.decoding import PartitionPlace, Schemas, schemas_beside, source_of
from seglog.frames.typed.schema_source import SchemaSource, is_registry_url
from seglog.frames.typed.schemas_topic import DIRECTORY, TOPIC, Entry, SchemasTopic


class StoredEntries:
    """The records of a partition on a store, as `SchemasTopic` reads them. Can be pickled."""

    def __init__(self, source: StoredPartition) -> None:
        self._source = source

    def end_offset(self) -> int:
        """Raises NotALogError, StorageError, CorruptRecordError."""
        return stored_ends(self._source).log_end_offset

    def __iter__(self) -> Iterator[Entry]:
        options = ReadOptions(columns=("key", "offset", "value"))
        for part in stored_parts(self._source, options, Limits()):
            for rows in part.batches():
                batch = library("pyarrow").record_batch(rows)
                yield from zip(*(batch[name].to_pylist() for name in options.columns), strict=True)


def schemas_at(schemas: Schemas, store_options: Mapping[str, str]) -> SchemaSource | None:
    """As `source_of`; `schemas` may also be the URL of a log dir or of its `_schemas-0` in a store, or their place in a
    backup. Raises InvalidArgumentError, StorageError, CorruptBackupError."""
    if isinstance(schemas, str | os.PathLike):
        text = os.fspath(schemas)
        if isinstance(text, str) and not is_registry_url(text) and is_stored(text):
            return _topic_in(text, store_options)
    return source_of(schemas)


def schemas_near(places: Sequence[PartitionPlace]) -> SchemaSource | None:
    """The topic of a registry in the log dir of one of these partitions. Raises StorageError, CorruptBackupError."""
    for place in places:
        if isinstance(place, StoredPartition):
            above = place.path.rpartition("/")[0]
            if DIRECTORY in place.store.directories(above):
                return _topic(place._replace(topic=TOPIC, partition=0, path=f"{above}/{DIRECTORY}"))
    return schemas_beside([place for place in places if not isinstance(place, StoredPartition)])


def _topic(source: StoredPartition) -> SchemasTopic:
    return SchemasTopic(source.path, StoredEntries(source))


def _topic_in(url: str, store_options: Mapping[str, str]) -> SchemasTopic:
    try:
        found = stored_partitions(url, store_options)
    except NotALogError:
        found = []
    for source in found:
        if source.topic == TOPIC:
            return _topic(source)
    raise InvalidArgumentError(
        f"schemas: there is no topic {TOPIC}", file=url,
        hint="name the log dir that has it, or a folder of schemas on this machine",
    )
