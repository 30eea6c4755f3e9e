"""docs/asyncio.md: its examples run, in both loops, and print what stands below them."""
import asyncio
import inspect
import re
from pathlib import Path

import pytest

import seglog.aio
from support.loops import in_both_loops
from support.pages import examples_of

PAGE = Path(__file__).parents[2] / "docs/asyncio.md"


@in_both_loops
def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys, new_loop):
    monkeypatch.chdir(tmp_path)

    def run(main):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main)

    monkeypatch.setattr(asyncio, "run", run)
    names = {}
    examples = examples_of(PAGE, printing=True)
    assert len(examples) == 3
    for code, output in examples:
        exec(compile(code, PAGE.name, "exec"), names)
        assert sorted(capsys.readouterr().out.splitlines()) == sorted(output.splitlines()), code


@pytest.mark.parametrize("name", [
    name for name, _ in inspect.getmembers(seglog.aio.AsyncLog, callable) if not name.startswith("_")
])
def test_the_page_names_every_method(name):
    assert re.search(rf"\b{name}\b", PAGE.read_text())
