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


class Look:
    """Made before the process is looked at, of the file of its pulse: `has_waited` is asked after that."""

    def __init__(self, path, limit_s):
        self._path, self._limit_s = path, limit_s
        self._before, _ = self._told()

    def has_waited(self):
        """Whether a step that was made meanwhile, or is made still, took longer than `limit_s`, one of LIMITS_S."""
        waits, last = self._told()
        return waits != self._before or time.monotonic() - last > self._limit_s

    def _told(self):
        last, *waits = _TOLD.unpack(self._path.read_bytes())
        return waits[LIMITS_S.index(self._limit_s)], last
