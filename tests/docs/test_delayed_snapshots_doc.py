"""The worked example of docs/formats/delayed_snapshots.md. SEGLOG_UPDATE_DOCS=1 writes it again."""
from pathlib import Path

from seglog.clock import ManualClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.worker import InlineWorker
from seglog.ledger.ledger import Ledger
from seglog.ledger.snapshot_storage import LedgerSnapshotStorage
from support.pages import check_part

DOC = Path(__file__).parents[2] / "docs/formats/delayed_snapshots.md"
BEGIN = "<!-- made by tests/docs/test_delayed_snapshots_doc.py -->\n"
END = "<!-- end -->\n"
NOW = 1_700_000_000_000


def example(directory):
    clock = ManualClock(NOW)
    config = DelayedDeliveryConfig(ledger_step=0, min_index_count=2)
    storage = LedgerSnapshotStorage(directory, clock=clock)
    tracker = BucketDelayedDeliveryTracker(storage, config, clock=clock, worker=InlineWorker())
    for position in [(3, 8), (3, 9), (4, 0)]:
        tracker.add_message(*position, NOW + 1000)
    tracker.cancel(3, 9)
    tracker.close()
    lines = [
        "Messages 8 and 9 of ledger 3 were sealed into a bucket when the first message of ledger 4 came; then",
        "message 9 was cancelled.",
        "",
    ]
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            with Ledger.open(path) as ledger:
                lines.append(f"    {path.name}/    {ledger.properties}")
                for number, entry in ledger.read_range(0, ledger.last_entry_id):
                    lines.append(f"        entry {number}: {entry.hex(' ', -4)}")
        else:
            lines += ["", f"    {path.name}", "    " + path.read_text().replace('", "#', '",\n      "#').rstrip()]
    return "\n".join(lines) + "\n"


def test_the_page_holds_what_the_code_writes(tmp_path):
    check_part(DOC, BEGIN, example(tmp_path), END)
