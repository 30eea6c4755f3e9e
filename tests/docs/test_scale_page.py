"""docs/scale.md shows the table that python -m benches.scale computes. SEGLOG_UPDATE_DOCS=1 writes it again."""
from pathlib import Path

from benches.scale import RATES, table
from support.pages import check_part

TOP = Path(__file__).parents[2]


def test_the_page_holds_the_table_of_the_script(capsys):
    table(RATES, cores=400)
    first, *rows = capsys.readouterr().out.splitlines()
    shown = f"{first}:\n\n" + "\n".join(rows) + "\n"
    check_part(TOP / "docs/scale.md", "<!-- made by python -m benches.scale -->\n", shown, "<!-- end -->\n")
