"""Chooses the encoder of a log's batches by its dialect and its record format."""
from typing import TYPE_CHECKING

from seglog.config import LogConfig
from seglog.format.batch import BatchEncoder
from seglog.format.dialect import dialect_of_config
from seglog.format.old_format import OldFormatEncoder
from seglog.late_import import late

if TYPE_CHECKING:
    from seglog._kernels.batch_encode import TimeOf


def encoder_of(config: LogConfig, leader_epoch: int = 0, time_of: "TimeOf | None" = None) -> BatchEncoder:
    """Return the encoder for a log with this configuration."""
    if dialect_of_config(config).is_tagged:
        late("seglog.format.tagged_encoder")
        from seglog.format.tagged_encoder import TaggedEncoder

        return TaggedEncoder(config, leader_epoch, time_of)
    if config.message_format_version in (None, 2):
        return BatchEncoder(config, leader_epoch, time_of)
    return OldFormatEncoder(config, leader_epoch, time_of)
