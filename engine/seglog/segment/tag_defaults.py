"""Counts the required tags that a segment's messages lack, as the segment is read, and logs them once."""
from pathlib import Path

from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.tag_list import count_defaults
from seglog.logger import Logger

_LOG = Logger(__name__)


class TagDefaults:
    """The counts of one segment. `counts`: {id of a tag: number of messages read without it, which get its default}."""

    __slots__ = ("_counted_to", "_is_told", "counts")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._counted_to = 0
        self._is_told = False

    def add(self, table: BatchTable, path: Path) -> None:
        """Count a table of the segment at `path`, in file order; what was counted before is not counted again."""
        if table.end <= self._counted_to or not len(table) or table[0].position < self._counted_to:
            return
        self._counted_to = table.end
        found = count_defaults(table)
        for tag, count in found.items():
            self.counts[tag] = self.counts.get(tag, 0) + count
        if found and not self._is_told:
            self._is_told = True
            _LOG.warning(
                "%s: messages without required tags, by id: %s, from byte %d on: defaults apply there "
                "(docs/formats/tagged_message.md)", path, ", ".join(map(str, sorted(found))), table[0].position,
            )
