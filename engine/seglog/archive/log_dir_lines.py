"""The checkpoint files of a log dir while its partitions are backed up: each is parsed once for as long as it stays the
same. Parsed for every partition, those of ten thousand cost a minute."""
from pathlib import Path
from types import TracebackType
from typing import Self

from seglog.format import names
from seglog.fs.mapping import OpenedFile
from seglog.state.checkpoints import TopicPartition, parse_offsets_or_none

Lines = tuple[int | None, int | None, int | None]

_FILES = (names.LOG_START_OFFSET_CHECKPOINT, names.REPLICATION_CHECKPOINT, names.CLEANER_CHECKPOINT)


class LogDirLines:
    """Files are kept open until the end of a `with` block."""

    def __init__(self, log_dir: Path) -> None:
        self._opened: dict[Path, tuple[OpenedFile, dict[TopicPartition, int]]] = {}
        self._paths = [log_dir / name for name in _FILES]

    def of(self, partition: str) -> Lines:
        """Log start offset, high watermark and cleaner offset of a partition, by the name of its directory, as they are
        now. Raises StorageError."""
        parsed = names.parse_partition_dir(partition)
        where = ("", -1) if parsed is None else (parsed.topic, parsed.partition)
        start, high_watermark, cleaner = (self._offsets(path).get(where) for path in self._paths)
        return start, high_watermark, cleaner

    def _offsets(self, path: Path) -> dict[TopicPartition, int]:
        opened, offsets = self._opened.get(path, (None, {}))
        if opened is None or not opened.is_current():
            if opened is not None:
                opened.close()
            opened = OpenedFile(path)
            raw = opened.read()
            offsets = {} if raw is None else parse_offsets_or_none(raw, path) or {}
            self._opened[path] = opened, offsets
        return offsets

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened, _ in self._opened.values():
            opened.close()
        self._opened.clear()
