"""`seglog report`: draw a log dir, a partition, a managed ledger or a queue."""
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import click

from seglog.errors import MissingLibraryError
from seglog.fs.aside import write_atomically
from seglog.fs.files import OsFileSystem
from seglog.verification.ledger_check import is_managed_ledger

from .. import report
from ..cli import Command
from ..options import SOURCE, TimeType, config_option, progress_option
from ..targets import check_output_file, resolve
from ..topic_config import RETENTION, TopicConfig
from .ledger import ledger_page
from .log_dir import log_dir_page
from .page import ReportPage
from .partition import partition_page

_FORMATS = ("html", "svg", "png")


@click.command(cls=Command)
@click.argument("path", metavar="PATH", type=SOURCE)
@click.option("-o", "--output", "output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="The file to write: an existing one is replaced. [default: report.html]")
@click.option("--kind", "kind", type=click.Choice(_FORMATS),
              help="A page, or only its first drawing. [default: by the name of FILE]")
@click.option("--open", "opens", is_flag=True, help="Show it in the browser.")
@click.option("--now", "now_ms", type=TimeType(), help="The current time to use when looking for future timestamps.")
@config_option
@progress_option
def command(
    path: Path, output: Path | None, kind: str | None, opens: bool, now_ms: int | None,
    settings: Sequence[tuple[str, str]], no_progress: bool,
) -> int:
    """Draw a log dir, a partition, a managed ledger or a queue as one HTML page, which needs no network and can be
    printed.

    For a partition: its segments by offset and time, bytes by time, batches, codecs, findings of `verify`, and what
    retention deletes; before and after, if a conversion made it. For a log dir: a bar for each partition over time, its
    formats, and what is wrong. For a managed ledger: its ledgers, its cursors, and when delayed messages are due; for a
    queue or a topic also its jobs, by what they wait for, and why some are dead. Only reads.
    """
    kind = kind or (output.suffix[1:] if output is not None and output.suffix[1:] in _FORMATS else "html")
    output = output or Path(f"report.{kind}")
    of_ledger = path.is_dir() and is_managed_ledger(path)
    places = [] if of_ledger else resolve([path], unreadable=True)
    check_output_file(output, path)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    with report.Progress(f"reading {path.name or path.resolve().name}", enabled=not no_progress) as progress:
        if of_ledger:
            page = ledger_page(path, now_ms)
        elif places[0].in_log_dir:
            page = log_dir_page(path, places, dict(settings), now_ms, progress)
        else:
            given, told = TopicConfig(settings, RETENTION).of_page(places[0].directory)
            with places[0].open(given) as partition:
                page = partition_page(partition, places[0].name, given, now_ms, progress, told)
    write_atomically(OsFileSystem(), output, _rendered(page, kind))
    print(output)
    if opens:
        webbrowser.open(output.resolve().as_uri())
    return 0


def _rendered(page: ReportPage, kind: str) -> bytes:
    """Render the page in this format. Raises MissingLibraryError."""
    if kind == "html":
        return page.html().encode()
    drawing = page.drawing()
    if kind == "svg":
        return drawing.encode()
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise MissingLibraryError("PNG output needs resvg-py", hint="pip install 'seglog[report]'") from None
    return bytes(svg_to_bytes(svg_string=drawing, width=1920))
