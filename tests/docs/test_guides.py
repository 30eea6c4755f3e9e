"""docs/serve.md and docs/delayed.md: their examples run, and print what stands below them."""
from pathlib import Path

import pytest

from support.pages import run_examples

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["serve.md", "delayed.md"])
def test_the_example_prints_what_the_page_says(tmp_path, monkeypatch, capsys, page):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(DOCS / page, capsys)
    assert count == 1


GUIDES = ["delayed.md", "managed_ledger.md", "serve.md", "spark.md", "spark_tables.md", "tables.md"]


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_begins_with_something_to_run(guide):
    lines = (DOCS / guide).read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(("```", "    ")))
    assert first <= 10
