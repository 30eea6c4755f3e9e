"""What recovery leaves, real Kafka opens as it is: neither a clean nor an unclean start changes a byte of it."""
import json
import shutil

import pytest

from seglog.upkeep.recover import recover
from support.golden import unpack
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle

KEYS = ("segment.bytes", "segment.index.bytes", "index.interval.bytes", "max.message.bytes")


@pytest.fixture(scope="module", params=["truncate", "quarantine"])
def recovered(request, tmp_path_factory):
    """Every damaged golden directory, recovered: directory -> what was said of it."""
    root, done = tmp_path_factory.mktemp(request.param), {}
    for case in sorted((unpack("kafka") / "corrupt").iterdir()):
        place = root / case.name
        place.mkdir()
        shutil.copy(case / "case.json", place)
        config = json.loads((case / "case.json").read_text())["config"]
        target = place / f"{case.name}-0"
        settings = {key: config[key] for key in KEYS if key in config}
        done[target] = recover(case / target.name, target, mode=request.param, config=settings)
    return done


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_opens_it_and_changes_nothing(kafka_oracle, recovered, version):
    for directory, found in kafka_oracle(version).check(recovered).items():
        for start in ("clean", "unclean"):
            answer = found[start]
            assert "open_failed" not in answer, (directory.name, answer)
            assert not answer["log_truncated_or_changed"], (directory.name, start)
            assert not answer["index_rebuilt_or_changed"], (directory.name, start, answer["files_changed"])
            assert answer["log_end_offset"] == recovered[directory].log_end_offset, directory.name
            assert all(segment["all_crc_valid"] for segment in answer["segments"]), directory.name
