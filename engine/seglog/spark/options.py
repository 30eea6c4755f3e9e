"""What a conversion on Spark is asked to make. Two runs with equal options and sources make the same bytes."""
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from seglog.config import LogConfig
from seglog.errors import InvalidArgumentError
from seglog.format import names
from seglog.format.compression import Codec
from seglog.upkeep.conversion_profile import Aborted, Profile


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """As `seglog.convert` takes them. `config`: (key, value) of topic settings that a directory does not tell.

    `skip_active` leaves out the last segment of each partition.
    """

    to: int = 2
    repack_bytes: int = 0
    codec: str | None = None
    delete_horizon_ms: int | None = None
    allow_lossy: bool = False
    aborted: Aborted | None = None
    skip_active: bool = False
    config: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        if self.to not in (0, 1, 2):
            raise InvalidArgumentError(f"no record format has the version {self.to!r}", hint="there are 0, 1 and 2")
        if not 0 <= self.repack_bytes <= names.MAX_PARTITION:
            raise InvalidArgumentError(
                f"batches of {self.repack_bytes} bytes: 0 keeps the batches, a size packs them"
            )
        if self.repack_bytes and self.delete_horizon_ms is not None:
            raise InvalidArgumentError("a delete horizon belongs to batches that stay: not together with repacking")
        # Both raise what is wrong with the rest.
        _ = self.profile, self.log_config

    @property
    def profile(self) -> Profile:
        codec = None if self.codec is None else Codec.of(self.codec)
        return Profile(self.repack_bytes, codec, self.delete_horizon_ms, self.to, self.aborted)

    @property
    def log_config(self) -> LogConfig:
        return LogConfig.of(dict(self.config))

    @property
    def digest(self) -> str:
        """SHA-256 in hex: equal for options that make the same bytes."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "config": sorted([key, value] for key, value in self.config)}

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "config": tuple((key, value) for key, value in fields["config"])})
