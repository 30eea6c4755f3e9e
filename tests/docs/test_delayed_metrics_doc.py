"""docs/delayed.md shows the table of delayed/metrics.py. SEGLOG_UPDATE_DOCS=1 writes it anew."""
import os
from pathlib import Path

from seglog.delayed.metrics import METRICS

DOC = Path(__file__).parents[2] / "docs/delayed.md"
BEGIN = "<!-- made from engine/seglog/delayed/metrics.py by tests/docs/test_delayed_metrics_doc.py -->\n"
END = "<!-- end of metrics -->\n"


def table():
    lines = ["| name | type | labels | what it says |", "|---|---|---|---|"]
    lines += [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.meaning} |" for metric in METRICS
    ]
    return "\n".join(lines) + "\n"


def test_the_page_holds_the_table_of_the_code():
    page = DOC.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = before + BEGIN + table() + END + after
    if os.environ.get("SEGLOG_UPDATE_DOCS"):
        DOC.write_text(made)
    assert page == made, "run the test once with SEGLOG_UPDATE_DOCS=1"
