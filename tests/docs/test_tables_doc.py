"""docs/tables.md: its examples run, one after the other, and print what stands below them."""
import re
from pathlib import Path

import pytest

import seglog
from seglog._kernels.topic_rows import COLUMNS
from support.pages import run_examples

PAGE = Path(__file__).parents[2] / "docs/tables.md"


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(PAGE, capsys)
    assert count > 5


DOORS = {name for name in dir(seglog.TopicScan) if not name.startswith("_")}
# For whoever pushes filters down, and for polars.
INNER = {"select"}


@pytest.mark.parametrize("name", sorted(DOORS - INNER | set(COLUMNS)))
def test_whatever_a_scan_can_be_asked_is_on_the_page(name):
    assert re.search(rf"\b{name}\b", PAGE.read_text())
