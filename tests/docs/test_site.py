"""mkdocs.yml: every page of docs/ has its place on the site, and the API page has every public name."""
import inspect
import re
from pathlib import Path

import pytest

import seglog
from seglog import spark

TOP = Path(__file__).parents[2]
SITE = (TOP / "mkdocs.yml").read_text()


def test_every_page_has_a_place_on_the_site():
    listed = re.findall(r"^ +- (?:[\w' ]+: )?([\w/]+\.md)$", SITE.partition("\nnav:")[2], re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(TOP / "docs")) for page in (TOP / "docs").rglob("*.md"))


def test_every_public_name_is_on_the_api_page():
    page = (TOP / "docs/api.md").read_text()
    named = set(re.findall(r"^::: seglog\.([\w.]+)$", page, re.MULTILINE))
    public = {name for name in seglog.__all__ if not inspect.ismodule(getattr(seglog, name))}
    for module in (seglog.pulsar, seglog.aio, spark):
        public |= {f"{module.__name__.removeprefix('seglog.')}.{name}" for name in module.__all__}
    assert named == public - NOT_THERE | {"clock.ManualClock", "metrics.Exposition", "polars.scan_topic"}


# Segments lie below partitions; protobuf documents its classes.
NOT_THERE = {
    "__version__", "LostRange", "Segment", "TimestampOffset", "pulsar.MessageMetadata", "pulsar.SingleMessageMetadata",
}


LINK = re.compile(r"\]\(([^)\s:#]*)(?:#([\w.-]+))?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors_of(page):
    """The anchors of its headings, as mkdocs makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


PAGES = sorted((TOP / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_link_leads_to_a_page_and_a_heading(page):
    lost = []
    for path, anchor in LINK.findall(FENCED.sub("", page.read_text())):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            lost.append(f"{path}#{anchor}")
    assert lost == []
