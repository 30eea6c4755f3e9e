"""A message of a topic, as the consumers of one subscription get it."""
from base64 import b64decode
from typing import Protocol

from seglog._kernels.entry_frame import KEY_IS_BASE64
from seglog.ledger.position import Position
from seglog.queue.job import DeadJob, Job

# How the metadata of an entry stores the tag of an ordering key, which few have.
_ORDERING_KEY_TAG = b"\x92\x01"


class OrderedHome(Protocol):
    """What a message asks for besides what a job does: a SubscriptionLane."""

    def acknowledge_up_to(self, job: Job, *, wait: bool) -> None: ...


class Message(Job):
    """A message that was taken, or looked at. It is made by a Consumer, and has what a Job has: `with message:`,
    `value`, `key`, `properties`, `attempt`, `ack`, `nack`, `extend`."""

    __slots__ = ()

    @property
    def position(self) -> Position:
        """Where its entry is in the topic: a start of a subscription, or a target of `Consumer.seek`."""
        return Position(*self._at[:2])

    @property
    def index(self) -> int | None:
        """Its number among all messages of the topic, from 0; None if it was added without one."""
        entry, fields = self._parts()
        last = entry.broker_fields()[1]
        if last is None or self._at[2] < 0:
            return last
        return last - (fields.num_messages - 1) + self._at[2]

    def ack_cumulative(self, *, wait: bool = True) -> None:
        """Acknowledge it, and all messages of the subscription that were delivered and come before it in the topic; not
        those that are dead, delayed and not due, or were given back at their first attempt. Only with the kinds
        exclusive and failover. Otherwise as `ack`.

        Raises InvalidArgumentError with another kind.
        """
        lane: OrderedHome = self._lane     # type: ignore[assignment]
        lane.acknowledge_up_to(self, wait=wait)
        self.is_settled = True

    def _order_key(self) -> bytes | None:
        """What orders it with the kind key_shared: its ordering key, or its key, as bytes: text is the same key as its
        bytes in UTF-8. (Commands.resolveStickyKey)"""
        if self._batched is not None:
            single = self._batched.metadata
            if single.HasField("ordering_key"):
                return bytes(single.ordering_key)
            if not single.HasField("partition_key"):
                return None
            return _key_of(single.partition_key.encode(), is_base64=single.partition_key_b64_encoded)
        entry, fields = self._parts()
        if _ORDERING_KEY_TAG in bytes(entry.metadata_bytes()):
            metadata = entry.metadata
            if metadata.HasField("ordering_key"):
                return bytes(metadata.ordering_key)
        return None if fields.key is None else _key_of(fields.key, is_base64=bool(fields.flags & KEY_IS_BASE64))


def _key_of(stored: bytes, *, is_base64: bool) -> bytes:
    try:
        return b64decode(stored) if is_base64 else stored
    except ValueError:      # another program's: it orders as it is
        return stored


class DeadMessage(Message, DeadJob):
    """A message that a subscription gave up. reason: the last failure. `requeue` puts it back, `ack` removes it."""

    __slots__ = ()
