"""The tests of franz-go's client kgo over our server, unchanged: groups with killed members, transactions, purges.

    make clients TESTS=tests/clients/test_kgo.py

Needs Go and its module proxy. The records of its chains of groups are a tenth of what its authors take.
"""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import seglog

pytestmark = pytest.mark.clients

VERSION = "v1.22.2"
# Those that ask a broker; the others need none.
WITH_A_BROKER = {
    "Test848RegexBrokerResolves", "TestAddRemovePartitions", "TestClient_Produce", "TestClient_ProduceLargeMessages",
    "TestConsumeMaxDecompressBatchBytes", "TestConsumeRegex", "TestConsumeRegexShareSkipsInternal",
    "TestConsumeTopicRetrieval", "TestConsumeTopicRetrieval_Many", "TestDirectPartitionPurge", "TestGroupETL",
    "TestGroupSimple", "TestHookPollStart", "TestIssue1034", "TestIssue325", "TestIssue337", "TestIssue434",
    "TestIssue523", "TestIssue648", "TestIssue769", "TestIssue810", "TestIssue831", "TestIssue865",
    "TestIssueFetchLargerThanBrokerMaxReadBytes", "TestIssueProduceBrokerTooOldFailsRecords",
    "TestIssueProduceSyncManualPartitionNegativeDoesNotPanic", "TestPauseIssue489", "TestPauseIssueOct2023",
    "TestPing", "TestPooling", "TestShareGroup", "TestShareGroupAckOnClose", "TestShareGroupETL",
    "TestShareGroupOffsetsAdmin", "TestTxnEtl", "TestUnknownGroupOffsetFetchPinned",
}
AGAIN_MAX = 2
# It skips them by itself.
SKIPPED = {
    "TestIssueProduceBrokerTooOldFailsRecords": "needs a broker that takes no Produce 2: Kafka 4",
    **dict.fromkeys(
        ("TestConsumeRegexShareSkipsInternal", "TestShareGroup", "TestShareGroupAckOnClose", "TestShareGroupETL",
         "TestShareGroupOffsetsAdmin"), "share groups came with Kafka 4.2"),
}


@pytest.fixture(scope="module")
def binary(kept):
    """The tests of the package, compiled; and where its files are."""
    if shutil.which("go") is None:
        pytest.skip("there is no go, which compiles kgo and its tests")
    work = kept / f"kgo-{VERSION}"
    work.mkdir(exist_ok=True)

    def go(*arguments):
        return subprocess.run(["go", *arguments], cwd=work, check=True, capture_output=True, text=True).stdout.strip()

    if not (work / "kgo.test").exists():
        (work / "go.mod").write_text("module seglog.test/kgo\n\ngo 1.22\n")
        (work / "needs.go").write_text('package needs\n\nimport _ "github.com/twmb/franz-go/pkg/kgo"\n')
        go("get", f"github.com/twmb/franz-go@{VERSION}")
        go("mod", "tidy")
        go("test", "-c", "-o", "kgo.test.new", "github.com/twmb/franz-go/pkg/kgo")
        (work / "kgo.test.new").replace(work / "kgo.test")
    return work / "kgo.test", Path(go("list", "-f", "{{.Dir}}", "github.com/twmb/franz-go/pkg/kgo"))


def outcomes(program, package, server, names, out):
    """{test: PASS, FAIL or SKIP}"""
    with out.open("w") as file:
        subprocess.run(
            [program, "-test.v", "-test.timeout", "15m", "-test.run", f"^({'|'.join(sorted(names))})$"],
            cwd=package, stdout=file, stderr=file, check=False,
            env={**os.environ, "KGO_SEEDS": server.bootstrap_servers, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "50000"})
    told = re.findall(r"^--- (PASS|FAIL|SKIP): (\w+)", out.read_text(), re.MULTILINE)
    return {name: result for result, name in told}


def test_kgo_is_content(binary, tmp_path):
    expected = {name: "SKIP" if name in SKIPPED else "PASS" for name in WITH_A_BROKER}
    with seglog.serve(tmp_path / "data", fsync="interval") as server:
        ended = outcomes(*binary, server, expected, tmp_path / "out")
        # On a busy machine sessions expire, and limits of the tests themselves: such tests run again, by themselves.
        failed = {name for name, result in expected.items() if ended.get(name) != result}
        if 0 < len(failed) <= AGAIN_MAX:
            ended |= outcomes(*binary, server, failed, tmp_path / "again")
    assert ended == expected
