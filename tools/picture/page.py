"""A page: facts, then sections of text, a drawing and tables. It is self-contained: no scripts, no network."""
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

from seglog._version import __version__
from seglog.errors import InvalidArgumentError, MissingLibraryError

from ..report import printable
from .svg import STYLE, Drawing

# The most rows of a table; the others are counted. Ten thousand segments would make a page of several MB.
ROWS_MAX = 300


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table. `link`: the anchor it links to; `anchor`: its own anchor; `kind`: a CSS class."""

    text: str
    link: str = ""
    anchor: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `left`: the left-aligned columns (text); others are right-aligned. `more`: says what is not shown."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    left: Sequence[int] = (0,)
    more: str = ""

    def cells(self) -> list[list[Cell]]:
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


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
        """Render the page. Raises MissingLibraryError without jinja2."""
        try:
            import jinja2
        except ImportError:
            raise MissingLibraryError("an HTML page needs jinja2", hint="pip install 'seglog[report]'") from None
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
