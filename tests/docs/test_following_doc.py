"""docs/following.md: its examples run, one after the other, and print what stands below them."""
import re
from pathlib import Path

import pytest

import seglog
from support.pages import run_examples

PAGE = Path(__file__).parents[2] / "docs/following.md"


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(PAGE, capsys)
    assert count


@pytest.mark.parametrize("name", ["follow", "open_partition", "refresh", "durable", "timeout"])
def test_the_page_names_what_there_is(name):
    assert re.search(rf"\b{name}\b", PAGE.read_text())
    assert any(hasattr(place, name) for place in (seglog, seglog.Follower)) or name in ("durable", "timeout")
