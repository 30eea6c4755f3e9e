"""docs/benchmarks.md, its chart and the README's table of speed show docs/assets/benchmarks.json, and nothing else.

SEGLOG_UPDATE_DOCS=1 writes them again.
"""
from pathlib import Path

import pytest

from benches import page
from support.pages import check_page, check_part

TOP = Path(__file__).parents[2]
DOC, README = TOP / "docs/benchmarks.md", TOP / "README.md"
RUN = page.load()
PARTS = [
    (DOC, "machine", page.machine), (DOC, "table", page.whole_table), (DOC, "losses", page.losses),
    (README, "speed", page.readme_table),
]


@pytest.mark.parametrize(("doc", "part", "made"), PARTS, ids=[part for _, part, _ in PARTS])
def test_the_page_shows_the_run(doc, part, made):
    check_part(doc, f"<!-- {part}, made by benches.page -->\n", f"\n{made(RUN)}\n", "<!-- end -->\n")


def test_the_chart_shows_the_run():
    check_page(page.CHART, page.chart(RUN))


def test_every_row_that_seglog_loses_has_its_reason():
    lost = {page.key_of(row) for row in RUN["results"] if page.is_lost(row)}
    assert lost - page.REASONS.keys() == set()
    assert page.REASONS.keys() - lost == set(), "no longer lost"


def test_the_page_says_how_many_rows_the_run_has():
    assert f"has {len(RUN['results'])}\nrows" in DOC.read_text()


def test_no_row_of_the_run_stands_for_two():
    assert len(page.rows_of(RUN)) == len(RUN["results"])


def test_the_run_is_of_a_quiet_machine_and_of_a_revision():
    at = RUN["machine"]
    assert at["commit"]
    assert not at["changed"]
    assert at["load"] < at["cores"] > at["load_at_end"]


@pytest.mark.parametrize(
    ("row", "lost"),
    [
        ({"unit": "M/s", "must": 2, "ratio": 0.99}, True),
        ({"unit": "M/s", "must": 2, "ratio": 1.5}, False),
        ({"unit": "M/s", "must": 2, "ratio": 1.5, "ours_wall_s": 2.0, "peer_wall_s": 1.0}, True),
        ({"unit": "us", "must": None, "ratio": 9.6, "ours_rate": 58.0, "peer_rate": 6.0}, True),
        ({"unit": "us", "must": None, "ratio": 0.5, "ours_rate": 3.0, "peer_rate": 6.0}, False),
    ],
)
def test_a_row_is_lost_by_either_time(row, lost):
    assert page.is_lost({"case": "x", "ours": "seglog", "peer": "y", "ours_wall_s": 0, "peer_wall_s": 0} | row) is lost
