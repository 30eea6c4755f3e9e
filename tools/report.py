"""The output of commands: tables, numbers, JSON lines, three-line errors, a progress line.

Results go to stdout; errors, notes and progress to stderr. Text is for people and may change; JSON lines are the
interface: one object a line, with `type` and `schema` first.
"""
import datetime as dt
import errno
import json
import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from seglog.errors import SeglogError, StorageError

from . import terminal

if TYPE_CHECKING:
    import logging

SCHEMA = 1
INTERRUPTED = 130
PARTIAL = 7

# Files up to this size are read in well below a second: they get no progress line.
_PATIENCE_S = 1.0
# Log lines that wait for a terminal, and for how long the last of them are waited for.
_LINES_WAITING_MAX = 1000
_LAST_LINES_S = 1.0
_REDRAW_S = 0.1
_BAR = 20
_PROSE_WIDTH = 79
# A column of text is not cut below this width.
_NARROWEST = 8
_EMPTY = ("", "-")
# The space between a number and its unit, while a table is laid out.
_UNBROKEN = "\u00a0"
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:B|KiB|MiB|GiB|TiB|ms|s)\b)")


# --- JSON lines --------------------------------------------------------------------------


def json_line(type_: str, /, **fields: object) -> str:
    """Format one object: `type`, `schema`, then the fields in the order given."""
    return plain_json({"type": type_, "schema": SCHEMA, **fields})


def plain_json(fields: Mapping[str, object]) -> str:
    """Format one object with only these fields."""
    return json.dumps(fields, separators=(",", ":"), default=_encode)


def print_json(type_: str, /, **fields: object) -> None:
    sys.stdout.write(json_line(type_, **fields) + "\n")


def _encode(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a {type(value).__name__} cannot be shown as JSON")


# --- numbers and times -------------------------------------------------------------------


def number(n: int) -> str:
    """11,635,141"""
    return f"{n:,}"


def count_of(n: int, noun: str, plural: str | None = None) -> str:
    """`1 segment`, `2 segments`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def ranges(offsets: Sequence[tuple[int, int]], most: int = 4) -> str:
    """`0…19, 30, and 2 more ranges`; both ends are included."""
    shown = [f"{first:,}" if first == last else f"{first:,}…{last:,}" for first, last in offsets[:most]]
    if len(offsets) > most:
        shown.append(f"and {count_of(len(offsets) - most, 'more range', 'more ranges')}")
    return ", ".join(shown)


def size(n: float) -> str:
    """Format bytes for people: `312 B`, `4.7 KiB`, `6.6 GiB`."""
    if n < 1024:
        return f"{n:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        n /= 1024
        if n < 1023.95:
            return f"{n:.1f} {unit}"
    return f"{n / 1024:.1f} TiB"


def moment(timestamp_ms: int) -> str:
    """Format a record's timestamp in UTC; `-` for none; the number itself beyond the range of the calendar."""
    if timestamp_ms < 0:
        return "-" if timestamp_ms == -1 else str(timestamp_ms)
    second = _second(timestamp_ms // 1000)
    return f"{second}.{timestamp_ms % 1000:03d}Z" if second else f"{timestamp_ms} ms"


@lru_cache(4096)        # consecutive records often fall in the same second
def _second(seconds: int) -> str:
    try:
        return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""


def duration(ms: float) -> str:
    """`12 ms`, `3.4 s`, `2 h 5 min`, `12 d 3 h`."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def ratio(part: float, whole: float) -> str:
    """`41.3%`; `-` if the whole is 0."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


# --- dry runs ----------------------------------------------------------------------------

# Where a command keeps its arguments, as typed: cli.Command.
TYPED = "seglog.typed"


def applying(*more: str, apply: bool = True) -> str:
    """Return the command that does what this dry run shows: as typed, with --apply and `more`."""
    context = click.get_current_context()
    typed = [word for word in context.meta[TYPED] if word not in ("--dry-run", "--json")]
    added = [*(["--apply"] if apply and "--apply" not in typed else []), *more]
    end = typed.index("--") if "--" in typed else len(typed)
    words = [*context.command_path.split()[1:], *map(shlex.quote, typed[:end]), *added, *map(shlex.quote, typed[end:])]
    return printable(" ".join(("seglog", *words)))


def dry_run_fields(is_dry: bool, is_needed: bool, *more: str, apply: bool = True) -> dict[str, object]:
    """Return the members by which the JSON of every command tells of a dry run: `dry_run`, and `apply`, the command
    that does what it shows; null if there is nothing to do, and if it was done."""
    return {"dry_run": is_dry, "apply": applying(*more, apply=apply) if is_dry and is_needed else None}


def dry_run_text(is_needed: bool, *more: str, apply: bool = True, unread: int = 0) -> str:
    """Return the last line of a dry run. `is_needed`: there is something to do. `unread`: partitions of which that is
    not known, since they could not be read."""
    if not is_needed:
        if unread:
            return f"dry run: nothing to do, but {count_of(unread, 'partition')} could not be read"
        return "dry run: nothing to do"
    return f"dry run: nothing was changed. To do it: {applying(*more, apply=apply)}"


# --- tables ------------------------------------------------------------------------------


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, left: Iterable[int] = (0,), total: bool = False,
    indent: int = 0, optional: Collection[int] = (), whole: Collection[int] = (0,),
) -> str:
    """Format columns two spaces apart, right-aligned except for the columns `left`.

    `total`: the last row is a total, with a rule above it. `optional`: columns that are left out if all their cells are
    empty or `-`. On a terminal, a table that is too wide is fitted: cells break at spaces, but not between a number and
    its unit, the widest first; then the widest of the columns `left` are cut, except for those `whole`, by which rows
    are told apart or which one copies; else each row becomes a block.
    """
    lines = [list(head), *(list(map(printable, row)) for row in rows)]
    empty = {n for n in optional if all(line[n] in _EMPTY for line in lines[1:])}
    if empty:
        kept = [n for n in range(len(head)) if n not in empty]
        lines = [[line[n] for n in kept] for line in lines]
        left, whole = ([kept.index(n) for n in some if n in kept] for some in (left, whole))
    lines = [[_UNIT.sub(_UNBROKEN, terminal.plain(cell)) for cell in line] for line in lines]
    left = set(left)
    widths = [max(map(terminal.width_of, column)) for column in zip(*lines, strict=True)]
    columns = terminal.width()
    if columns is not None and not _narrowed(widths, lines, left.difference(whole), columns - indent):
        return textwrap.indent(_blocks(lines), " " * indent).replace(_UNBROKEN, " ")
    text = ["\n".join(_row(line, widths, left)).replace(_UNBROKEN, " ") for line in lines]
    text[0] = "\n".join(paint(line, "bold") for line in text[0].split("\n"))
    if total:
        text.insert(-1, "-" * _width_of_row(widths))
    return textwrap.indent("\n".join(text), " " * indent)


def _width_of_row(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * len(widths) - 2


def _narrowed(widths: list[int], lines: Sequence[Sequence[str]], cut: Iterable[int], columns: int) -> bool:
    """Make the columns narrower until a row fits; `cut`: those that may be cut. False if it cannot."""
    words = [
        max(terminal.width_of(word) for cell in cells for word in cell.split(" ")) for cells in zip(*lines, strict=True)
    ]
    while _width_of_row(widths) > columns:
        breakable = [n for n, width in enumerate(widths) if width > words[n]]
        chosen = breakable or [n for n in cut if widths[n] > _NARROWEST]
        if not chosen:
            return False
        widths[max(chosen, key=widths.__getitem__)] -= 1
    return True


def _row(cells: Sequence[str], widths: Sequence[int], left: Collection[int]) -> Iterator[str]:
    """Return the lines of a row: more than one if cells break at spaces."""
    broken = [_broken(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*broken, fillvalue=""):
        line = []
        for n, (part, width) in enumerate(zip(parts, widths, strict=True)):
            gap = " " * (width - terminal.width_of(part))
            line.append(part + gap if n in left else gap + part)
        yield "  ".join(line).rstrip()


def _broken(text: str, width: int) -> Sequence[str]:
    if terminal.width_of(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split(" "):
        if lines and terminal.width_of(lines[-1]) + 1 + terminal.width_of(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [terminal.cut(line, width) for line in lines]


def _blocks(lines: Sequence[Sequence[str]]) -> str:
    """Format a line for each cell, with the name of its column, for a terminal that is too narrow for a table."""
    names, *rows = lines
    wide = max(map(terminal.width_of, names))
    return "\n\n".join(
        "\n".join(f"{paint(name.ljust(wide), 'bold')}  {cell}" for name, cell in zip(names, row, strict=True))
        for row in rows
    )


def wrapped(text: str, *, hanging: int = 0) -> list[str]:
    """Wrap prose to the terminal, indented by two spaces, and by `hanging` more from the second line on."""
    return textwrap.wrap(
        text, _PROSE_WIDTH, initial_indent="  ", subsequent_indent=" " * (2 + hanging), break_on_hyphens=False
    )


def printable(text: str) -> str:
    """Escape characters that would not show or would control the terminal: names and topics come from disks, too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- colour ------------------------------------------------------------------------------

_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def paint(text: str, *styles: str, err: bool = False) -> str:
    """Make the text printable, in colour if it goes to a terminal or the user wants colour."""
    text = printable(text)
    if not terminal.has_colour(sys.stderr if err else sys.stdout):
        return text
    return f"\x1b[{';'.join(_SGR[s] for s in styles)}m{text}\x1b[0m"


# --- errors ------------------------------------------------------------------------------


def as_seglog_error(error: Exception) -> SeglogError:
    """Turn an error of the operating system, or an unexpected one, into a SeglogError."""
    if isinstance(error, SeglogError):
        return error
    if isinstance(error, OSError):
        what = error.strerror or str(error) or type(error).__name__
        hint = _OS_HINTS.get(error.errno or 0)
        if error.errno == errno.ENOENT and isinstance(error.filename, str):
            from seglog.fs.refusals import hint_of_topic  # not for `seglog --help`

            hint = hint_of_topic(error.filename) or hint
        return StorageError(what[0].lower() + what[1:], file=error.filename, hint=hint)
    import traceback  # not for `seglog --help`: it takes a tenth of that

    last = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" at {os.path.basename(last[0].filename)}:{last[0].lineno}" if last else ""
    unexpected = SeglogError(
        f"unexpected {type(error).__name__}: {error}{at}".replace("\n", " "),
        hint="set SEGLOG_DEBUG=1 to see the whole traceback, and report it",
    )
    # Not 1: a script must not take a bug of the program for findings in the data.
    unexpected.code, unexpected.exit_status = "internal", 3
    return unexpected


_OS_HINTS = {
    errno.ENOENT: "check the path",
    errno.EACCES: "run as the user that owns the log dir (often `kafka`)",
    errno.EPERM: "run as the user that owns the log dir (often `kafka`)",
    errno.ENOSPC: "free space on the target's file system, or choose another",
    errno.EIO: "the disk failed: look into the kernel log (`dmesg`) before you trust this copy",
}


# Hints of the engine name arguments of Python. (Compiled when there is an error.)
_OPTIONS = (
    (r'on_corrupt="skip"', "`--on-corrupt skip` of `seglog dump` and `export`"),
    (r"on_undecodable='null' or 'raw'", "--on-undecodable null or raw"),
    (r"on_undecodable='(\w+)'", r"--on-undecodable \1"),
    (r'decode=\{"(\w+)": "(\w+)"\}', r"--decode \1=\2"),
    (r'schemas="([^"]+)"', r"--schemas \1"),
    (r"\bdecode=(?!\{)", "--decode"),
    (r'partitions=\["([^"]+)"\]', r"--partition \1"),
)


def as_options(hint: str) -> str:
    """Return the hint with options of commands in place of arguments, and without what only a program can do."""
    hint = hint.partition("; in a program, ")[0]
    for pattern, option in _OPTIONS:
        hint = re.sub(pattern, option, hint)
    return hint


def show_error(error: SeglogError, command_path: str, *, as_json: bool) -> int:
    """Print three lines on stderr, and with `--json` also a line on stdout. Returns the exit status."""
    where, hint = error.where or command_path, as_options(error.hint)
    with suppress(OSError):     # the error may be stdout's own, such as a full disk
        sys.stdout.flush()
    sys.stderr.write(
        f"{paint('error:', 'bold', 'red', err=True)} {_one_line(error.what)} [{error.code}]\n"
        f"  at: {_one_line(where)}\n"
        f"  try: {_one_line(hint)}\n"
    )
    if as_json:
        with suppress(OSError):
            print_json(
                "error", code=error.code, what=error.what, file=error.file, position=error.position,
                offset=error.offset, fix=hint, exit_status=error.exit_status,
            )
            sys.stdout.flush()
    return error.exit_status


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: as with ^C, unfinished output is removed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def show_interrupt(error: BaseException) -> int:
    """Report that a signal ended the command. Returns the exit status: 128 plus the number of the signal."""
    with suppress(OSError):     # after SIGHUP the terminal may be gone
        sys.stderr.write("terminated\n" if isinstance(error, Terminated) else "interrupted\n")
        for remark in getattr(error, "__notes__", ()):
            sys.stderr.write(f"{printable(remark)}\n")
    return 128 + error.number if isinstance(error, Terminated) else INTERRUPTED


def note(text: str) -> None:
    """Print a remark on stderr. --quiet leaves it out."""
    if terminal.wishes.quiet:
        return
    sys.stdout.flush()
    sys.stderr.write(f"{printable(text)}\n")


@contextmanager
def verbosely() -> Iterator[None]:
    """Show the engine's log messages on stderr meanwhile, then the time and the memory used."""
    import logging
    import resource

    began, cpu_began = time.monotonic(), time.process_time()
    handler = logging.StreamHandler()
    handler.setFormatter(_log_lines("%(levelname)s %(name)s: %(message)s"))
    try:
        with _shown_by(handler, logging.DEBUG if terminal.wishes.verbose > 1 else logging.INFO):
            yield
    finally:
        took, cpu = 1000 * (time.monotonic() - began), 1000 * (time.process_time() - cpu_began)
        memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        note(f"took {duration(took)}, {duration(cpu)} of CPU; at most {size(memory_bytes)} of memory")


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Show the engine's warnings on stderr meanwhile, with the time, unless --quiet or -v was given.

    A thread writes them. A terminal that was stopped (^S), or a pipe that nobody empties, stops only this thread: then
    a number of lines wait, and later ones are left out.
    """
    import logging
    import queue
    import threading

    if terminal.wishes.quiet or terminal.wishes.verbose:
        yield
        return
    descriptor = sys.stderr.fileno()
    waiting: queue.Queue[str | None] = queue.Queue(_LINES_WAITING_MAX)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with suppress(queue.Full):
                waiting.put_nowait(self.format(record))

    def write() -> None:
        with suppress(OSError):     # stderr was closed
            while (line := waiting.get()) is not None:
                left = f"{line}\n".encode(errors="backslashreplace")
                while left:     # not by sys.stderr: the end of the process would wait for its lock
                    left = left[os.write(descriptor, left):]

    handler = Handler()
    handler.setFormatter(_log_lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    writer = threading.Thread(target=write, name="seglog warnings", daemon=True)
    writer.start()
    try:
        with _shown_by(handler, logging.WARNING):
            yield
    finally:
        with suppress(queue.Full):
            waiting.put_nowait(None)
        writer.join(_LAST_LINES_S)


def _log_lines(form: str) -> "logging.Formatter":
    """A formatter whose lines are printable: paths and reasons come from disks and clients."""
    import logging

    class Lines(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return "\n".join(printable(line) for line in super().format(record).split("\n"))

    return Lines(form)


@contextmanager
def _shown_by(handler: "logging.Handler", level: int) -> Iterator[None]:
    import logging

    logger = logging.getLogger("seglog")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _one_line(text: str) -> str:
    return printable(" ".join(text.splitlines()))


# --- progress ----------------------------------------------------------------------------


class Progress(terminal.Line):
    """A progress bar on stderr, for terminals, and for work that takes more than a second.

    Call it with (bytes done, total bytes), as often as you like. Work that consists of parts is still one bar:
    pass `total_bytes`, and call what `part` returns.
    """

    def __init__(self, label: str, *, total_bytes: int = 0, enabled: bool = True) -> None:
        super().__init__(enabled=enabled)
        self.label = label
        self.total_bytes = total_bytes
        self._before = self._part = 0       # bytes of the parts before this one, and of this one
        self._began = time.monotonic()
        self._drawn = 0.0

    def part(self, label: str, size_bytes: int) -> Callable[[int, int], None]:
        """Begin the next part: call the result with (done, total) of the part, in any unit."""
        self.label = label
        self._before += self._part
        self._part = size_bytes
        return self._of_part

    def _of_part(self, done: int, total: int) -> None:
        self(self._before + (self._part * done // total if total else 0), self.total_bytes)

    def __call__(self, done: int, total: int) -> None:
        if not self.is_shown:
            return
        now = time.monotonic()
        elapsed = now - self._began
        if elapsed < _PATIENCE_S or now - self._drawn < _REDRAW_S:
            return
        self._drawn = now
        filled = min(done, total) * _BAR // total if total else 0
        sign = "█" if terminal.shows("█", sys.stderr) else "#"
        line = (
            f"[{sign * filled}{' ' * (_BAR - filled)}] {ratio(done, total)}  {size(done)} of {size(total)}  "
            f"{size(done / elapsed)}/s"
        )
        if 0 < done < total:
            line += f"  {duration(1000 * elapsed * (total - done) / done)} left"
        line = terminal.cut(f"{line}  {printable(self.label)}", terminal.columns_of(sys.stderr) - 1)
        self.say(line)
