"""The proof that a conversion changed no record: counts and digests of both sides, from their files.

The digest of a range of records is SHA-256 over their canonical bytes (seglog._kernels.canonical):
offset, timestamp, key, value and headers of each, in log order, transaction markers included. What
a conversion may change is not in it: batch boundaries, codecs, format versions. What the target's format has no
place for is left out on both sides, and `left_out` says what that was.

Kept as JSON in the target (docs/formats/conversion_proof.md). A run that is resumed reads there what was converted.
"""
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from seglog._kernels.canonical import update_digest
from seglog._kernels.columns import ArenaPool, Columns, chunks
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import ProofMismatchError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.conversion_profile import Profile
from seglog.format.dialect import Dialect
from seglog.segment.segment import Segment

PROOF_FILE = "seglog-conversion.json"
_FORMAT = "seglog-conversion-proof"
VERSION = 3         # 1: without left_out; then nothing was. 2: without made_from


@dataclass(frozen=True, slots=True)
class RecordsDigest:
    """Of the records in `files` (names, in log order): how many, and SHA-256 over their canonical bytes, in hex."""

    files: tuple[str, ...]
    records: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SegmentProof:
    """One source segment, and the target segments that came of it."""

    source: RecordsDigest
    target: RecordsDigest

    @property
    def holds(self) -> bool:
        return (self.source.records, self.source.sha256) == (self.target.records, self.target.sha256)

    def check(self, source: Path) -> None:
        """Raises ProofMismatchError, which names the segment `source`, where the sides differ."""
        if not self.holds:
            before, after = self.source, self.target
            raise ProofMismatchError(
                f"the proof failed: {before.records} records with digest {before.sha256[:16]} became"
                f" {after.records} with {after.sha256[:16]} in {', '.join(after.files)}",
                file=source,
            )


@dataclass(frozen=True, slots=True)
class Proof:
    """`holds`: each source segment has in the target the same records in the same order."""

    source: str
    target: str
    seglog: str
    to: int
    repack_bytes: int
    codec: str | None
    segments: tuple[SegmentProof, ...]
    left_out: tuple[str, ...] = ()
    made_from: str | None = None        # conversion_inputs.made_from; None in an older proof

    @property
    def holds(self) -> bool:
        return all(segment.holds for segment in self.segments)

    @property
    def records(self) -> int:
        return sum(segment.source.records for segment in self.segments)

    @property
    def sha256(self) -> str:
        """One digest for all: SHA-256 over those of the source segments, as hex, in log order."""
        return hashlib.sha256("".join(segment.source.sha256 for segment in self.segments).encode()).hexdigest()

    def check(self) -> None:
        """Raises ProofMismatchError for the first segment whose sides differ."""
        for segment in self.segments:
            segment.check(Path(self.source) / segment.source.files[0])

    def to_json(self) -> bytes:
        """The file: format.checked_json."""
        return format_json(_FORMAT, VERSION, indent=1, **asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Proof":
        """Raises CorruptCheckpointError where the file contradicts itself, UnsupportedVersionError for a newer one."""
        return cls.parse(path.read_bytes(), path)

    @classmethod
    def parse(cls, raw: bytes, path: Path | str) -> "Proof":
        """The same of bytes that were read from a store."""
        return parse_json(raw, _FORMAT, VERSION, path, _proof_of, oldest=1)


def _proof_of(body: dict[str, Any]) -> Proof:
    segments = tuple(
        SegmentProof(*(
            RecordsDigest(tuple(side["files"]), side["records"], side["sha256"])
            for side in (segment["source"], segment["target"])
        ))
        for segment in body.pop("segments")
    )
    del body["format"], body["version"]
    return Proof(segments=segments, left_out=tuple(body.pop("left_out", ())), **body)


@dataclass(frozen=True, slots=True)
class View:
    """What of a log's records a digest covers: all of it, or what has a place in an older format."""

    with_time: bool = True
    with_headers: bool = True
    with_control: bool = True
    kept: Callable[[BatchTable], BatchTable] = lambda table: table
    erased: frozenset[bytes] = frozenset()      # keys whose records are left out


EVERYTHING = View()


class Views(NamedTuple):
    """What is compared of each side."""

    source: View
    target: View


def views(profile: Profile, source: Dialect) -> Views:
    """What of the source has a place in the target: the target's digest covers all that it holds.

    Of messages with tags the records: a tag may be a header on the other side, and their control messages no markers.
    """
    if profile.erased:
        return Views(View(erased=frozenset(profile.erased)), EVERYTHING)
    if source.is_tagged or profile.dialect.is_tagged:
        records = View(with_time=profile.to != 0, with_headers=False, with_control=False)
        return Views(records, records)
    if profile.to == 2:
        return Views(EVERYTHING, EVERYTHING)
    return Views(View(with_time=profile.to > 0, with_headers=False, with_control=False), EVERYTHING)


def digest(
    segments: Iterable[Segment],
    pool: ArenaPool,
    on_bytes: Callable[[int], None] = lambda _: None,
    view: View = EVERYTHING,
) -> RecordsDigest:
    """The digest of the records in `segments`, read from their files; each batch's checksum is tested on the way.

    `on_bytes` is told how many bytes of .log were read since the last time. Raises CorruptRecordError.
    """
    sha256 = hashlib.sha256()
    files = []
    records = 0
    for segment in segments:
        files.append(segment.path.name)
        for table in segment.tables():
            position = table[0].position
            kept = view.kept(table)
            for columns in chunks(kept, pool, check_crc=False, include_control=view.with_control):
                for first, stop in _runs(columns, kept, view.erased):
                    update_digest(
                        columns, sha256, first, stop, with_time=view.with_time, with_headers=view.with_headers
                    )
                    records += stop - first
            on_bytes(table.end - position)
    return RecordsDigest(tuple(files), records, sha256.hexdigest())


def _runs(columns: Columns, table: BatchTable, erased: frozenset[bytes]) -> Iterator[tuple[int, int]]:
    """The rows [first, stop) whose keys are not erased: by their bytes, not by a hash as BatchFilter finds them."""
    keys = columns.key
    found = [row for row in range(len(keys)) if keys[row] in erased] if erased else []
    if found:       # keys of control records are no keys
        control = [range(batch.base_offset, batch.last_offset + 1) for batch in table if batch.is_control]
        found = [row for row in found if not any(columns.offset[row] in offsets for offsets in control)]
    first = 0
    for row in (*found, len(columns)):
        if row > first:
            yield first, row
        first = row + 1
