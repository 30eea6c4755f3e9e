"""The pages of managed ledgers and docs/topic_compaction.md: their examples run, and print what stands below them."""
import re
from pathlib import Path

import pytest

import seglog
from seglog.ledger.config import ManagedLedgerConfig
from support.pages import run_examples

PAGE = Path(__file__).parents[2] / "docs/managed_ledger_details.md"


@pytest.mark.parametrize(("page", "count"), [
    ("managed_ledger.md", 2), ("managed_ledger_details.md", 5), ("topic_compaction.md", 1),
])
def test_the_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys, page, count):
    monkeypatch.chdir(tmp_path)
    found, names = run_examples(PAGE.with_name(page), capsys)
    assert found >= count
    names["topic"].close()


@pytest.mark.parametrize("name", sorted(
    name for name in {*dir(seglog.pulsar.ManagedLedger), *dir(seglog.pulsar.ManagedCursor)}
    if not name.startswith("_")
))
def test_whatever_they_can_be_asked_is_on_the_page(name):
    assert re.search(rf"\b{name}\b", PAGE.read_text())


def test_keys_that_the_page_names_are_keys():
    known = {key.name for key in ManagedLedgerConfig.keys.values()} | ManagedLedgerConfig.other_spellings.keys()
    key = r"[`\"]((?:managedLedger|useBroker|brokerEntry|defaultRet)\w+|message\.ttl|flush\.ms)"
    named = set(re.findall(key, PAGE.read_text()))
    assert len(named) > 4
    assert named <= known
