"""`seglog dump --decode value=avro` in lines: finds the schemas of each partition's topic."""
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seglog.errors import InvalidArgumentError, SchemaNotFoundError
from seglog.format.names import parse_partition_dir
from seglog.named_tuple import NamedTuple
from seglog.wire.internal_topics import InternalRecords

from .decoding import Decode, TypedRecords
from .targets import Place, name_of

if TYPE_CHECKING:
    from seglog.frames.typed.column_decoder import Decoder

# A registry's own topic, which has no schemas.
_SCHEMAS = "_schemas"


class _Partition(NamedTuple):
    topic: str
    path: Path


class TypedDump:
    """Made once for a command. `undecodable`: how many keys and values could not be decoded, by column.

    Raises InvalidArgumentError.
    """

    def __init__(
        self, decode: Mapping[str, str], schemas: str | None, on_undecodable: Literal["fail", "null", "raw"]
    ) -> None:
        from seglog.frames.options import checked_decode  # takes a fifth of the start-up time of a dump
        from seglog.frames.stored_schemas import schemas_at

        given: Any = decode
        self._texts, self._typed = checked_decode(given)
        self._source = schemas_at(schemas, {})
        self._on_undecodable = on_undecodable
        self._decoders: dict[tuple[str, str], dict[str, Decoder]] = {}
        self.undecodable: Counter[str] = Counter()

    def of(self, place: Place) -> Decode | None:
        """How to decode the records of a partition, which is at hand. Kafka's internal topics and the registry's own
        one are decoded as without --decode.

        Raises InvalidArgumentError, SchemaNotFoundError, StorageError, CorruptRecordError for a topic `_schemas` that
        is no registry's.
        """
        parsed = parse_partition_dir(name_of(place.directory))
        if parsed is not None and parsed.topic == _SCHEMAS:
            return None
        if parsed is not None and (internal := InternalRecords.of(parsed.topic)) is not None:
            return internal
        decoders: dict[str, Decoder] = {}
        if self._typed:
            if parsed is None:
                raise InvalidArgumentError(
                    "the directory has not the name of a partition, by whose topic a schema is found",
                    file=place.directory, hint="give its copy that name, such as orders-0",
                )
            where = os.path.dirname(place.path), parsed.topic
            if where not in self._decoders:
                self._decoders[where] = self._decoders_of(place, parsed.topic)
            decoders = self._decoders[where]
        return TypedRecords(
            self._texts, decoders, str(place.path), self.undecodable, nulls_text=self._on_undecodable == "null"
        )

    def _decoders_of(self, place: Place, topic: str) -> "dict[str, Decoder]":
        from seglog.frames.stored import is_stored, stored_partitions
        from seglog.frames.stored_schemas import schemas_near
        from seglog.frames.typed.decoding import Decoding, PartitionPlace

        found: Sequence[PartitionPlace] = [_Partition(topic, place.directory)]
        is_in_backup = is_stored(place.path)
        if is_in_backup:
            from .in_backup import PlaceInBackup

            options = place.store_options if isinstance(place, PlaceInBackup) else {}
            found = stored_partitions(os.fspath(place.path), options)
        try:
            return Decoding(self._typed, self._source, schemas_near, self._on_undecodable).decoders(lambda: found)
        except InvalidArgumentError as error:
            if not place.in_log_dir and not is_in_backup:
                raise
            # One of several topics: the others may have schemas.
            raise SchemaNotFoundError(
                error.what, file=error.file or str(place.path), offset=error.offset, hint=error.hint
            ) from None
