"""The worked example of docs/formats/pulsar_entry.md, walked with struct. SEGLOG_UPDATE_DOCS=1 writes it again."""
from pathlib import Path

from seglog._kernels.crc import crc32c
from support.entries import golden_entries
from support.hexwalk import HexWalk
from support.pages import check_part

DOC = Path(__file__).parents[2] / "docs/formats/pulsar_entry.md"
BEGIN = "<!-- made by tests/docs/test_pulsar_entry_doc.py -->\n"
END = "<!-- end -->\n"
CASE = "batch-1-java-nonbatched/NONE/broker-both/crc32c"


def example():
    data, says = next((data, says) for data, says in golden_entries() if says["case"] == CASE)
    walk = HexWalk(data)
    walk.heading("the broker metadata")
    walk.take("H", "magic", "0x0e02")
    size = walk.take("I", "size")
    broker = says["broker_entry_metadata"]
    walk.bytes(size, f"broker_timestamp {broker['broker_timestamp']}, index {broker['index']}", show=False)
    walk.heading("the checksum")
    walk.take("H", "magic", "0x0e01")
    crc = walk.take("I", "crc32c", f"of the bytes from {walk.pos + 4} on")
    assert crc == crc32c(data[walk.pos :])
    walk.heading("the metadata")
    size = walk.take("I", "size")
    walk.skip(size, f"MessageMetadata of {says['metadata']['producer_name']}, one message")
    assert walk.pos == says["payload_offset"]
    walk.heading("the payload, a batch of one message")
    size = walk.take("I", "size")
    single = says["messages"][0]
    walk.skip(size, f"SingleMessageMetadata, payload_size {single['single']['payload_size']}")
    walk.skip(len(data) - walk.pos, "the value")
    assert data.endswith(bytes.fromhex(single["value"]))
    lines = "".join(f"    {line}\n" if line else "\n" for line in walk.done())
    return f"`tests/golden/pulsar.tar.gz: entries.bin`, entry {says['i']}:\n\n{lines}"


def test_the_page_holds_the_bytes_of_a_golden_entry():
    check_part(DOC, BEGIN, example(), END)
