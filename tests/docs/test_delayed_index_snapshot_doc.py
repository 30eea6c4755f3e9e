"""The worked example of docs/formats/delayed_index_snapshot.md. SEGLOG_UPDATE_DOCS=1 writes it again."""
from pathlib import Path

from seglog._kernels.due_rows import DueRows
from seglog.delayed.snapshot import encode_snapshot
from support.pages import check_part

DOC = Path(__file__).parents[2] / "docs/formats/delayed_index_snapshot.md"
BEGIN = "<!-- made by tests/docs/test_delayed_index_snapshot_doc.py -->\n"
END = "<!-- end -->\n"
MESSAGES = [(1700000000000, 17, 0), (1700000000500, 3, 8), (1700000000500, 3, 9), (1700000400000, 17, 1)]


def example():
    rows = DueRows()
    for message in MESSAGES:
        rows.append(*message)
    snapshot = encode_snapshot(rows, time_step_ms=300_000, max_indexes=5000)
    lines = ["Four messages (deliver at, ledger, entry), with a step of 300 s:", ""]
    lines += [f"    {at}  {ledger:2}  {entry}" for at, ledger, entry in MESSAGES]
    lines += ["", "take two segments. Ledger 17 comes before ledger 3: it is in bin 1 of 16, ledger 3 in bin 3."]
    lines.append("")
    for number, entry in enumerate(snapshot.metadata + snapshot.segments):
        kind = "metadata" if number == 0 else f"segment {number}"
        lines.append(f"    entry {number}, {kind}, {len(entry)} bytes")
        lines += [f"        {entry[pos : pos + 32].hex(' ', -4)}" for pos in range(0, len(entry), 32)]
    return "\n".join(lines) + "\n"


def test_the_page_holds_the_bytes_of_the_code():
    check_part(DOC, BEGIN, example(), END)
