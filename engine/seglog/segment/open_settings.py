"""How the segments of a log are opened: the settings that they all share."""
from typing import Self

from seglog._kernels.point_read import LastOpened
from seglog.config import LogConfig
from seglog.format.compression import Decompress, decompressor
from seglog.format.dialect import KAFKA, Dialect, dialect_of_config


class SegmentOpenSettings:
    """`owned`, `reserve_bytes`: see SegmentFiles; `by_minute`: HeaderWalk."""

    __slots__ = ("by_minute", "decompress", "dialect", "last_opened", "owned", "reserve_bytes")

    def __init__(
        self, decompress: Decompress, last_opened: LastOpened, *, owned: bool = False, by_minute: bool = False,
        reserve_bytes: int = 0, dialect: Dialect = KAFKA,
    ) -> None:
        self.decompress = decompress
        self.last_opened = last_opened
        self.owned = owned
        self.by_minute = by_minute
        self.reserve_bytes = reserve_bytes
        self.dialect = dialect

    @classmethod
    def of(cls, config: LogConfig, last_opened: LastOpened) -> Self:
        """Make the settings for a log of ours, by its configuration."""
        return cls(
            decompressor(config.max_decompressed_message_bytes), last_opened, owned=True,
            by_minute=bool(config.time_index_minute_enabled), dialect=dialect_of_config(config),
        )
