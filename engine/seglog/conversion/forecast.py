"""How large a conversion's result will be, found by converting in memory: all of it where nothing is
compressed anew, so that the answer is exact; else samples.
"""
from collections import Counter
from dataclasses import dataclass

from seglog._kernels.batch_survey import first_larger
from seglog._kernels.segment_scan import BatchTable, scan
from seglog.config import LogConfig
from seglog.format.compression import Decompress
from seglog.format.conversion_profile import Profile, slices

# Of what will be compressed, a run of so many bytes is converted, and fifteen such runs after it are not.
SAMPLE_BYTES = 1 << 20
SAMPLE_EVERY = 16

_EXACT, _SAMPLED, _SKIPPED = "exact", "sampled", "skipped"


@dataclass(frozen=True, slots=True)
class ForecastSize:
    size_bytes: int
    is_exact: bool


class Forecast:
    """Give it each segment's tables between `begin` and `end`.

    `larger_batches` counts batches of the result above max.message.bytes among those that were made;
    `saw_all` tells whether that was all of them.
    """

    def __init__(self, profile: Profile, config: LogConfig, decompress: Decompress) -> None:
        self._profile = profile
        self._config = config
        self._decompress = decompress
        self.larger_batches = 0
        self.saw_all = True

    def begin(self) -> None:
        self._packer = self._profile.packer(self._config, self._decompress)
        self._from: Counter[str] = Counter()       # bytes of source, by what is done with them
        self._to: Counter[str] = Counter()         # bytes made of them
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
        """End the open batch where something else is done next, so that its bytes count for what they came of."""
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
