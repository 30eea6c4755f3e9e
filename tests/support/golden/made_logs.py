"""Logs that a test makes at a time that stands still, and the batches of their bytes."""
import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from seglog.format.compression import decompressor

NOW = 1_700_000_000_000


def open_log(path, version=None, **config):
    """`version`: the message.format.version; `config`: other keys, with `_` for the dots."""
    config = {name.replace("_", "."): value for name, value in config.items()}
    if version is not None:
        config["message.format.version"] = version
    return seglog.open(path, config=config, fsync="never", clock=ManualClock(NOW))


def batches_of(raw):
    return list(scan(Window(bytes(raw)), check_crc=True, decompress=decompressor()))
