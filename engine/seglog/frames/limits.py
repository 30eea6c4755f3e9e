"""Which records of a topic are read as a table: offsets, partitions, and what prunes."""
from dataclasses import dataclass

from seglog.frames.options import OFFSET_MAX
from seglog.log.arguments import Isolation


@dataclass(frozen=True, slots=True)
class Limits:
    """Which records of each partition are asked for. `partitions`, `topics`: of these only; None: all."""

    from_offset: int = 0
    to_offset: int = OFFSET_MAX
    isolation: Isolation = "read_uncommitted"
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    # Only to prune: records with other keys may come as well.
    smallest_key: bytes | None = None
    largest_key: bytes | None = None

    @property
    def has_keys(self) -> bool:
        return self.smallest_key is not None or self.largest_key is not None
