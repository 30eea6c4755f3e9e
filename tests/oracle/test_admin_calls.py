"""Every call of the newest Kafka Admin against `seglog serve`: it works, or it is refused as docs/serving.md says."""
import re
import subprocess
from pathlib import Path

import pytest

import seglog

pytestmark = pytest.mark.oracle

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/serving.md"


def test_each_call_of_the_newest_admin_works_or_is_refused_as_the_page_says(in_memory):
    with seglog.serve(
        in_memory / "data", topics={"orders": 1}, authorizer=True, config={"super.users": "User:ANONYMOUS"},
    ) as server:
        done = subprocess.run(
            [HERE / "kafka/java.sh", "4.4.0", "AdminCalls", server.bootstrap_servers], stdout=subprocess.PIPE,
            check=True, text=True)
    told = dict(line.split("\t") for line in done.stdout.splitlines())
    assert len(told) > 55
    section = PAGE.read_text().partition("### Calls of Kafka's Admin")[2].partition("\n## ")[0]
    expected = {
        call: error for calls, error in re.findall(r"^\| (`.+`) \| `(\w+)` \|", section, re.M)
        for call in re.findall(r"`([^`]+)`", calls)}
    assert {call: error for call, error in told.items() if error} == expected
