"""A member of a consumer group: Kafka's MemberMetadata."""
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from seglog.coordinators.held import text_bytes
from seglog.coordinators.timer import Due
from seglog.wire.error_codes import Errors

# The protocols that a member supports, in its order of preference: name and metadata.
Protocols = tuple[tuple[str, bytes], ...]


# What a member takes besides its names, its protocols and its assignment; an id without a member, too.
MEMBER_BYTES = 1024


def size_of(protocols: Protocols) -> int:
    """In bytes."""
    return sum(text_bytes(name) + len(metadata) for name, metadata in protocols)


@dataclass(slots=True)
class JoinResult:
    """The answer to a JoinGroup. `members`: (member id, group instance id, metadata) for the leader, else empty."""

    member_id: str
    error: Errors
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: list[tuple[str, str | None, bytes]] = field(default_factory=list)
    skip_assignment: bool = False


@dataclass(slots=True)
class SyncResult:
    """The answer to a SyncGroup."""

    error: Errors
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


Joined = Callable[[JoinResult], None]
Synced = Callable[[SyncResult], None]


@dataclass(slots=True, eq=False)
class Member:
    """One member. `on_joined`, `on_synced`: callbacks for the answer to its JoinGroup or SyncGroup, while one is
    pending."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    on_joined: Joined | None = None
    on_synced: Synced | None = None
    # Joined, but not in a generation yet. It may expire while it waits: if its client is gone, no one knows its id.
    is_new: bool = False
    # Its session ends at `deadline_ms` unless a heartbeat comes. The timer may call earlier, and then checks again.
    deadline_ms: int = 0
    session: Due | None = None

    @property
    def size_bytes(self) -> int:
        """What it counts for. Its id is its client's or its own, and more."""
        names_bytes = text_bytes(self.client_id) + text_bytes(self.group_instance_id) + text_bytes(self.member_id)
        return MEMBER_BYTES + names_bytes + size_of(self.protocols) + len(self.assignment)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        return self.on_joined is not None

    @property
    def is_awaiting_sync(self) -> bool:
        return self.on_synced is not None

    @property
    def is_kept_waiting(self) -> bool:
        """Whether an answer to it is pending. If so, its silence does not end its session."""
        return not self.is_new and (self.is_awaiting_join or self.is_awaiting_sync)

    def metadata(self, protocol: str) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Collection[str]) -> str | None:
        """The protocol that it prefers among `candidates`."""
        return next((name for name, _ in self.protocols if name in candidates), None)

    def answer_join(self, result: JoinResult) -> None:
        """Answer the pending JoinGroup, if there is one."""
        on_joined, self.on_joined = self.on_joined, None
        if on_joined is not None:
            on_joined(result)

    def answer_sync(self, result: SyncResult) -> bool:
        """Answer the pending SyncGroup, if there is one. Returns whether there was one."""
        on_synced, self.on_synced = self.on_synced, None
        if on_synced is not None:
            on_synced(result)
        return on_synced is not None
