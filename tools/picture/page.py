"""A page: facts, then sections of text, a drawing and tables. It is self-contained: no scripts, no network."""
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import resources

from seglog._version import __version__
from seglog.errors import InvalidArgumentError

from ..report import printable
from .svg import STYLE, Drawing

# The most rows of a table; the others are counted. Ten thousand segments would make a page of several MB.
ROWS_MAX = 300
# Letters that a cell has on one line.
_PROSE = 32


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table. `link`: the anchor it links to; `anchor`: its own anchor; `kind`: a CSS class. `styles`: all
    its classes, which its table sets."""

    text: str
    link: str = ""
    anchor: str = ""
    kind: str = ""
    styles: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `left`: the left-aligned columns (text); others are right-aligned. `more`: says what is not shown."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    left: Sequence[int] = (0,)
    more: str = ""

    def cells(self) -> list[list[Cell]]:
        return [[self._styled(n, cell) for n, cell in enumerate(row)] for row in self.rows]

    def _styled(self, column: int, cell: Cell | str) -> Cell:
        cell = cell if isinstance(cell, Cell) else Cell(cell)
        is_left = column in self.left
        # What is longer than the name of a segment is read as text: it breaks, within a width that can be read.
        is_prose = is_left and len(cell.text) > _PROSE
        styles = [*(["left"] if is_left else []), *(["prose"] if is_prose else []), *([cell.kind] if cell.kind else [])]
        return replace(cell, styles=" ".join(styles))


@dataclass(slots=True)
class Section:
    title: str
    words: Sequence[str] = ()
    drawing: Drawing | None = None
    legend: Sequence[tuple[str, str]] = ()      # (class, label)
    tables: list[Table] = field(default_factory=list)


@dataclass(slots=True)
class ReportPage:
    """`facts`: (name, value, data-fact); data-fact is the field's name in `stats --json` or `ls --json`."""

    title: str
    path: str
    made: str
    facts: Sequence[tuple[str, str, str]]
    sections: list[Section]

    def html(self) -> str:
        import jinja2

        environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_shown)
        template = resources.files(__package__).joinpath("page.html.j2").read_text("utf-8")
        drawings = [section.drawing.render(n) if section.drawing else "" for n, section in enumerate(self.sections)]
        return environment.from_string(template).render(page=self, drawings=drawings, version=__version__, style=STYLE)

    def drawing(self) -> str:
        """Render the first drawing, as a file of its own."""
        drawing = next((section.drawing for section in self.sections if section.drawing), None)
        if drawing is None:
            raise InvalidArgumentError(
                "there is nothing to draw: no batch has a timestamp", file=self.path, hint="-o report.html"
            )
        return drawing.render(style=STYLE)


def _shown(value: object) -> object:
    """Escape what a page cannot show: names come from disks. Markup (`|safe`) is ours."""
    return printable(value) if type(value) is str else value
