"""What old brokers wrote, converted to v2 and back: the same records, and no finding in the result."""
import pytest

import seglog
from seglog.verification.verify import verify
from support.conversion import but_of_compaction, converted
from support.old_brokers import numbers
from support.old_directories import CONFIG, MODERN, client_cases, directory_of, parse, partitions, seen

# What is all of v2 already is not converted.
LOGS = [p for p in partitions("logs") if numbers(p.values[0]) < (0, 11) or p.values[1].name == "switched-0"]


def converts(directory, tmp_path, **options):
    """What the result holds, after its own proof; the types of times that v0 did not have are CreateTime then."""
    target = tmp_path / "logs" / directory.name
    converted(directory, target, config=CONFIG, **options)
    assert but_of_compaction(verify(target, level="deep", config=CONFIG).findings) == []
    with seglog.open_partition(directory) as source, seglog.open_partition(target) as result:
        before, after = seen(source.read()), seen(result.read())
    assert [r._replace(type="") for r in after] == [r._replace(type="") for r in before]
    return after


@pytest.mark.parametrize(("version", "directory"), LOGS)
def test_a_brokers_directory_converts_to_v2(version, directory, tmp_path):
    assert converts(directory, tmp_path)


@pytest.mark.parametrize("case", client_cases())
def test_what_a_client_sent_converts_to_v2(case, tmp_path):
    records = converts(directory_of(case), tmp_path)
    assert [r._replace(type="") for r in records] == [
        r._replace(type="") for r in parse(case / f"consumed-{MODERN}.txt")]


@pytest.mark.parametrize("case", [case for case in client_cases() if case.id.startswith("kafka-node")])
def test_v1_messages_in_v0_wrappers_keep_their_times_in_v1_and_in_larger_batches(case, tmp_path):
    assert converts(directory_of(case), tmp_path / "v1", to=1)
    assert converts(directory_of(case), tmp_path / "repacked", repack_bytes=65536)
