"""Drawings as SVG: scales, axes with round numbers, marks. Colours are CSS classes."""
import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html

from ..report import printable

WIDTH, HEIGHT = 960, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 10, 34
_TICKS = 6

# The colours of a drawing in its own file; on the page they follow the reader's choice of light or dark.
STYLE = """
.v0{fill:#c2410c}.v1{fill:#a16207}.v2,.plain{fill:#2563eb}.tagged{fill:#0f766e}.bare{fill:#93b4f5}.bad{fill:#dc2626}.late{fill:#9333ea}
.grid{stroke:#8884;stroke-width:1}.dot{stroke:#fff;stroke-width:2;paint-order:stroke}
.axis{font:12px system-ui,sans-serif;fill:#555}
""".strip()

# Possible distances between two ticks of a time axis, in milliseconds.
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_TIME_STEPS = (
    1, 10, 100, _SECOND, 5 * _SECOND, 15 * _SECOND, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR,
    12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY, 91 * _DAY, 182 * _DAY, 365 * _DAY,
    730 * _DAY, 1825 * _DAY, 3650 * _DAY,
)


def escape(text: str) -> str:
    """Escape what XML must not or cannot contain: names come from disks."""
    return escape_html(printable(text))


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps the numbers `low` to `high` to the pixels `begin` to `end`. `show` formats a number."""

    low: float
    high: float
    begin: float
    end: float
    ticks: Sequence[float]
    show: Callable[[float], str]

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1
        return round(self.begin + (self.end - self.begin) * (value - self.low) / span, 1)

    def within(self, value: float) -> float:
        """The pixel of a number; the edge for one outside of the scale."""
        return self(min(max(value, self.low), self.high))


def time_scale(low_ms: int, high_ms: int, begin: float, end: float) -> Scale:
    high_ms = max(high_ms, low_ms + 1)
    wanted = (high_ms - low_ms) / _TICKS
    step = next((step for step in _TIME_STEPS if step >= wanted), _TIME_STEPS[-1])
    while (high_ms - low_ms) / step > 4 * _TICKS:
        step *= 10
    first = -(-low_ms // step) * step
    return Scale(low_ms, high_ms, begin, end, range(first, high_ms + 1, step), lambda ms: moment(int(ms), step))


def number_scale(
    low: float, high: float, begin: float, end: float, show: Callable[[float], str] = lambda n: f"{n:,.0f}"
) -> Scale:
    high = max(high, low + 1)
    rough = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = max(1.0, next(size * n for n in (1, 2, 5, 10) if size * n >= rough))
    first = math.ceil(low / step)
    ticks = [step * n for n in range(first, math.floor(high / step) + 1)]
    return Scale(low, high, begin, end, ticks, show)


def bytes_scale(high: float, begin: float, end: float, show: Callable[[float], str]) -> Scale:
    """From 0 to `high` bytes, with ticks at powers of two, which are round numbers of KiB, MiB, ..."""
    high = max(high, 1)
    step = 2 ** max(0, math.ceil(math.log2(high / _TICKS)))
    return Scale(0, high, begin, end, range(0, math.floor(high) + 1, step), show)


def moment(ms: int, step_ms: int) -> str:
    """Format a time in UTC, as exactly as ticks `step_ms` apart need; beyond the calendar, give the number itself."""
    try:
        at = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    if step_ms >= 30 * _DAY:
        return at.strftime("%Y-%m")
    if step_ms >= _DAY:
        return at.strftime("%Y-%m-%d")
    if step_ms >= _MINUTE:
        return at.strftime("%m-%d %H:%M")
    if step_ms >= _SECOND:
        return at.strftime("%H:%M:%S")
    return at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03}"


@dataclass(slots=True)
class Drawing:
    """What is drawn, in the order of the calls. `title` and `summary` describe it to screen readers."""

    title: str
    summary: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    _parts: list[str] = field(default_factory=list)
    _rectangles: dict[str, list[str]] = field(default_factory=dict)

    @property
    def right(self) -> int:
        return self.width - _RIGHT

    @property
    def bottom(self) -> int:
        return self.height - _BOTTOM

    @property
    def top(self) -> int:
        return _TOP

    def axes(self, x: Scale | None, y: Scale | None) -> None:
        """Draw lines and labels at the ticks of the scales; an axis without a scale has none."""
        if x is not None:
            for tick in x.ticks:
                at = x(tick)
                self._parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{_TOP}" y2="{self.bottom}"/>')
                anchor = "end" if at > self.right - 40 else "middle"
                self.text(at, self.bottom + 18, x.show(tick), anchor)
        if y is not None:
            for tick in y.ticks:
                at = y(tick)
                self._parts.append(f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{at}" y2="{at}"/>')
                self.text(self.left - 6, at + 4, y.show(tick), "end")

    def text(self, x: float, y: float, words: str, anchor: str = "start") -> None:
        self._parts.append(f'<text class="axis" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>')

    def rectangle(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        """Draw a rectangle without a tooltip: ten thousand of them become one path for each colour."""
        path = f"M{x:g} {y:g}h{max(width, 1):.4g}v{max(height, 1):.4g}h-{max(width, 1):.4g}z"
        self._rectangles.setdefault(kind, []).append(path)

    def told_rectangle(
        self, kind: str, x: float, y: float, width: float, height: float, words: str, link: str = ""
    ) -> None:
        """Draw a rectangle with a text for tooltips and screen readers, and optionally a link."""
        body = (
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{max(width, 1):.4g}" height="{max(height, 1):.4g}">'
            f"<title>{escape(words)}</title></rect>"
        )
        self._parts.append(f'<a href="{escape(link)}">{body}</a>' if link else body)

    def dots(self, kind: str, places: Iterable[tuple[float, float]]) -> None:
        path = "".join(f"M{x:g} {y:g}m-3-3h6v6h-6z" for x, y in places)
        if path:
            self._parts.append(f'<path class="{kind} dot" d="{path}"/>')

    def render(self, number: int = 0, style: str = "") -> str:
        """Return the element `<svg>`; with a `style` it can be a file of its own."""
        areas = "".join(f'<path class="{kind}" d="{"".join(paths)}"/>' for kind, paths in self._rectangles.items())
        role = "group" if any(part.startswith("<a ") for part in self._parts) else "img"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="{role}" '
            f'aria-labelledby="t{number} d{number}">'
            f'<title id="t{number}">{escape(self.title)}</title><desc id="d{number}">{escape(self.summary)}</desc>'
        )
        if style:
            head += f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>'
        return head + areas + "".join(self._parts) + "</svg>"
