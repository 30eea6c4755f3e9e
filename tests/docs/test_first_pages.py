"""docs/index.md, docs/install.md and docs/concepts.md: their examples run and print what stands below them."""
from pathlib import Path

import pytest

from support.pages import run_examples

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["concepts.md", "index.md", "install.md"])
def test_the_example_prints_what_the_page_says(tmp_path, monkeypatch, capsys, page):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(DOCS / page, capsys)
    assert count == 1
