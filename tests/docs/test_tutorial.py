"""docs/tutorial.md: its Python runs, one block after the other, and prints what stands below it."""
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:```output\n(?P<output>.*?)```\n)?", re.DOTALL)


def test_the_log_in_a_service_does_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = list(BLOCK.finditer(PAGE.read_text()))
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block["code"], PAGE.name, "exec"), names)
        assert capsys.readouterr().out == (block["output"] or ""), block["code"]
