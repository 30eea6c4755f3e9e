"""The cleaner of the newest Kafka, run on the golden logs as they were before: it leaves what ours leaves."""
import json
import shutil

import pytest

from support.cleaned_cases import CASES, Case, case_of, check_equal
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle

NEWEST = VERSIONS[-1]
# Ours keeps the rule of 4.1.1: the last batch of the round stays, empty. 4.4.0 keeps the one that ends at the high
# watermark.
OWN_RULE = {"v2-last-superseded"}


@pytest.fixture(scope="module")
def cleaned(kafka_oracle, tmp_path_factory):
    """The cases, with what the newest cleaner made of them beside."""
    top = tmp_path_factory.mktemp("cleaned")
    for name in CASES:
        (top / name).mkdir()
        shutil.copy(case_of(name) / "meta.json", top / name)
        shutil.copytree(case_of(name) / "before", top / name / "before")
    kafka_oracle(NEWEST).clean(top)
    return top


def test_it_leaves_what_ours_leaves_with_the_upgrade(cleaned, tmp_path):
    differing, failed, exact = set(), set(), 0
    for name in CASES:
        if name == "v2-dedupe-full":        # ours goes on where the map is full: tests/upkeep/test_cleaner_golden.py
            continue
        theirs = json.loads((cleaned / name / "meta.json").read_text())["results"][NEWEST]
        if "error" in theirs:
            failed.add(name)
            continue
        (tmp_path / name).mkdir()
        case = Case(name, tmp_path / name, **{"seglog.compaction.upgrade.format": "true"})
        case.clean()
        try:
            exact += check_equal(case, cleaned / name / f"after-{NEWEST}" / case.directory.name, theirs)
        except AssertionError:
            differing.add(name)
    # Those in which 4.1.1 fails, too: the last v0 or v1 batch of the round loses all its records.
    assert failed <= {"v1-last-tombstone-r2", "v1-null-keys"}
    assert differing == OWN_RULE
    assert exact > 20
