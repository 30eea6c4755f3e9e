"""A named producer of a topic, whose messages are stored once each."""
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from seglog._kernels.quick_lock import QuickLock
from seglog.errors import InvalidArgumentError, LogClosedError
from seglog.named_tuple import NamedTuple
from seglog.queue.sequences import Sequences

if TYPE_CHECKING:
    from typing_extensions import Buffer


_SEQUENCE_ID_MAX = 2**63 - 1


class NumberedCall(NamedTuple):
    """The arguments of `publish`."""

    value: "Buffer"
    sequence_id: int | None = None
    key: str | bytes | None = None
    delay: timedelta | float | None = None
    at: datetime | str | None = None
    properties: Mapping[str, str] | None = None


class PublishingTopic(Protocol):
    """What this module needs of a Topic."""

    path: Path
    _producers: "dict[str, TopicProducer]"

    def _publish(
        self, value: "Buffer", *, key: str | bytes | None, delay: timedelta | float | None, at: datetime | str | None,
        properties: Mapping[str, str] | None, identity: tuple[bytes, int] | None,
    ) -> str: ...


class TopicProducer:
    """Made by Topic.producer. Threads may share it: their calls come one after another. `name`: what it was given."""

    def __init__(self, topic: PublishingTopic, name: str, sequences: Sequences) -> None:
        self._topic = topic
        self.name = name
        self._sequences = sequences
        self._lock = QuickLock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<TopicProducer {self.name}{': closed' if self._is_closed else ''}>"

    @property
    def last_sequence_id(self) -> int:
        """That of its last message in the topic, also one of an earlier opening; -1 if there is none."""
        self._check()
        return self._sequences.last_of(self.name)

    def publish(
        self,
        value: "Buffer",
        *,
        sequence_id: int | None = None,
        key: str | bytes | None = None,
        delay: timedelta | float | None = None,
        at: datetime | str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str | None:
        """Publish a message unless its `sequence_id` is that of the producer's last message, or lower: then return
        None, and store nothing. Without one it gets the next one. Sequence ids must rise, and may have gaps: for
        example the number of a line in a file, or an offset. Otherwise as Topic.publish.
        """
        if sequence_id is not None and (type(sequence_id) is not int or not 0 <= sequence_id <= _SEQUENCE_ID_MAX):
            raise InvalidArgumentError(f"sequence_id must be an int from 0 to 2**63 - 1, not {sequence_id!r}")
        sequences = self._sequences
        with self._lock:
            self._check()
            last = sequences.last_of(self.name)
            number = last + 1 if sequence_id is None else sequence_id
            if number <= last:
                return None
            sequences.begin(self.name)
            try:
                id_ = self._topic._publish(
                    value, key=key, delay=delay, at=at, properties=properties, identity=(self.name.encode(), number)
                )
            except BaseException as error:
                sequences.end(self.name, None, error)
                raise
            sequences.end(self.name, number, None)
        sequences.added(1)
        return id_

    def _publish_all(self, calls: "Sequence[NumberedCall]") -> list[str | BaseException | None]:
        """Publish several messages, one after another; return what `publish` returned for each, or raised."""
        answers: list[str | BaseException | None] = []
        for call in calls:
            try:
                answers.append(self.publish(
                    call.value, sequence_id=call.sequence_id, key=call.key, delay=call.delay, at=call.at,
                    properties=call.properties,
                ))
            except Exception as error:      # also what a caller's own mapping raises: the others are not its callers
                answers.append(error)
        return answers

    def _check(self) -> None:
        if self._is_closed:
            raise LogClosedError(f"the producer {self.name} was closed", file=self._topic.path)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Let another producer have its name. Idempotent."""
        self._is_closed = True
        if self._topic._producers.get(self.name) is self:
            self._sequences.leave(self.name)
            self._topic._producers.pop(self.name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
