"""docs/typed.md: its examples run and print what stands below them, and it names all that can be asked."""
import dataclasses
from pathlib import Path

import seglog
from support.pages import run_examples

PAGE = Path(__file__).parents[2] / "docs/typed.md"


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(PAGE, capsys)
    assert count >= 1


def test_everything_that_describes_an_encoding_is_on_the_page():
    text = PAGE.read_text()
    for field in dataclasses.fields(seglog.Typed):
        assert field.name == "kind" or f"| `{field.name}` |" in text, field.name
