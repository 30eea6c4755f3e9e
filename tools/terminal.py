"""What the terminal can show, and what the user wants: colour, width, characters, verbosity.

Every command takes these options (`display_options`), and `seglog` itself takes them before the command.
"""
import codecs
import os
import sys
import unicodedata
from typing import Any, Self, TextIO

import click

_COLUMNS = 80


class Wishes:
    """`color`: always, never or auto; `verbose`: how often -v was given."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A process may run several commands, as tests do."""
        self.color = "auto"
        self.full = False
        self.quiet = False
        self.verbose = 0


wishes = Wishes()


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:       # otherwise the option given before the command holds
        assert parameter.name is not None
        setattr(wishes, parameter.name, value)


def display_options() -> list[click.Option]:
    """Return the options that every command accepts, and that are not passed to its function."""
    return [
        click.Option(["--full"], is_flag=True, expose_value=False, callback=_keep,
                     help="Do not cut or wrap lines to the width of the terminal."),
        click.Option(["--color"], type=click.Choice(["auto", "always", "never"]), expose_value=False, callback=_keep,
                     help="Use colour on terminals (auto), always or never. Honours NO_COLOR and FORCE_COLOR."),
        click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=_keep,
                     help="No progress and no notes; errors are still shown."),
        click.Option(["-v", "--verbose"], count=True, expose_value=False, callback=_keep,
                     help="Show what the engine logs, and the time and memory used. -vv: with details."),
    ]


# --- colour ------------------------------------------------------------------------------


def has_colour(stream: TextIO) -> bool:
    """--color decides, then NO_COLOR (no-color.org), then FORCE_COLOR, then whether the stream is a terminal."""
    if wishes.color != "auto":
        return wishes.color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()


# --- progress ----------------------------------------------------------------------------


class Line:
    """A line on stderr that changes, only on a terminal (`is_shown`). As a context manager it wipes its line."""

    def __init__(self, *, enabled: bool) -> None:
        self.is_shown = enabled and shows_progress()
        self._width = 0

    def say(self, words: str) -> None:
        """Show these words in place of the last ones."""
        if self.is_shown:
            sys.stderr.write("\r" + words.ljust(self._width))
            sys.stderr.flush()
            self._width = len(words)

    def wipe(self) -> None:
        """Remove the line, so that a result can be printed in its place."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()


# --- width -------------------------------------------------------------------------------


def is_terminal() -> bool:
    return sys.stdout.isatty()


def shows_progress() -> bool:
    """Whether a progress line on stderr is useful and wanted."""
    return not wishes.quiet and sys.stderr.isatty()


def width() -> int | None:
    """Return the width to which lines on stdout are cut; None if they are not."""
    if wishes.full or not is_terminal():
        return None
    return columns_of(sys.stdout)


def columns_of(stream: TextIO) -> int:
    """Like shutil.get_terminal_size, whose module loads every compression library."""
    try:
        if (columns := int(os.environ["COLUMNS"])) > 0:
            return columns
    except (KeyError, ValueError):
        pass
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, AttributeError, ValueError):
        return _COLUMNS


def help_width() -> int:
    """Return the width of help texts: click's own rule, which would load `shutil`."""
    return max(min(columns_of(sys.stdout), _COLUMNS) - 2, 50)


def width_of(text: str) -> int:
    """Count terminal columns: East Asian characters take two, combining accents none."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """Return the text, or as much of it as fits, with `…` at its end."""
    if len(text) <= columns and width_of(text) <= columns:
        return text
    end = plain("…")
    left = columns - len(end)
    kept = []
    for letter in text[:columns]:
        left -= _columns(letter)
        if left < 0:
            break
        kept.append(letter)
    return "".join(kept) + end


# --- characters -----------------------------------------------------------------------------

# Replacements of our own symbols that the encoding lacks. Data from disks is escaped instead (`shows`).
_ASCII = {"…": "...", "×": "x", "–": "-", "—": "-", "·": ".", "→": "->", "≤": "<=", "≥": ">=", "µ": "u", "█": "#"}
_BLOCKS = "▏▎▍▌▋▊▉"
_ASCII |= dict.fromkeys(_BLOCKS[:3], " ") | dict.fromkeys(_BLOCKS[3:], "#")
_ASCII |= dict(zip("▁▂▃▄▅▆▇", "._-=+*%", strict=True))


def shows(text: str, stream: TextIO | None = None) -> bool:
    """Whether the encoding of stdout has all of these characters."""
    if text.isascii():
        return True
    try:
        text.encode(getattr(stream or sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def plain(text: str) -> str:
    """Return the text with our own symbols as stdout can show them."""
    return text if shows(text) else "".join(c if shows(c) else _ASCII.get(c, c) for c in text)


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start:error.end]
    return "".join(_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in letters), error.end


codecs.register_error("seglog", _replaced)


def set_up(stream: TextIO) -> None:
    """Let a stream show every text: our own symbols in ASCII, all else that it cannot encode escaped."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="seglog")
