"""What verify finds in logs that a kill left, and in those that real Kafka made of them: nothing that is not so."""
import json
import shutil
from collections import Counter

import pytest

from seglog.format.names import LOG_START_OFFSET_CHECKPOINT
from seglog.verification.verify import verify
from support.golden import unpack

CASES = sorted(unpack("killed_logs").iterdir())
# What the makers of these logs did, by their words: support/golden/killed_logs.py.
LACKS_BATCH, LACKS_ENTRY = "lacks its last batch", "lacks its last entry"


def found(case, side, directory):
    """Copy one of its logs to a log dir with its log start offset, and count what verify finds there by its code."""
    topic, info = f"{case.name}-0", json.loads((case / "case.json").read_text())
    shutil.copytree(case / side / topic, directory / topic)
    start = info["log_start_offset"]
    (directory / LOG_START_OFFSET_CHECKPOINT).write_text(f"0\n1\n{case.name} 0 {start}\n")
    return Counter(finding.code for finding in verify(directory / topic).findings), info


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_after_kafka_has_recovered_only_what_it_does_not_see_is_found(case, tmp_path):
    codes, info = found(case, "after", tmp_path)
    lost = [words for words in info["what"] if words.endswith(LACKS_BATCH)]
    gap = codes.pop("segment_gap", 0)
    assert gap <= len(lost)
    # A damaged snapshot that it did not need.
    assert codes.pop("snapshot_corrupt", 0) <= sum("is damaged" in words for words in info["what"])
    assert not codes


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_before_a_recovery_what_is_found_was_made(case, tmp_path):
    codes, info = found(case, "before", tmp_path)
    assert codes["segment_gap"] <= sum(words.endswith(LACKS_BATCH) for words in info["what"])
    assert codes["txnindex_incomplete"] <= sum(words.endswith(LACKS_ENTRY) for words in info["what"])


def test_a_gap_and_an_entry_that_are_missing_are_found(tmp_path):
    codes = Counter()
    for case in CASES:
        codes += found(case, "before", tmp_path / case.name)[0]
    assert codes["segment_gap"] == 6
    assert codes["txnindex_incomplete"] == 11
