"""The worked example of docs/formats/relocated_entries.md, read by struct. SEGLOG_UPDATE_DOCS=1 writes it again."""
import struct
from pathlib import Path

from seglog.clock import ManualClock
from seglog.ledger.ledger import Ledger
from seglog.ledger.managed.relocated_entries import RelocatedEntries
from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from support.pages import check_part
from support.topics import delayed

DOC = Path(__file__).parents[2] / "docs/formats/relocated_entries.md"
BEGIN = "<!-- example relocated, made by tests/docs/test_relocated_doc.py -->\n"
END = "<!-- end -->\n"
NOW = 1_700_000_000_000


def example(directory):
    clock = ManualClock(NOW)
    with ManagedLedger(directory, clock=clock) as topic:
        while topic.new_ledger_id() < 11:
            pass
        entries = RelocatedEntries(topic)
        entries.add("billing", [(Position(3, 8), NOW + 86_400_000, delayed(1, NOW + 86_400_000))])
        entries.close()
    lines = ["Entry 3:8, which is due in a day, in ledger 12:", ""]
    with Ledger.open(directory / "relocated/billing/ledger-12") as ledger:
        lines.append(f"    ledger-12/    {ledger.properties}")
        for number, copy in ledger.read_range(0, ledger.last_entry_id):
            ledger_id, entry_id, deliver_at = struct.unpack_from(">QQQ", copy)
            lines.append(f"        entry {number}: {copy[:24].hex(' ', -8)}    {ledger_id}:{entry_id}, at {deliver_at}")
            lines.append(f"                 and {len(copy) - 24} bytes: {copy[24:40].hex(' ', -4)} ...")
    return "\n".join(lines) + "\n"


def test_the_page_holds_what_the_code_writes(tmp_path):
    check_part(DOC, BEGIN, example(tmp_path / "orders"), END)
