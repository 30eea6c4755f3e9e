"""Recovers a ledger whose writer died: finds the intact part of its file, cuts the rest, rebuilds the indexes.

Like a log's recovery, over one segment: a torn tail (damage that no intact batch follows) is truncated; damage in the
middle is an error or, if the caller asks for it, cut as well. In addition, the ids of a ledger's entries must have no
gaps.
"""
from dataclasses import dataclass
from pathlib import Path

from seglog.errors import CorruptRecordError
from seglog.format import names
from seglog.fs.aside import shorten, write_again, write_derived
from seglog.fs.files import FileSystem
from seglog.fs.mapping import Mapping
from seglog.ledger.entry_writer import SEGMENT
from seglog.ledger.ledger_metadata import LedgerEnd
from seglog.segment.indexes import index_bytes
from seglog.segment.missing_sectors import lacks_a_sector
from seglog.segment.recovery import Damage, check_segment
from seglog.segment.segment import Segment

A_GAP = "the entries are not consecutive"
FOREIGN = "a v2 batch with another magic"


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """The contents of a ledger's .log: intact entries up to its first damage."""

    path: Path
    size_bytes: int
    damages: tuple[Damage, ...]
    # Whether the first damage is the tail of an unfinished write: no intact batch follows it.
    is_torn_tail: bool
    # One past the last intact entry.
    next_id: int


def check_ledger(log: Path) -> LedgerCheck:
    """Read the whole .log of a ledger. Raises StorageError."""
    check = check_segment(log, 0, names.MAX_OFFSET, SEGMENT)
    misplaced = [
        Damage(position, check.size_bytes, 0, -1, FOREIGN, is_misplaced=True) for position in check.foreign_magics
    ]
    if not misplaced and (gap := _first_gap(log)):
        misplaced.append(Damage(gap[0], check.size_bytes, gap[1], -1, A_GAP, is_misplaced=True))
    damages = sorted([*check.damages, *misplaced], key=lambda damage: damage.start)
    is_torn_tail = bool(damages) and not check.has_run_behind_damage and (
        not damages[0].is_misplaced or (damages[0] in check.damages and _never_arrived(log, damages[0]))
    )
    return LedgerCheck(log, check.size_bytes, tuple(damages), is_torn_tail, check.next_offset)


def _never_arrived(log: Path, damage: Damage) -> bool:
    """Whether only a batch's base offset was in a missing sector: then its CRC is still correct."""
    with Mapping(log) as whole:
        return lacks_a_sector(memoryview(whole), damage)


def _first_gap(log: Path) -> tuple[int, int] | None:
    """Return (position, expected id) of the first intact batch whose entries do not follow those before it."""
    expected = 0
    for batch in Segment(log, is_last=False).batches(check_crc=False, on_lost=lambda _: None):
        if batch.base_offset != expected or batch.count != batch.last_offset - batch.base_offset + 1:
            return batch.position, expected
        expected = batch.last_offset + 1
    return None


def recover_segment(
    fs: FileSystem, check: LedgerCheck, now_ms: int, *, truncate: bool, synced_bytes: int = 0
) -> LedgerEnd:
    """Truncate the .log after its last intact entry, durably, and its indexes accordingly. `synced_bytes`: this much of
    it is known to be on the disk.

    Raises CorruptRecordError for damage in the middle, unless `truncate`, which truncates there; then nothing has
    changed.
    """
    log = check.path
    if check.damages:
        damage = check.damages[0]
        if not check.is_torn_tail and not truncate:
            raise CorruptRecordError(
                damage.reason, file=log, position=damage.start, offset=damage.first_offset,
                hint="`seglog ledger recover --truncate --apply` truncates the ledger here",
            )
        shorten(fs, log, damage.start, is_torn_tail=check.is_torn_tail and not damage.is_misplaced)
    else:
        # What was read may be only in the page cache, even after a sync of it (docs/durability.md).
        write_again(fs, log, min(synced_bytes, check.size_bytes))
    segment = Segment(log, is_last=False)
    for suffix, raw in index_bytes(segment, SEGMENT).files(SEGMENT):
        write_derived(fs, log.with_suffix(suffix), raw, log)
    fs.sync_directory(log.parent)
    largest = segment._largest_passed
    return LedgerEnd(segment.next_offset, segment.size_bytes, -1 if largest is None else largest, now_ms)
