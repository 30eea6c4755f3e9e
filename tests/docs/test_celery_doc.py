"""docs/celery.md: its examples run, print what stands below them, and name every option."""
import importlib
from pathlib import Path

import pytest

from support.pages import run_examples

pytest.importorskip("celery", reason="the extra `test` brings it")
kombu = pytest.importorskip("kombu")
importlib.import_module("kombu.pools")

PAGE = Path(__file__).parents[2] / "docs/celery.md"


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, names = run_examples(PAGE, capsys)
    kombu.pools.reset()
    names["app"].close()
    assert count == 2
    assert (tmp_path / "data/celery/celery").is_dir()


def test_every_option_of_the_transport_is_on_the_page():
    from seglog.kombu import _OPTIONS
    page = PAGE.read_text()
    assert [name for name in _OPTIONS if f"`{name}`" not in page] == []
