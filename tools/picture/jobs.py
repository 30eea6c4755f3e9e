"""The part of a managed ledger's page about the jobs of a queue, or the messages of a topic: what waits for what.

Read from the journals and cursors, without opening the queue, so also while a program has it.
"""
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from seglog._kernels.entry_columns import metadata_columns
from seglog.errors import SeglogError
from seglog.ledger.managed.closed import ClosedManagedLedger
from seglog.ledger.managed.cursor_file import CursorState
from seglog.ledger.managed.journal import FILE_NAME, JournalRecord, read_journal
from seglog.ledger.position import Position
from seglog.ledger.stored_entry import columns_of
from seglog.queue.queue import PRIORITIES, stored_priorities
from seglog.topic.delayed_index import DAMAGED
from seglog.topic.leases import Leases

from .. import report
from .page import ROWS_MAX, ReportPage, Section, Table
from .svg import Drawing, number_scale, time_scale
from .time_histogram import TimeHistogram
from .time_limits import TimeLimits

_BARS = 120
# Entries that are read at once.
_CHUNK = 1000
STATES = ("ready", "delayed", "waiting", "taken", "dead")


@dataclass
class _Subscription:
    """What one subscription of one ledger has. `put`: when its jobs were put that are not finished."""

    name: str
    prefix: str
    leases: Leases
    counts: Counter[str] = field(default_factory=Counter)
    put: TimeHistogram = field(default_factory=TimeHistogram)
    oldest_ms: int | None = None
    unreadable: int = 0


def add_jobs(page: ReportPage, path: Path, now_ms: int) -> None:
    """Put what waits for what in front of the page of a managed ledger, if it is that of a queue or a topic."""
    if not (path / FILE_NAME).exists():
        return
    found: list[_Subscription] = []
    words: list[str] = []
    for priority in [0, *stored_priorities(path)]:
        place = path / PRIORITIES / str(priority) if priority else path
        try:
            found += _subscriptions_of(place, f"{priority}/" if priority else "", now_ms)
        except SeglogError as error:
            words.append(f"{place} cannot be read: {error}.")
    counts = sum((one.counts for one in found), Counter())
    words += [f"{one.name} has {report.count_of(one.unreadable, 'entry', 'entries')} that cannot be read."
              for one in found if one.unreadable]
    words.append(
        "Taken: a program has it, or had it when it ended; it comes again unless it is finished. As of what was on the "
        "disk: a program that runs may have gone on."
    )
    page.facts = [*page.facts, *((state, f"{counts[state]:,}", state) for state in STATES)]
    page.sections[:0] = [Section("Jobs", words, _drawing(found), tables=[
        _counts(found, now_ms), *_attempts(found), *_dead(found),
    ])]


def _subscriptions_of(place: Path, prefix: str, now_ms: int) -> Iterator[_Subscription]:
    journal = read_journal(place)
    records = [] if journal is None else journal.records
    with ClosedManagedLedger(place) as ledger:
        for state in ledger.cursors():
            if state.journal is not None:
                one = _Subscription(f"{prefix}{state.name}", prefix, _leases_of(records, state))
                _count(ledger, state, one, now_ms)
                yield one


def _leases_of(records: Sequence[JournalRecord], state: CursorState) -> Leases:
    leases = Leases()
    for record in records:
        if record.subscription == state.name:
            leases.replay(record)
    known = {*leases.attempts, *leases.waiting, *leases.dead}
    leases.forget([at for at in known if _is_finished(state, at)])
    return leases


def _is_finished(state: CursorState, at: tuple[int, int, int]) -> bool:
    position = Position(*at[:2])
    part = state.acknowledged.part_of(position)
    return state.acknowledged.holds(position) or (part is not None and at[2] in part.indexes)


def _count(ledger: ClosedManagedLedger, state: CursorState, one: _Subscription, now_ms: int) -> None:
    acknowledged, leases, counts = state.acknowledged, one.leases, one.counts
    positions = acknowledged.unacknowledged(ledger.extent, 0, ledger.extent.count)
    while chunk := list(islice(positions, _CHUNK)):
        for position, size, due_ms, put_ms in _rows(ledger, chunk, one):
            part = acknowledged.part_of(position)
            left = [number for number in range(size) if part is None or number not in part.indexes]
            one.put.add(put_ms, len(left))
            for number in left:
                held = _state_of(leases, (*position, number), now_ms) or _state_of(leases, (*position, -1), now_ms)
                counts[held or ("delayed" if due_ms > now_ms else "ready")] += 1
                if held != "dead" and (one.oldest_ms is None or put_ms < one.oldest_ms):
                    one.oldest_ms = put_ms
    # (Entries that were copied out of their ledgers, mostly since they are delayed for long.)
    for ledger_id, ids in acknowledged.aside.items():
        for entry_id in ids:
            part = acknowledged.aside_parts.get(Position(ledger_id, entry_id))
            for number in range(part.size) if part is not None else (-1,):
                if part is None or number not in part.indexes:
                    counts[_state_of(leases, (ledger_id, entry_id, number), now_ms) or "delayed"] += 1


def _rows(
    ledger: ClosedManagedLedger, positions: Sequence[Position], one: _Subscription
) -> Iterator[tuple[Position, int, int, int]]:
    """Yield (position, messages, due, put) of entries that can be read."""
    try:
        entries = [ledger.read(position) for position in positions]
        columns = metadata_columns(columns_of(entries)[0])
    except DAMAGED:
        if len(positions) == 1:
            one.unreadable += 1
            return
        for position in positions:
            yield from _rows(ledger, [position], one)
        return
    times = zip(columns.num_messages, columns.deliver_at_time, columns.publish_time, strict=True)
    for entry, (size, due_ms, put_ms) in zip(entries, times, strict=True):
        yield entry.position, max(size, 1), due_ms, put_ms


def _state_of(leases: Leases, at: tuple[int, int, int], now_ms: int) -> str:
    """What the journal says of a message; empty if it says nothing."""
    if at in leases.dead:
        return "dead"
    if at in leases.waiting:
        return "waiting" if leases.waiting[at] > now_ms else "ready"
    return "taken" if at in leases.attempts else ""


def _counts(found: Sequence[_Subscription], now_ms: int) -> Table:
    rows = [
        [one.name, *(f"{one.counts[state]:,}" for state in STATES),
         "–" if one.oldest_ms is None else report.duration(max(now_ms - one.oldest_ms, 0))]
        for one in found[:ROWS_MAX]
    ]
    more = f"{len(found) - ROWS_MAX:,} more: seglog queue stats." if len(found) > ROWS_MAX else ""
    return Table("Jobs", ("subscription", *STATES, "oldest, not dead"), rows, (0,), more)


def _attempts(found: Sequence[_Subscription]) -> list[Table]:
    attempts = Counter(number for one in found for number in one.leases.attempts.values())
    rows = [[f"{number:,}", f"{count:,}"] for number, count in sorted(attempts.items())[:ROWS_MAX]]
    more = f"{len(attempts) - ROWS_MAX:,} more." if len(attempts) > ROWS_MAX else ""
    return [Table("Attempts of jobs that are not finished", ("attempts", "jobs"), rows, (), more)] if rows else []


def _dead(found: Sequence[_Subscription]) -> list[Table]:
    dead = [(one, at, death) for one in found for at, death in one.leases.dead.items()]
    rows = [
        [one.name, _id_of(one, at), f"{death.attempt:,}", report.moment(death.at_ms), death.reason]
        for one, at, death in dead[:ROWS_MAX]
    ]
    more = f"{len(dead) - ROWS_MAX:,} more: seglog queue peek --dead." if len(dead) > ROWS_MAX else ""
    head = ("subscription", "job", "attempts", "since", "reason")
    return [Table("Dead jobs", head, rows, (0, 1, 3, 4), more)] if rows else []


def _id_of(one: _Subscription, at: tuple[int, int, int]) -> str:
    of_entry = f"{one.prefix}{at[0]}:{at[1]}"
    return of_entry if at[2] < 0 else f"{of_entry}:{at[2]}"


def _drawing(found: Sequence[_Subscription]) -> Drawing | None:
    """Jobs that are not finished, by when they were put: where a backlog comes from."""
    put = TimeHistogram()
    for one in found:
        for at_ms, count in one.put.sums().items():
            put.add(at_ms, count)
    if not put:
        return None
    limits = TimeLimits.of(put.sums())
    width_ms, bars = put.bars(limits, _BARS)
    most = max(count for _, count in bars)
    drawing = Drawing(
        "Jobs that are not finished, by when they were put",
        f"{report.count_of(sum(put.sums().values()), 'job')}, put from {report.moment(limits.earliest_ms)} to "
        f"{report.moment(limits.latest_ms)}; at most {most:,} in {report.duration(width_ms)}.",
        height=240,
    )
    x = time_scale(bars[0][0], bars[-1][0] + width_ms, drawing.left, drawing.right)
    y = number_scale(0, most, drawing.bottom, drawing.top)
    drawing.axes(x, y)
    for begin_ms, count in bars:
        if count:
            drawing.told_rectangle(
                "plain", x(begin_ms), y(count), x(begin_ms + width_ms) - x(begin_ms) - 0.5, drawing.bottom - y(count),
                f"{report.moment(begin_ms)}: {report.count_of(count, 'job')}",
            )
    return drawing
