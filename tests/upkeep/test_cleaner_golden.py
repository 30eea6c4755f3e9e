"""Compaction against Kafka's own cleaner: `pairs/compact`, before and after by 3.9.1, and with the upgrade by 4.1.1.

tests/oracle/test_cleaner.py asks a newer one. support.cleaned_cases says what is compared.
"""
import pytest

import seglog
from seglog.upkeep.cleaning_round import CleaningLimits
from support.cleaned_cases import CASES, Case, check_golden, files_of, record_of


@pytest.mark.parametrize("name", [name for name in CASES if name != "v2-dedupe-full"])
def test_what_is_left_is_what_3_9_1_leaves_and_a_second_run_changes_nothing(name, in_memory):
    case = Case(name, in_memory)
    done = case.clean()
    real = case.meta["results"]["3.9.1"]
    assert done.first_dirty_offset == real["first_dirty_offset"]
    if real["end_offset"] >= 0:
        assert done.end_offset == real["end_offset"]
    else:
        assert done.outcome == "nothing"
    check_golden(case, "3.9.1")
    before = files_of(case.directory)
    case.options.pop("roll", None)
    assert case.clean().outcome == "nothing"
    assert files_of(case.directory) == before


# 4.1.1 itself fails on two of them (below).
UPGRADED = [name for name in CASES if name != "v2-dedupe-full" and "error" not in Case.results(name)["4.1.1"]]


@pytest.mark.parametrize("name", UPGRADED)
def test_with_the_upgrade_it_is_what_4_1_1_leaves(name, in_memory):
    case = Case(name, in_memory, **{"seglog.compaction.upgrade.format": "true"})
    case.clean()
    check_golden(case, "4.1.1")


@pytest.mark.parametrize("name", ["v1-last-tombstone-r2", "v1-null-keys"])
def test_where_4_1_1_fails_the_upgrade_goes_on(name, in_memory):
    """The last v0 or v1 batch of the round loses all its records (MemoryRecords.java:193)."""
    assert "Empty batches" in Case.results(name)["4.1.1"]["error"]
    case = Case(name, in_memory, **{"seglog.compaction.upgrade.format": "true"})
    assert case.clean().outcome == "cleaned"
    with seglog.open_partition(case.directory) as ours, seglog.open_partition(case.expected("3.9.1")) as theirs:
        active = ours.segments[-1].base_offset
        assert all(batch.magic == 2 for batch in ours.batches() if batch.last_offset < active)
        assert [record_of(r) for r in ours] == [record_of(r) for r in theirs]


def test_a_full_map_takes_more_rounds_and_cleans_to_the_end(in_memory):
    """Kafka stops at the record that fills the map, and at offset 34 of 70 the round ends."""
    case = Case("v2-dedupe-full", in_memory)
    dedupe_bytes = int(case.options["dedupe.bytes"])
    done = case.clean(limits=CleaningLimits(dedupe_buffer_bytes=dedupe_bytes))
    real = case.meta["results"]["3.9.1"]
    assert real["end_offset"] < real["first_uncleanable_offset"] == done.end_offset
    assert done.rounds > 1
    with seglog.open_partition(case.path / "before" / case.directory.name) as before:
        records = [r for r in before if r.offset < done.end_offset]
    last = {r.key: r.offset for r in records}
    with seglog.open_partition(case.directory) as after:
        kept = [r for r in after if r.offset < done.end_offset]
    assert [record_of(r) for r in kept] == [record_of(r) for r in records if last[r.key] == r.offset]
