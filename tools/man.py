"""`seglog man`: the manual pages, generated from the `--help` texts."""
import re
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from pathlib import Path

import click

from seglog._version import __version__
from seglog.fs.aside import make_directories, write_atomically
from seglog.fs.files import OsFileSystem

from . import report
from .cli import COMMANDS, EPILOG, Command, cli
from .options import PATH


@click.command(cls=Command)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.option("--into", type=PATH, metavar="DIR", help="Write the pages of all commands to this directory instead.")
def command(words: Sequence[str], into: Path | None) -> None:
    """Print the manual page of COMMAND, or of seglog, for `man`.

    \b
    seglog man dump | man -l -
    seglog man --into ~/.local/share/man/man1
    """
    if into is None:
        click.echo(page(words), nl=False)
        return
    fs = OsFileSystem()
    make_directories(fs, into)
    for path in _pages():
        write_atomically(fs, into / f"{'-'.join(('seglog', *path))}.1", page(path).encode())
    report.note(f"written to {into}: man -M {into.parent} seglog")


def page(words: Sequence[str]) -> str:
    """Make the page in roff. Raises click.UsageError for an unknown command."""
    found, context = _find(words)
    return "\n".join(_lines(found, context)) + "\n"


def _find(words: Sequence[str]) -> tuple[click.Command, click.Context]:
    found: click.Command = cli
    context = click.Context(cli, info_name="seglog")
    for word in words:
        inner = found.get_command(context, word) if isinstance(found, click.Group) else None
        if inner is None:
            raise click.UsageError(f"no such command '{' '.join(words)}'")
        found = inner
        context = click.Context(found, info_name=word, parent=context)
    return found, context


def _pages(words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    found, context = _find(words)
    if isinstance(found, click.Group):
        for name in found.list_commands(context):
            yield from _pages((*words, name))


def _lines(found: click.Command, context: click.Context) -> Iterator[str]:
    name = context.command_path.replace(" ", "-")
    yield f'.TH "{name.upper()}" "1" "" "seglog {__version__}" "seglog"'
    yield ".ad l"
    text = cleandoc(found.help or "")
    yield ".SH NAME"
    words = context.command_path.split()[1:]
    short = COMMANDS[words[0]] if len(words) == 1 else " ".join(text.split("\n\n")[0].split())
    yield f"{_roff(name)} \\- {_roff(short.rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield f".B {_roff(context.command_path)}"
    yield _roff(" ".join(found.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    for paragraph in text.split("\n\n"):
        yield ".PP"
        if paragraph.startswith("\b"):      # click's mark for lines that must not be re-wrapped
            yield from (".nf", _roff(paragraph.lstrip("\b\n")), ".fi")
        else:
            yield _roff(" ".join(paragraph.split()))
    if isinstance(found, click.Group):
        yield ".SH COMMANDS"
        for inner in found.list_commands(context):
            command_of = found.get_command(context, inner)
            assert command_of is not None
            says = COMMANDS[inner] if found is cli else command_of.get_short_help_str(200)
            yield from (".TP", f".BR {_roff(f'{name}-{inner}')} (1)", _roff(says))
    yield ".SH OPTIONS"
    for parameter in found.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield from (".TP", f".B {_roff(record[0])}", _roff(record[1]))
    yield ".SH EXIT STATUS"
    yield _roff(EPILOG.removeprefix("Exit status: "))
    if found is not cli:
        yield ".SH SEE ALSO"
        yield ".BR seglog (1)"


def _roff(text: str) -> str:
    """Escape what roff would take for a command."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^\.", r"\\&.", escaped, flags=re.MULTILINE)
