"""Forecasts the size of a conversion's result by converting in memory: everything if nothing is recompressed, so that
the answer is exact; otherwise samples.
"""
from collections import Counter
from dataclasses import dataclass

from seglog._kernels.batch_survey import first_larger
from seglog._kernels.segment_scan import BatchTable, scan
from seglog.config import LogConfig
from seglog.format.compression import Decompress
from seglog.format.conversion_profile import Profile, slices

# Of data to be compressed, a run of this many bytes is converted, and the next fifteen such runs are not.
SAMPLE_BYTES = 1 << 20
SAMPLE_EVERY = 16

_EXACT, _SAMPLED, _SKIPPED = "exact", "sampled", "skipped"


@dataclass(frozen=True, slots=True)
class ForecastSize:
    size_bytes: int
    is_exact: bool


class Forecast:
    """Pass it each segment's tables between `begin` and `end`.

    `larger_batches` counts the converted batches above max.message.bytes; `saw_all` says whether all batches were
    converted.
    """

    def __init__(self, profile: Profile, config: LogConfig, decompress: Decompress) -> None:
        self._profile = profile
        self._config = config
        self._decompress = decompress
        self.larger_batches = 0
        self.saw_all = True

    def begin(self) -> None:
        self._packer = self._profile.packer(self._config, self._decompress)
        self._from: Counter[str] = Counter()       # bytes of source, by their treatment
        self._to: Counter[str] = Counter()         # bytes of the result
        self._doing = _EXACT

    def add(self, table: BatchTable) -> None:
        compresses = self._profile.compresses(table)
        for first, stop in slices(table):
            compressed_bytes = self._from[_SAMPLED] + self._from[_SKIPPED]
            if not compresses:
                self._turn_to(_EXACT)
            elif compressed_bytes // SAMPLE_BYTES % SAMPLE_EVERY == 0:
                self._turn_to(_SAMPLED)
            else:
                self._turn_to(_SKIPPED)
            last = table[stop - 1]
            self._from[self._doing] += last.position + last.size_bytes - table[first].position
            if self._doing != _SKIPPED:
                self._packer.add(table, first, stop)
                self._take()

    def end(self) -> ForecastSize:
        self._packer.finish()
        self._take()
        is_exact = not self._from[_SKIPPED]
        self.saw_all &= is_exact
        ratio = self._to[_SAMPLED] / self._from[_SAMPLED] if self._from[_SAMPLED] else 1.0
        return ForecastSize(
            self._to[_EXACT] + self._to[_SAMPLED] + round(self._from[_SKIPPED] * ratio), is_exact
        )

    def _turn_to(self, doing: str) -> None:
        """End the open batch before a different treatment, so that its bytes count for their source."""
        if doing != self._doing:
            self._packer.finish()
            self._take()
            self._doing = doing

    def _take(self) -> None:
        made = self._packer.take()
        self._to[self._doing] += made.nbytes
        table = scan(self._profile.dialect.window(made), decompress=self._decompress)
        limit = self._config.max_message_bytes
        slot = first_larger(table, limit)
        while slot >= 0:
            self.larger_batches += 1
            slot = first_larger(table, limit, slot + 1)
