"""docs/tables.md and docs/table_details.md: their examples run, and print what stands below them."""
import re
from pathlib import Path

import pytest

import seglog
from seglog._kernels.topic_rows import COLUMNS
from support.pages import run_examples

DOCS = Path(__file__).parents[2] / "docs"
DETAILS = DOCS / "table_details.md"


@pytest.mark.parametrize("page", ["tables.md", "table_details.md"])
def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys, page):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(DOCS / page, capsys)
    assert count > 4


DOORS = {name for name in dir(seglog.TopicScan) if not name.startswith("_")}
# For whoever pushes filters down, and for polars.
INNER = {"select"}


@pytest.mark.parametrize("name", sorted(DOORS - INNER | set(COLUMNS)))
def test_whatever_a_scan_can_be_asked_is_on_the_page(name):
    assert re.search(rf"\b{name}\b", DETAILS.read_text())
