"""Whether a process got on while another one looked at what it does."""
import mmap
import struct
import time

LIMITS_S = (0.015, 0.1)
_TOLD = struct.Struct("=dqq")


class Pulse:
    """A file that tells when the process last made a step, by the clock of all processes, and how many of its steps
    took longer than each of LIMITS_S: it waited for a processor or for a disk, or was stopped."""

    def __init__(self, path):
        self._last, self._waits = time.monotonic(), [0, 0]
        path.write_bytes(_TOLD.pack(self._last, *self._waits))
        with open(path, "r+b") as file:
            self._told = mmap.mmap(file.fileno(), 0)

    def beat(self):
        """Call before each step."""
        now = time.monotonic()
        for n, limit in enumerate(LIMITS_S):
            self._waits[n] += now - self._last > limit
        self._last = now
        _TOLD.pack_into(self._told, 0, now, *self._waits)


def waits_of(path, limit_s):
    """How many steps took longer than `limit_s`, one of LIMITS_S, with the one that lasts still."""
    last, *waits = _TOLD.unpack(path.read_bytes())
    return waits[LIMITS_S.index(limit_s)] + (time.monotonic() - last > limit_s)
