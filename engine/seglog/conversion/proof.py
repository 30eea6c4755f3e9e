"""The proof that a conversion changed no record: counts and digests of both sides, from their files.

The digest of a range of records is SHA-256 over their canonical bytes (seglog._kernels.canonical): offset, timestamp,
key, value and headers of each, in log order, including transaction markers. It does not cover what a conversion may
change: batch boundaries, codecs, format versions. What the target's format cannot store is left out on both sides, and
`left_out` says what that was.

Stored as JSON in the target (docs/formats/conversion_proof.md). A resumed run reads there what was converted.
"""
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seglog._kernels.canonical import update_digest
from seglog._kernels.columns import ArenaPool, Columns, chunks
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import ProofMismatchError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.conversion_profile import Profile
from seglog.format.dialect import Dialect
from seglog.named_tuple import NamedTuple
from seglog.segment.segment import Segment

PROOF_FILE = "seglog-conversion.json"
_FORMAT = "seglog-conversion-proof"
VERSION = 4         # 1: without left_out; then nothing was. 2: without made_from. 3: without gaps


@dataclass(frozen=True, slots=True)
class RecordsDigest:
    """The records in `files` (names, in log order): their number, and SHA-256 over their canonical bytes, in hex."""

    files: tuple[str, ...]
    records: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SegmentProof:
    """One source segment, and its target segments."""

    source: RecordsDigest
    target: RecordsDigest

    @property
    def holds(self) -> bool:
        return (self.source.records, self.source.sha256) == (self.target.records, self.target.sha256)

    def check(self, source: Path) -> None:
        """Raise ProofMismatchError, which names the segment `source`, if the sides differ."""
        if not self.holds:
            before, after = self.source, self.target
            raise ProofMismatchError(
                f"the proof failed: {before.records} records with digest {before.sha256[:16]} became"
                f" {after.records} with {after.sha256[:16]} in {', '.join(after.files)}",
                file=source,
            )


@dataclass(frozen=True, slots=True)
class Proof:
    """`holds`: the target has the same records of each source segment, in the same order."""

    source: str
    target: str
    seglog: str
    to: int
    repack_bytes: int
    codec: str | None
    segments: tuple[SegmentProof, ...]
    left_out: tuple[str, ...] = ()
    made_from: str | None = None        # conversion.inputs.made_from; None in an older proof
    # Offsets that no segment of the source held, although its topic is not compacted; None if not checked.
    gaps: tuple[tuple[int, int], ...] | None = None

    @property
    def holds(self) -> bool:
        return all(segment.holds for segment in self.segments)

    @property
    def records(self) -> int:
        return sum(segment.source.records for segment in self.segments)

    @property
    def sha256(self) -> str:
        """One digest for all: SHA-256, in hex, over those of the source segments, in log order."""
        return hashlib.sha256("".join(segment.source.sha256 for segment in self.segments).encode()).hexdigest()

    def check(self) -> None:
        """Raise ProofMismatchError for the first segment whose sides differ."""
        for segment in self.segments:
            segment.check(Path(self.source) / segment.source.files[0])

    def to_json(self) -> bytes:
        """Return the bytes of the file: format.checked_json."""
        return format_json(_FORMAT, VERSION, indent=1, **asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Proof":
        """Read the file. Raises CorruptCheckpointError if it is inconsistent, UnsupportedVersionError."""
        return cls.parse(path.read_bytes(), path)

    @classmethod
    def parse(cls, raw: bytes, path: Path | str) -> "Proof":
        """Parse bytes that were read from a store."""
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
    gaps = body.pop("gaps", None)
    return Proof(
        segments=segments, left_out=tuple(body.pop("left_out", ())),
        gaps=None if gaps is None else tuple((int(first), int(last)) for first, last in gaps), **body,
    )


@dataclass(frozen=True, slots=True)
class View:
    """Which part of a log's records a digest covers: everything, or what an older format can store."""

    with_time: bool = True
    with_headers: bool = True
    with_control: bool = True
    kept: Callable[[BatchTable], BatchTable] = lambda table: table
    erased: frozenset[bytes] = frozenset()      # keys whose records are left out


EVERYTHING = View()


class Views(NamedTuple):
    """What is compared on each side."""

    source: View
    target: View


def views(profile: Profile, source: Dialect) -> Views:
    """Return what the target can store of the source: the target's digest covers everything in it.

    For messages with tags, records are compared: a tag may be a header on the other side, and control messages are not
    markers.
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
    """Digest the records in `segments`, read from their files; checks each batch's checksum on the way.

    `on_bytes` is called with the bytes of .log read since the last call. Raises CorruptRecordError.
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
    """Yield runs of rows [first, stop) whose keys are not erased: compares bytes, not hashes as BatchFilter does."""
    keys = columns.key
    found = [row for row in range(len(keys)) if keys[row] in erased] if erased else []
    if found:       # control records have no real keys
        control = [range(batch.base_offset, batch.last_offset + 1) for batch in table if batch.is_control]
        found = [row for row in found if not any(columns.offset[row] in offsets for offsets in control)]
    first = 0
    for row in (*found, len(columns)):
        if row > first:
            yield first, row
        first = row + 1
