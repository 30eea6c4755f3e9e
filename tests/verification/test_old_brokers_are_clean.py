"""What real brokers from 0.8.2.2 to 3.3.2 left at a clean stop, at every record: notes at most."""
from pathlib import Path

import pytest

from seglog.verification.verify import verify
from support.golden import unpack

VERSIONS = ["0.8.2.2", "0.9.0.1", "0.10.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "2.4.1", "3.3.2"]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_an_old_broker_wrote_is_clean(version):
    directories = sorted({log.parent for log in Path(unpack("old_brokers"), version, "logs").rglob("0*.log")})
    assert len(directories) >= 6
    for directory in directories:
        report = verify(directory, level="deep")
        assert report.ok, report.findings
        # 0.10.0 has timestamps and no time indexes; before it there are no timestamps, after it there are both.
        assert ("timeindex_none" in {f.code for f in report.findings}) == (version == "0.10.0.1")
