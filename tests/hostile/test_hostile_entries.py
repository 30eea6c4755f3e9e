"""Mutated golden entries through everything that reads an entry: a result or a SeglogError that says what is wrong.

The kernel and protobuf agree about what parses. `make torture` and the sanitized build go through 10^5 of them,
`make test` through a twentieth. A case is its number.
"""
import os

import pytest

from seglog.errors import SeglogError
from seglog.pulsar import ManagedLedger
from support.hostile_entries import look, look_at_ledger, mutated, result_or_error

IS_FULL = bool(os.environ.get("SEGLOG_TORTURE") or os.environ.get("SEGLOG_SANITIZE"))
CASES = 100_000 if IS_FULL else 5_000
LEDGERS = 2_000 if IS_FULL else 100
PART = 5_000


@pytest.mark.parametrize("first", range(0, CASES, PART))
def test_a_mutated_entry_gives_a_result_or_a_clear_error(first):
    for number in range(first, first + PART):
        try:
            look(mutated(number))
        except Exception as error:
            error.add_note(f"case {number}")
            raise


def test_a_managed_ledger_takes_what_is_an_entry_and_nothing_else(tmp_path):
    taken = []
    config = {"brokerEntryMetadataInterceptors": "index"}
    with ManagedLedger(tmp_path / "orders", fsync="never", config=config) as topic:
        for number in range(500):
            data = mutated(number)
            if not isinstance(result_or_error(lambda data=data: topic.add_entry(data)), SeglogError):
                taken.append(data)
        assert [entry.headers_and_payload for entry in topic] == taken
    assert 20 < len(taken) < 450


def test_a_ledger_with_a_changed_file_opens_or_says_what_is_wrong(tmp_path):
    for number in range(LEDGERS):
        try:
            look_at_ledger(number, tmp_path / "place")
        except Exception as error:
            error.add_note(f"ledger {number}")
            raise


def test_a_case_is_the_same_bytes_every_time():
    assert [mutated(n) for n in range(50)] == [mutated(n) for n in range(50)]
