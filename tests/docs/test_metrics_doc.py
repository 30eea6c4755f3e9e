"""Pages show the tables of metrics that stand in the code. SEGLOG_UPDATE_DOCS=1 writes them again."""
from pathlib import Path

import pytest

from seglog.delayed import metrics as delayed
from seglog.log import log_metrics
from seglog.queue import metrics as queue
from seglog.upkeep import metrics as cleaner
from support.pages import check_part

TOP = Path(__file__).parents[2]
END = "<!-- end of metrics -->\n"


def table(metrics):
    lines = ["| name | type | labels | what it says |", "|---|---|---|---|"]
    lines += [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.meaning} |" for metric in metrics
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("page", "module"),
    [("delayed_details.md", delayed), ("retention.md", cleaner), ("monitoring.md", log_metrics), ("queue.md", queue)],
    ids=["delayed", "cleaner", "logs", "queue"],
)
def test_the_page_holds_the_table_of_the_code(page, module):
    begin = f"<!-- made from {Path(module.__file__).relative_to(TOP)} by tests/docs/test_metrics_doc.py -->\n"
    check_part(TOP / "docs" / page, begin, table(module.METRICS), END)
