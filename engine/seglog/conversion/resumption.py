"""What a conversion has finished before it is stopped, so that a resumed one converts only the other segments.

Each converted segment is noted in the staging: docs/formats/conversion_notes.md. Nobody syncs the notes: of the files
that they name, each is read again before it is taken over, and compared with the digest of its proof.
"""
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from seglog._version import __version__
from seglog.config import LogConfig
from seglog.conversion.arenas import POOL
from seglog.conversion.converted_segment import ConvertedSegment
from seglog.conversion.proof import View, digest
from seglog.conversion.segment import check_indexes
from seglog.errors import SeglogError, StorageError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.compression import decompressor
from seglog.format.foreign_names import Shape, judged
from seglog.fs.files import FileSystem, WritableFile
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.fs.staging import Staging
from seglog.segment.indexes import index_bytes
from seglog.segment.segment import Segment

NOTES_FILE = "seglog-converted.jsonl"
VERSION = 1
_FORMAT = "seglog-conversion-notes"


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What an earlier run left in `directory`: its converted segments, by the names of the source's files.
    `noted_ns`: when it noted the last one."""

    directory: Path
    noted_ns: int
    segments: dict[str, ConvertedSegment]


@dataclass(slots=True)
class Resumption:
    """The notes of one conversion, and those of earlier ones with the same source, options and target."""

    fs: FileSystem
    staging: Staging
    view: View
    config: LogConfig
    _file: WritableFile
    _earlier: list[_Earlier] = field(default_factory=list)
    noted: int = 0

    @classmethod
    def begin(
        cls, fs: FileSystem, staging: Staging, made_from: str, view: View, config: LogConfig, *,
        left_over: Iterable[Path] = (),
    ) -> "Resumption":
        """Begin the notes. `left_over`: stagings in which to look for those of earlier runs. The caller holds the lock
        of the staging's target.

        `view` is what the digest of the target covers. Raises StorageError.
        """
        header = (str(staging.target), made_from, __version__)
        earlier = list(_earlier_runs(staging, left_over, header))
        file = staging.create(NOTES_FILE)
        file.append(format_json(
            _FORMAT, VERSION, target=header[0], made_from=header[1], seglog=header[2]))
        return cls(fs, staging, view, config, file, earlier)

    @property
    def directories(self) -> list[Path]:
        """The stagings that this conversion reads or writes."""
        return [self.staging.path, *(run.directory for run in self._earlier)]

    def note(self, converted: ConvertedSegment) -> None:
        self._file.append(converted.to_json())
        self.noted += 1

    def finish(self) -> None:
        """Remove the notes: the target has none."""
        self._file.close()
        self.fs.unlink(self.staging.path / NOTES_FILE)

    def take(self, source: Path, size_bytes: int) -> ConvertedSegment | None:
        """Take over what an earlier run made of the segment `source`, read and compared again; None if there is none.

        Raises StorageError if the source cannot be looked at, or what was linked here cannot be removed again.
        """
        with refusals("check", source):
            # Of another file with its name, size and time this tells: nobody sets it.
            changed_ns = os.stat(source).st_ctime_ns
        for run in self._earlier:
            converted = run.segments.get(source.name)
            if converted is not None and converted.size_bytes == size_bytes and changed_ns <= run.noted_ns:
                linked: list[str] = []
                try:
                    if self._takes(run.directory, converted, linked):
                        return converted
                except (SeglogError, OSError):
                    pass        # it is converted again: that is always right
                for name in linked:
                    self.fs.unlink(self.staging.path / name)
        return None

    def _takes(self, directory: Path, converted: ConvertedSegment, linked: list[str]) -> bool:
        def link(name: str) -> None:
            judged(name, Shape.FILE, None, StorageError)
            self.staging.link(name, directory / name)
            linked.append(name)

        decompress = decompressor(self.config.max_decompressed_message_bytes)
        segments: list[Segment] = []
        try:
            for part in converted.parts:
                link(part.file)
                path = self.staging.path / part.file
                segments.append(Segment(path, is_last=False, decompress=decompress))
                if segments[-1].size_bytes != part.size_bytes or segments[-1].base_offset != part.base_offset:
                    return False
                for suffix, _ in index_bytes(segments[-1], self.config).files(self.config, segments[-1].dialect):
                    link(path.with_suffix(suffix).name)
                check_indexes(segments[-1], self.config, _reader(self.staging.path))
            return digest(segments, POOL, view=self.view) == converted.proof.target and converted.proof.holds
        finally:
            for segment in segments:
                segment.close()


def _reader(directory: Path) -> Callable[[str], bytes]:
    return lambda name: read_file(directory / name)


def _earlier_runs(
    staging: Staging, left_over: Iterable[Path], header: tuple[str, str, str]
) -> Iterator[_Earlier]:
    for directory in left_over:
        if directory != staging.path and _is_ours(directory):
            with suppress(OSError, SeglogError):
                segments = _noted(read_file(directory / NOTES_FILE), header)
                if segments:
                    yield _Earlier(directory, os.stat(directory / NOTES_FILE).st_mtime_ns, segments)


def _is_ours(directory: Path) -> bool:
    """Whether nobody else can have written there: the notes say what the source holds, and are believed."""
    try:
        found = os.stat(directory, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _noted(raw: bytes, header: tuple[str, str, str]) -> dict[str, ConvertedSegment]:
    """The segments in notes with this header, up to a line that is not whole. Raises CorruptCheckpointError,
    UnsupportedVersionError."""
    first, *lines = raw.split(b"\n")
    if parse_json(first, _FORMAT, VERSION, None, _header_of) != header:
        return {}
    segments: dict[str, ConvertedSegment] = {}
    with suppress(SeglogError):
        for line in lines[:-1]:
            converted = ConvertedSegment.of_json(line)
            segments[converted.source] = converted
    return segments


def _header_of(body: dict[str, str]) -> tuple[str, str, str]:
    return body["target"], body["made_from"], body["seglog"]
