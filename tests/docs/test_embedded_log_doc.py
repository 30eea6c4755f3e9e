"""docs/embedded_log.md: its examples run, one after the other, and print what stands below them."""
import re
from pathlib import Path

import pytest

import seglog
from seglog.config import LogConfig, keys
from seglog.log.stats import LogStats
from seglog.upkeep.cleaner_config import CleanerConfig
from support.pages import run_examples

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs/embedded_log.md"


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(PAGE, capsys)
    assert count > 6


# For whoever reads the source.
INNER = {
    "find_offset", "tables", "segments", "high_watermark", "recovery_point",
}


@pytest.mark.parametrize("name", sorted(name for name in {*dir(seglog.Log)} - INNER if not name.startswith("_")))
def test_whatever_a_log_can_be_asked_is_on_the_page(name):
    assert re.search(rf"\b{name}\b", PAGE.read_text())


def test_keys_that_the_page_names_are_keys():
    known = {key.name for config in (LogConfig, CleanerConfig) for _, key in keys(config)}
    rooms = {name.removeprefix("seglog.").partition(".")[0] for name in known} - {"log"}
    rooms |= {"log.cleaner", "log.retention"}
    named = set(re.findall(rf"`((?:seglog\.)?(?:{'|'.join(rooms)})\.[a-z.]+)", PAGE.read_text()))
    assert len(named) > 10
    assert named <= known


def test_the_stats_that_the_page_shows_are_there():
    assert {"log_end_offset", "segments", "producers", "failure"} <= set(LogStats.__dataclass_fields__)
