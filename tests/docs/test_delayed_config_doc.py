"""docs/config.md shows the fields of delayed/config.py. SEGLOG_UPDATE_DOCS=1 writes the table anew."""
import os
from pathlib import Path

from seglog.delayed.config import DelayedDeliveryConfig, keys

DOC = Path(__file__).parents[2] / "docs/config.md"
BEGIN = "<!-- made from engine/seglog/delayed/config.py by tests/docs/test_delayed_config_doc.py -->\n"
END = "<!-- end of delayed messages -->\n"


def table():
    lines = ["| key | unit | default | limits | what it says | source |", "|---|---|---|---|---|---|"]
    defaults = {name: str(value).lower() for name, value in DelayedDeliveryConfig().items()}
    lines += [
        f"| `{key.name}` | {key.unit} | {defaults[key.name]} | {key.limits} | {key.meaning} | {key.source} |"
        for _, key in keys()
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
