"""How a command speaks: tables, numbers, JSON lines, three-line errors, a progress line.

Results go to stdout; errors, notes and progress to stderr. Text is for people and may change,
JSON lines are the interface: one object a line, its `type` and `schema` first.
"""
import datetime as dt
import errno
import json
import os
import sys
import textwrap
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import TracebackType
from typing import Self

from seglog.errors import SeglogError, StorageError

SCHEMA = 1
INTERRUPTED = 130
PARTIAL = 7

# A file that is as long as this claims to be read in well below a second: no progress line for it.
_PATIENCE_S = 1.0
_REDRAW_S = 0.1
_PROSE_WIDTH = 79


# --- JSON lines --------------------------------------------------------------------------


def json_line(type_: str, /, **fields: object) -> str:
    """One object: `type`, `schema`, then the fields in the order given."""
    return plain_json({"type": type_, "schema": SCHEMA, **fields})


def plain_json(fields: Mapping[str, object]) -> str:
    """One object of just these fields."""
    return json.dumps(fields, separators=(",", ":"), default=_encode)


def print_json(type_: str, /, **fields: object) -> None:
    sys.stdout.write(json_line(type_, **fields) + "\n")


def _encode(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


# --- numbers and times -------------------------------------------------------------------


def number(n: int) -> str:
    """11,635,141"""
    return f"{n:,}"


def count_of(n: int, noun: str, plural: str | None = None) -> str:
    """`1 segment`, `2 segments`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def size(n: float) -> str:
    """Bytes as people read them: `312 B`, `4.7 KiB`, `6.6 GiB`."""
    if n < 1024:
        return f"{n:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        n /= 1024
        if n < 1023.95:
            return f"{n:.1f} {unit}"
    return f"{n / 1024:.1f} TiB"


def moment(timestamp_ms: int) -> str:
    """A record's timestamp in UTC; `-` for none; the bare number where no calendar reaches it."""
    if timestamp_ms < 0:
        return "-" if timestamp_ms == -1 else str(timestamp_ms)
    second = _second(timestamp_ms // 1000)
    return f"{second}.{timestamp_ms % 1000:03d}Z" if second else f"{timestamp_ms} ms"


@lru_cache(4096)        # records of one second follow each other
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
    """`41.3%`; `-` of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


# --- tables ------------------------------------------------------------------------------


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, left: Iterable[int] = (0,), total: bool = False
) -> str:
    """Columns two spaces apart, numbers to the right, the columns `left` to the left.

    `total`: the last row is one, and a rule goes above it.
    """
    lines = [list(head), *(list(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = set(left)
    text = [
        "  ".join(
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    text[0] = paint(text[0], "bold")
    if total:
        text.insert(-1, "-" * len("  ".join("x" * width for width in widths)))
    return "\n".join(text)


def wrapped(text: str, *, hanging: int = 0) -> list[str]:
    """Prose in lines that fit a terminal, indented by two spaces, and by `hanging` more from the second line on."""
    return textwrap.wrap(
        text, _PROSE_WIDTH, initial_indent="  ", subsequent_indent=" " * (2 + hanging), break_on_hyphens=False
    )


def printable(text: str) -> str:
    """With escapes for what would not show, or would command the terminal: names and topics come from disks, too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- colour ------------------------------------------------------------------------------

_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def paint(text: str, *styles: str, err: bool = False) -> str:
    """The text, made printable, in colour on a terminal, unless NO_COLOR says no (no-color.org)."""
    text = printable(text)
    stream = sys.stderr if err else sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{';'.join(_SGR[s] for s in styles)}m{text}\x1b[0m"


# --- errors ------------------------------------------------------------------------------


def as_seglog_error(error: Exception) -> SeglogError:
    """What the operating system and the unexpected look like in our words."""
    if isinstance(error, SeglogError):
        return error
    if isinstance(error, OSError):
        what = error.strerror or str(error) or type(error).__name__
        hint = _OS_HINTS.get(error.errno or 0)
        return StorageError(what[0].lower() + what[1:], file=error.filename, hint=hint)
    last = traceback.extract_tb(error.__traceback__)[-1:]
    at = f" at {os.path.basename(last[0].filename)}:{last[0].lineno}" if last else ""
    unexpected = SeglogError(
        f"unexpected {type(error).__name__}: {error}{at}".replace("\n", " "),
        hint="set SEGLOG_DEBUG=1 to see the whole traceback, and report it",
    )
    # Not 1: a script must not take a fault of the program for findings in the data.
    unexpected.code, unexpected.exit_status = "internal", 3
    return unexpected


_OS_HINTS = {
    errno.ENOENT: "check the path",
    errno.EACCES: "run as the user that owns the log dir (often `kafka`)",
    errno.EPERM: "run as the user that owns the log dir (often `kafka`)",
    errno.ENOSPC: "free space on the target's file system, or choose another",
    errno.EIO: "the disk refuses: look into the kernel log (`dmesg`) before you trust this copy",
}


def show_error(error: SeglogError, command_path: str, *, as_json: bool) -> int:
    """Three lines on stderr, and with `--json` a line on stdout too. Returns the exit status."""
    where = error.where or command_path
    with suppress(OSError):     # it may be stdout itself that takes no more: a full disk
        sys.stdout.flush()
    sys.stderr.write(
        f"{paint('error:', 'bold', 'red', err=True)} {_one_line(error.what)} [{error.code}]\n"
        f"  at: {_one_line(where)}\n"
        f"  try: {_one_line(error.hint)}\n"
    )
    if as_json:
        with suppress(OSError):
            print_json(
                "error", code=error.code, what=error.what, file=error.file, position=error.position,
                offset=error.offset, fix=error.hint, exit_status=error.exit_status,
            )
            sys.stdout.flush()
    return error.exit_status


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: as ^C, what is half made is removed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def show_interrupt(error: BaseException) -> int:
    """Say that a signal ended the command. Returns the exit status: 128 and the number of the signal."""
    with suppress(OSError):     # after SIGHUP nobody may listen
        sys.stderr.write("terminated\n" if isinstance(error, Terminated) else "interrupted\n")
    return 128 + error.number if isinstance(error, Terminated) else INTERRUPTED


def note(text: str) -> None:
    """A remark beside the result."""
    sys.stdout.flush()
    sys.stderr.write(f"{printable(text)}\n")


def _one_line(text: str) -> str:
    return printable(" ".join(text.splitlines()))


# --- progress ----------------------------------------------------------------------------


class Progress:
    """A line on stderr that says how far; for a terminal, and for work of more than a second.

    Call it with (bytes done, bytes in all), as often as wanted. As a context manager it wipes its line.
    """

    def __init__(self, label: str, *, enabled: bool = True) -> None:
        self.label = label
        self._enabled = enabled and sys.stderr.isatty()
        self._began = time.monotonic()
        self._drawn = 0.0
        self._width = 0

    def __call__(self, done: int, total: int) -> None:
        if not self._enabled:
            return
        now = time.monotonic()
        elapsed = now - self._began
        if elapsed < _PATIENCE_S or now - self._drawn < _REDRAW_S:
            return
        self._drawn = now
        line = f"{self.label}  {size(done)} of {size(total)}  {ratio(done, total)}  {size(done / elapsed)}/s"
        if 0 < done < total:
            line += f"  {duration(1000 * elapsed * (total - done) / done)} left"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
