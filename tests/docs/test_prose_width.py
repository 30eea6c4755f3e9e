"""Lines of prose in the project's markdown have 120 characters at most: terminals and diffs show them, too.

Not held to it: code, tables, and a line with one word (a URL, a span of code) that alone is longer than that.
"""
import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
WIDTH = 120
FENCE = re.compile(r"\s*(```|~~~)")
ROOMS = ("benches", "docs", "cext", "proto", "tests")
PAGES = sorted({*TOP.glob("*.md"), *(page for room in ROOMS for page in (TOP / room).rglob("*.md"))})
PAGES = [page for page in PAGES if "unpacked" not in page.parts]


def long_lines(text):
    """(line number, length) of each line of prose that is too long."""
    fenced = in_paragraph = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not line.strip() or fenced:
            in_paragraph = False
        # After an empty line, four spaces begin code. Within a paragraph or a list item they continue it.
        elif in_paragraph or not line.startswith("    "):
            in_paragraph = True
            indent = len(line) - len(line.lstrip())
            longest_word = max(map(len, line.split()))
            if len(line) > WIDTH >= indent + longest_word and not line.lstrip().startswith("|"):
                yield number, len(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_lines_of_prose_fit(page):
    assert list(long_lines(page.read_text())) == []


def test_what_counts_as_prose():
    words = "word " * 25
    assert list(long_lines(f"{words}\n\n* {words}\n    {words}\n")) == [(1, 125), (3, 127), (4, 129)]
    assert list(long_lines(f"```\n{words}\n```\n\n    {words}\n\n| {words} |\n{'x' * 121}\n{words[:120]}\n")) == []
