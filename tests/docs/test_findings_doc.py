"""docs/findings.md shows the KINDS of findings.py. SEGLOG_UPDATE_DOCS=1 writes its tables."""
import re
from pathlib import Path

import pytest

import seglog
from seglog.verification import findings
from seglog.verification.findings import KINDS, Finding
from support.pages import check_part

DOC = Path(__file__).parents[2] / "docs/findings.md"
ROOM = Path(findings.__file__).parent
OF_LEDGERS = ("ledger_check.py", "compacted_check.py", "relocated_check.py")


def table(of_ledgers):
    level = [] if of_ledgers else ["found at level"]
    head = ["code", "severity", "meaning", "what to do", *level]
    rows = [head, ["---"] * len(head)]
    for code, kind in KINDS.items():
        if (kind.found_in in OF_LEDGERS) == of_ledgers:
            rows.append([f"`{code}`", str(kind.severity), kind.meaning, kind.fix] + [kind.level] * len(level))
    return "".join(f"| {' | '.join(row)} |\n".replace("| --- |", "|---|").replace(" --- ", "---") for row in rows)


@pytest.mark.parametrize(("name", "of_ledgers"), [("partitions", False), ("managed ledgers", True)])
def test_the_page_holds_the_table_of_the_code(name, of_ledgers):
    begin, end = f"<!-- findings of {name}: made by tests/docs/test_findings_doc.py -->\n", f"<!-- end of {name} -->\n"
    check_part(DOC, begin, table(of_ledgers), end)


def test_no_row_stands_outside_of_the_tables():
    """A made-up row passes nowhere: each one is a code of KINDS, once."""
    rows = re.findall(r"^\| `(\w+)`", DOC.read_text(), re.MULTILINE)
    assert rows == list(KINDS)


@pytest.mark.parametrize("code", KINDS)
def test_the_file_that_the_map_names_finds_the_code(code):
    assert f'"{code}"' in (ROOM / KINDS[code].found_in).read_text()


def test_every_code_that_the_package_finds_is_one_of_them():
    found = {
        code for file in Path(seglog.__file__).parent.rglob("*.py")
        for code in re.findall(r'\bFinding\(\s*"(\w+)"', file.read_text())
    }
    assert found
    assert found <= set(KINDS)
    with pytest.raises(KeyError):
        Finding("made_up", "a.log").severity    # noqa: B018
