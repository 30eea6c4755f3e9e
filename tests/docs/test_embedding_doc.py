"""docs/embedding.md: its examples run, one after the other, and print what stands below them. docs/processes.md: its
numbers are true."""
import re
import sys
from pathlib import Path

import pytest

import seglog
from support.descriptors import descriptors_of
from support.pages import run_examples

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PLATFORMS = DOCS / "embedding.md", DOCS / "processes.md"


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(PAGE, capsys, printing=True)
    assert count == 4


def test_the_examples_about_processes_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(PLATFORMS, capsys, printing=True)
    assert count == 1


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_a_log_holds_as_many_descriptors_as_the_page_says(tmp_path):
    said = int(re.search(r"holds (\d+) descriptors", PLATFORMS.read_text())[1])
    with seglog.open_dir(tmp_path) as log_dir:
        for partition in range(20):
            log_dir.log("orders", partition).append(b"v")
        assert descriptors_of(tmp_path) == 20 * said + 2
        with seglog.follow(tmp_path / "orders-0") as reader:
            assert reader[0].value == b"v"
            assert descriptors_of(tmp_path) == 20 * said + 2
