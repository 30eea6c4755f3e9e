"""Logs that Kafka wrote, after they were opened and appended to here: real Kafka loads them as they are."""
import pytest

import seglog
from support.conversion import kept, rows
from support.golden import golden_cases, unpack
from support.golden_logs import GoingOn
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory):
    """Every golden directory, the damaged ones cut, with more appended; each with case.json beside it."""
    done = []
    for case in [*golden_cases(), *sorted((unpack("kafka") / "corrupt").iterdir())]:
        writer = GoingOn(case, tmp_path_factory.mktemp(case.name), **{"seglog.recovery.mode": "truncate"})
        for _ in range(2):
            with writer.open() as log:
                writer.go_on(log, count=24)
        done.append(writer.directory)
    return done


@pytest.fixture(params=VERSIONS)
def oracle(kafka_oracle, request):
    return kafka_oracle(request.param)


def test_after_any_stop_kafka_loads_what_went_on_here(oracle, gone_on):
    for directory, found in oracle.check(gone_on).items():
        with seglog.open_partition(directory) as partition:
            end, segments = partition.log_end_offset, [s.base_offset for s in partition.segments]
        for start in ("clean", "unclean"):
            answer, where = found[start], (directory.name, start, found[start])
            assert "open_failed" not in answer, where
            assert not answer["log_truncated_or_changed"], where
            assert answer["log_end_offset"] == end, where
            assert [segment["base_offset"] for segment in answer["segments"]] == segments, where
            assert all(s["all_crc_valid"] and s["index_sanity"] == "ok" for s in answer["segments"]), where
        assert not found["clean"]["index_rebuilt_or_changed"], (directory.name, found["clean"])


def test_every_index_entry_leads_where_it_says(oracle, gone_on):
    for directory, found in oracle.index_check(gone_on).items():
        assert found["bad"] == [], directory.name


def test_kafka_decodes_every_record_as_we_do(oracle, gone_on):
    for directory, records in oracle.dump(gone_on).items():
        assert [kept(record) for record in records] == [kept(row) for row in rows(directory)], directory.name
