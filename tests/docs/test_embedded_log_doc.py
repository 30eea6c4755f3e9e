"""The pages about an open log: their examples run, one after the other, and print what stands below them."""
import re
from pathlib import Path

import pytest

import seglog
from seglog.config import LogConfig
from seglog.log.stats import LogStats
from seglog.upkeep.cleaner_config import CleanerConfig
from support.pages import run_examples

TOP = Path(__file__).parents[2]
GUIDE = TOP / "docs/embedded_log.md"
DETAILS = [
    TOP / "docs" / name
    for name in ("appends.md", "fetching.md", "mirrors.md", "monitoring.md", "retention.md", "transactions.md")
]
TEXT = "\n".join(page.read_text() for page in (GUIDE, *DETAILS))


def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(GUIDE, capsys)
    assert count > 4


@pytest.mark.parametrize("page", DETAILS, ids=lambda page: page.stem)
def test_the_examples_of_a_page_of_details_print_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count, _ = run_examples(page, capsys, names={"seglog": seglog})
    assert count


# For whoever reads the source.
INNER = {
    "find_offset", "tables", "segments", "high_watermark", "recovery_point",
}


@pytest.mark.parametrize("name", sorted(name for name in {*dir(seglog.Log)} - INNER if not name.startswith("_")))
def test_whatever_a_log_can_be_asked_is_on_the_page(name):
    assert re.search(rf"\b{name}\b", TEXT)


def test_keys_that_the_page_names_are_keys():
    known = {key.name for config in (LogConfig, CleanerConfig) for key in config.keys.values()}
    rooms = {name.removeprefix("seglog.").partition(".")[0] for name in known} - {"log"}
    rooms |= {"log.cleaner", "log.retention"}
    named = set(re.findall(rf"`((?:seglog\.)?(?:{'|'.join(rooms)})\.[a-z.]+)", TEXT))
    assert len(named) > 10
    assert named <= known


def test_the_stats_that_the_page_shows_are_there():
    assert {"log_end_offset", "segments", "producers", "failure"} <= set(LogStats.__dataclass_fields__)
