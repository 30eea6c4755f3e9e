"""`seglog diff`: compare two copies of a partition, or two log dirs, record by record."""
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from seglog.errors import InvalidArgumentError
from seglog.segment.positions import LostRange
from seglog.verification.difference import RANGES_MAX, Difference, compare

from . import report
from .cli import Command
from .each_place import EachPlace
from .options import SOURCE, json_option
from .targets import Place

# Ranges of damage that are shown of a partition.
_DAMAGE_SHOWN = 10


@click.command(cls=Command, only_reads=True)
@click.argument("a", metavar="A", type=SOURCE)
@click.argument("b", metavar="B", type=SOURCE)
@json_option
def command(a: Path, b: Path, as_json: bool) -> int:
    """Compare the partition directories A and B, or all partitions of the log dirs A and B: the first offset that
    differs, where their leader epochs part, and what each has that the other lacks.

    Batch boundaries, codecs, record formats and indexes do not matter, and neither do sequence numbers. Of damage, the
    bytes are compared, and the comparison goes on behind it. Status 0: the same records; 1: not; 7: a partition is
    damaged, or could not be read.
    """
    places_a, places_b = EachPlace([a], as_json=as_json), EachPlace([b], as_json=as_json)
    if any(place.only is not None for place in (*places_a, *places_b)):
        raise InvalidArgumentError("diff compares partition directories, or log dirs, not single segments")
    pairs = _pairs([*places_a], [*places_b])
    places = EachPlace([a, b], as_json=as_json)
    differing = damaged = same = 0
    for name, left, right in pairs:
        if left is None or right is None:
            differing += 1
            _print_alone(name, "A" if right is None else "B", as_json=as_json)
            continue
        with places.reading(left), left.open() as ours, right.open() as theirs:
            found = compare(ours, theirs)
            differing += not found.is_same
            damaged += found.is_damaged
            same += found.is_same and not found.is_damaged
            if as_json:
                _print_json(name, left, right, found)
            elif not found.is_same or found.is_damaged or len(pairs) == 1:
                print("\n".join(_text(name, found)))
    if as_json:
        report.print_json(
            "summary", partitions=len(pairs), differing=differing, damaged=damaged, unread=places.unread
        )
    elif len(pairs) > 1:
        words = [f"{same:,} with the same records", f"{differing:,} not"]
        only_damaged = len(pairs) - same - differing - places.unread
        words += [f"{only_damaged:,} the same except for damage"] if only_damaged else []
        words += [f"{places.unread:,} not read"] if places.unread else []
        print(f"{report.count_of(len(pairs), 'partition')}: {', '.join(words)}")
    return report.PARTIAL if damaged else places.status(found=differing > 0)


def _pairs(a: list[Place], b: list[Place]) -> list[tuple[str, Place | None, Place | None]]:
    """Partitions of the same name; two partition directories whatever their names."""
    if len(a) == len(b) == 1 and not (a[0].in_log_dir or b[0].in_log_dir):
        return [(a[0].name, a[0], b[0])]
    of_a, of_b = ({place.name: place for place in places} for places in (a, b))
    return [(name, of_a.get(name), of_b.get(name)) for name in sorted({*of_a, *of_b})]


def _print_alone(name: str, where: str, *, as_json: bool) -> None:
    if as_json:
        report.print_json("partition", partition=name, only_in=where, same=False)
    else:
        print(f"{report.paint(report.printable(name), 'bold')}   only in {where}")


def _print_json(name: str, a: Place, b: Place, found: Difference) -> None:
    for one in found.ranges:
        report.print_json(
            "differing_range", partition=name, kind=one.kind.replace(" ", "_").lower(), first_offset=one.first_offset,
            last_offset=one.last_offset, records=one.records,
        )
    for where, damage in zip("ab", found.damaged, strict=True):
        for lost in damage:
            report.print_json(
                "lost_range", partition=name, of=where, file=lost.file, position=lost.position, size=lost.size_bytes,
                first_offset=lost.first_offset, last_offset=None if lost.last_offset < 0 else lost.last_offset,
                reason=lost.reason,
            )
    report.print_json(
        "partition", partition=name, a=a.path, b=b.path, same=found.is_same, same_damage=found.same_damage,
        first_offset=found.first_offset, equal_records=found.compared, same_bytes=found.same_bytes,
        different=found.records["different"], only_in_a=found.records["only in A"],
        only_in_b=found.records["only in B"], epoch_offset=found.epoch_offset, epochs=found.epochs,
        cut_records=found.cut_records, log_start_offsets=found.starts, log_end_offsets=found.ends, only_in=None,
    )


def _damage(what: str, damage: Sequence[LostRange]) -> Iterable[str]:
    for lost in damage[:_DAMAGE_SHOWN]:
        offsets = f"{lost.first_offset:,}…" + (f"{lost.last_offset:,}" if lost.last_offset >= 0 else "?")
        yield f"  {what}: offsets {offsets}, {report.size(lost.size_bytes)}: {lost.reason}"
    if len(damage) > _DAMAGE_SHOWN:
        more = report.count_of(len(damage) - _DAMAGE_SHOWN, "more range")
        yield f"  and {more}: `seglog verify` lists them"


def _text(name: str, found: Difference) -> Iterable[str]:
    yield report.paint(report.printable(name), "bold") + (
        f"   A: from {found.starts[0]:,} to before {found.ends[0]:,}, "
        f"B: from {found.starts[1]:,} to before {found.ends[1]:,}"
    )
    if found.same_damage:
        yield from _damage("both have the same damaged bytes", found.damaged[0])
    else:
        for where, damage in zip("AB", found.damaged, strict=True):
            yield from _damage(f"{where} is damaged", damage)
    same = report.count_of(found.compared, "record")
    other = found.compared - found.same_bytes
    are = "is" if found.compared == 1 else "are"
    yield f"  {same} {are} the same" + (f", {other:,} of them in batches with other bytes" if other else "")
    if found.is_same:
        return
    yield f"  first difference at offset {found.first_offset:,}"
    if found.epoch_offset is not None and found.epochs is not None:
        yield (
            f"  leader epochs part at offset {found.epoch_offset:,}: {found.epochs[0]} in A, {found.epochs[1]} in B"
        )
        a, b = found.cut_records
        yield (
            f"  as replicas, the one that follows the other is cut there: A would lose {report.count_of(a, 'record')}, "
            f"B {b:,}"
        )
    yield report.table(
        ("offsets", "records", ""),
        [[f"{one.first_offset:,}…{one.last_offset:,}", f"{one.records:,}", one.kind] for one in found.ranges],
        left=(0, 2), indent=2,
    )
    shown = sum(one.records for one in found.ranges)
    total = sum(found.records.values())
    if shown < total:
        yield f"  and {report.count_of(total - shown, 'record')} more, after the first {RANGES_MAX} ranges"
