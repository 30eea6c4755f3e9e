"""The worked example of docs/formats/queue_journal.md, read by struct. SEGLOG_UPDATE_DOCS=1 writes it again."""
import struct
from pathlib import Path

import seglog
from seglog.clock import ManualClock
from support.pages import check_part

DOC = Path(__file__).parents[2] / "docs/formats/queue_journal.md"
BEGIN = "<!-- example queue-journal, made by tests/docs/test_queue_journal_doc.py -->\n"
END = "<!-- end -->\n"
NOW = 1_700_000_000_000
KINDS = {1: "subscription", 2: "delivered", 3: "acknowledged", 4: "waiting", 5: "dead", 6: "ready"}


def example(directory):
    with seglog.Queue(directory, clock=ManualClock(NOW), max_attempts=1) as jobs:
        jobs.put_many([b"good", b"bad"])
        good, bad = jobs.get_many(2, timeout=0)
        good.ack()
        bad.nack(reason="no such user")
        raw = (directory / "queue.journal").read_bytes()
    magic, version, _, journal_id, _, _crc = struct.unpack_from(">8sIIQII", raw)
    lines = [
        "Of two jobs that were put in one entry, the first one was acknowledged, and the second one given up:", "",
        f"       0  {raw[:32].hex(' ', -8)}", f"          {magic.decode()}, version {version}, id {journal_id}", "",
    ]
    position = 32
    while position < len(raw.rstrip(b"\0")):       # zeros are written ahead
        length, _ = struct.unpack_from(">II", raw, position)
        body = raw[position + 8 : position + 8 + length]
        kind, _, _subscription, count, synced_to, at_ms, _holder = struct.unpack_from(">BBHIQQQ", body)
        lines.append(f"    {position:4}  {raw[position : position + 8].hex(' ', -4)}    a body of {length} bytes")
        lines.append(f"          {body[:32].hex(' ', -8)}")
        lines.append(f"          {KINDS[kind]}, synced up to {synced_to}, at {at_ms}")
        for at in range(32, 32 + 24 * count, 24):
            ledger_id, entry_id, index, number = struct.unpack_from(">QQiI", body, at)
            lines.append(f"          {body[at : at + 24].hex(' ', -8)}    {ledger_id}:{entry_id}:{index}, {number}")
        if text := body[32 + 24 * count :].decode():
            lines.append(f"          {text!r}")
        lines.append("")
        position += -(-(8 + length) // 8) * 8
    return "\n".join(lines[:-1]) + "\n"


def test_the_page_holds_what_the_code_writes(tmp_path):
    check_part(DOC, BEGIN, example(tmp_path / "jobs"), END)
