"""docs/embedding.md: its examples run, one after the other, and print what stands below them."""
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/embedding.md"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n```output\n(?P<output>.*?)```\n", re.DOTALL)


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    examples = list(EXAMPLE.finditer(PAGE.read_text()))
    assert len(examples) == 3
    for example in examples:
        exec(compile(example["code"], PAGE.name, "exec"), names)
        assert capsys.readouterr().out == example["output"], example["code"]
