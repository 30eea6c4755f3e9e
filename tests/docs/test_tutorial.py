"""docs/tutorial.md: its Python runs, one block after the other, and prints what stands below it."""
from pathlib import Path

from support.pages import run_examples

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"


def test_the_log_in_a_service_does_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(PAGE, capsys)
    assert count == 4
