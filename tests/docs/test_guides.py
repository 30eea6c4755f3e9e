"""Guides with examples of their own: they run, and print what stands below them."""
from pathlib import Path

import pytest

from support.pages import run_examples

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "examples"), [
    ("serve.md", 2), ("serving.md", 1), ("delayed.md", 1), ("backup.md", 3),
])
def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys, page, examples):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(DOCS / page, capsys)
    assert count == examples


GUIDES = ["delayed.md", "managed_ledger.md", "serve.md", "spark.md", "spark_tables.md", "tables.md"]


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_begins_with_something_to_run(guide):
    lines = (DOCS / guide).read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(("```", "    ")))
    assert first <= 10
