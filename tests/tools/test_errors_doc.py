"""docs/errors.md is the table of errors.py, no more and no less."""
import re
from pathlib import Path

from seglog import errors

DOC = Path(__file__).parents[2] / "docs/errors.md"


def documented():
    for line in DOC.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"`\w+Error`", cells[0]):
            yield cells[0].strip("`"), (cells[1].strip("`"), int(cells[3])), cells[2]


def test_every_error_stands_in_the_table_with_its_code_and_exit_status():
    in_code = {
        name: (c.code, c.exit_status)
        for name, c in vars(errors).items()
        if isinstance(c, type) and issubclass(c, errors.SeglogError)
    }
    in_doc = {name: facts for name, facts, _ in documented()}
    assert in_doc == in_code


def test_every_error_has_a_code_of_its_own_and_a_meaning():
    rows = list(documented())
    assert len({facts[0] for _, facts, _ in rows}) == len(rows)
    assert all(meaning for _, _, meaning in rows)
