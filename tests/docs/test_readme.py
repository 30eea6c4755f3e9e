"""README.md: its Python runs in an empty directory, its links lead to files.

What its commands print is compared in test_cli_page.py, its table of speed in test_benchmarks_page.py.
"""
import re
from pathlib import Path

from support.pages import run_examples

TOP = Path(__file__).parents[2]
README = TOP / "README.md"


def test_its_python_prints_what_stands_below_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(README, capsys)
    assert count == 4


def speed_rows():
    table = README.read_text().partition("## How fast?")[2].partition("\n## ")[0]
    rows = [[cell.strip(" *") for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", table, re.M)]
    return rows[2:]


def test_the_table_of_speed_shows_where_seglog_loses():
    ratios = [float(ratio) for *_, ratio in speed_rows()]
    assert len(ratios) > 4
    assert min(ratios) < 1


def test_every_link_leads_to_a_file():
    linked = set(re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", README.read_text()))
    assert len(linked) > 20
    assert {path for path in linked if not (TOP / path).exists()} == set()
