"""Pages show the tables of metrics that stand in the code. SEGLOG_UPDATE_DOCS=1 writes them again."""
from pathlib import Path

import pytest

from seglog.delayed import metrics as delayed
from seglog.endpoint import server_metrics
from seglog.log import log_metrics
from seglog.queue import metrics as queue
from seglog.queue import topic_metrics
from seglog.reading import format_counters
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


TABLES = [
    ("delayed_details.md", delayed), ("retention.md", cleaner), ("monitoring.md", log_metrics), ("queue.md", queue),
    ("fetching.md", format_counters), ("serving.md", server_metrics), ("topics.md", topic_metrics),
]


def test_each_table_of_metrics_has_a_page():
    files = {path for path in (TOP / "engine/seglog").rglob("*.py") if "\nMETRICS = (" in path.read_text()}
    assert files == {Path(module.__file__) for _, module in TABLES}


@pytest.mark.parametrize(
    ("page", "module"), TABLES, ids=["delayed", "cleaner", "logs", "queue", "formats", "server", "topics"]
)
def test_the_page_holds_the_table_of_the_code(page, module):
    begin = f"<!-- made from {Path(module.__file__).relative_to(TOP)} by tests/docs/test_metrics_doc.py -->\n"
    check_part(TOP / "docs" / page, begin, table(module.METRICS), END)
