"""The options of a conversion on Spark. Two runs with equal options and sources produce the same bytes."""
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from seglog._version import __version__
from seglog.config import LogConfig
from seglog.conversion.directory import Options
from seglog.conversion.losses import LOSS_KINDS, LossKind, loss_kinds
from seglog.format.conversion_profile import Aborted, Profile


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """The options, as for `seglog.convert`. `config`: (key, value) of topic settings, which a directory does not store.

    `skip_active` leaves out the last segment of each partition.
    """

    to: int = 2
    repack_bytes: int = 0
    codec: str | None = None
    delete_horizon_ms: int | None = None
    allow_lossy: tuple[LossKind, ...] = ()
    aborted: Aborted | None = None
    skip_active: bool = False
    config: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        # Both raise an error for invalid options.
        _ = self.profile, self.log_config

    @property
    def profile(self) -> Profile:
        return self._as_of_one_machine.profile()

    @property
    def log_config(self) -> LogConfig:
        return self._as_of_one_machine.log_config()

    @property
    def _as_of_one_machine(self) -> Options:
        return Options(
            self.to, self.repack_bytes, self.codec, self.delete_horizon_ms, self.allow_lossy, self.aborted,
            dict(self.config),
        )

    @property
    def digest(self) -> str:
        """SHA-256 in hex: equal for options that produce the same bytes with the same version of seglog."""
        decisive = {**self.to_dict(), "allow_lossy": None}      # it permits losses, but does not change the bytes
        return hashlib.sha256(json.dumps([__version__, decisive], sort_keys=True).encode()).hexdigest()

    def go_on_with(self, begun: "ConversionOptions") -> bool:
        """Whether a conversion that was begun with other options may continue with these: the options are the same,
        except the permission for losses and the choice about aborted transactions, for lack of which partitions were
        refused.
        """
        return self == replace(begun, allow_lossy=self.allow_lossy, aborted=begun.aborted or self.aborted)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "config": sorted([key, value] for key, value in self.config)}

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> Self:
        allowed = fields["allow_lossy"]
        if isinstance(allowed, bool):       # of a journal below version 3
            allowed = LOSS_KINDS if allowed else ()
        config = tuple((key, value) for key, value in fields["config"])
        return cls(**{**fields, "allow_lossy": loss_kinds(allowed), "config": config})
