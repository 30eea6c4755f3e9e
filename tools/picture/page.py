"""A page: facts, then sections of words, a drawing and tables. It needs nothing else: no script, no network."""
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

from seglog._version import __version__
from seglog.errors import InvalidArgumentError, MissingLibraryError

from .svg import STYLE, Drawing

# Rows of a table: what is left out is counted. Ten thousand segments would be a page of several MB.
ROWS_MAX = 300


@dataclass(frozen=True, slots=True)
class Cell:
    """`link`: to an anchor of the page; `anchor`: this one is; `kind`: a class of the style."""

    text: str
    link: str = ""
    anchor: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """`left`: the columns of words; numbers stand to the right. `more`: what is not shown, in words."""

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
    legend: Sequence[tuple[str, str]] = ()      # (class, words)
    tables: list[Table] = field(default_factory=list)


@dataclass(slots=True)
class ReportPage:
    """`facts`: (name, value, data-fact): what `stats --json` or `ls --json` says under that name."""

    title: str
    path: str
    made: str
    facts: Sequence[tuple[str, str, str]]
    sections: list[Section]

    def html(self) -> str:
        """Raises MissingLibraryError without jinja2."""
        try:
            import jinja2
        except ImportError:
            raise MissingLibraryError("a page is made with jinja2", hint="pip install 'seglog[report]'") from None
        environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        template = resources.files(__package__).joinpath("page.html.j2").read_text("utf-8")
        drawings = [section.drawing.render(n) if section.drawing else "" for n, section in enumerate(self.sections)]
        return environment.from_string(template).render(page=self, drawings=drawings, version=__version__, style=STYLE)

    def drawing(self) -> str:
        """The first one, to stand alone."""
        drawing = next((section.drawing for section in self.sections if section.drawing), None)
        if drawing is None:
            raise InvalidArgumentError(
                "there is nothing to draw: no batch has a timestamp", file=self.path, hint="-o report.html"
            )
        return drawing.render(style=STYLE)
