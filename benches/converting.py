"""Converting v1 to v2 in memory, CRCs checked on the way in and made on the way out, beside aiokafka's own parts."""
from benches import data, peers
from benches.runner import Bench, Goal
from seglog._kernels.segment_scan import scan
from seglog._kernels.up_convert import BatchPacker
from seglog._kernels.window import Window
from seglog.format.compression import compress, decompressor

BATCH_BYTES = 16384
STEP_BYTES = 4 << 20        # of input between two looks at the output, as the directory conversion goes


def to_v2(window: Window, repack_bytes: int) -> int:
    packer = BatchPacker(
        repack_bytes=repack_bytes, decompress=decompressor(), compress=lambda codec, raw: compress(codec, 2, raw))
    position = made = 0
    while position < len(window):
        table = scan(window, position, max_bytes=STEP_BYTES)
        packer.add(table, 0, len(table))
        made += len(packer.take())
        position = table.end
    packer.finish()
    return made + len(packer.take())


def run(bench: Bench, count: int) -> None:
    cases = [
        ("v1 none to v2, repack 16384", "none", 1.0, BATCH_BYTES, Goal(10, 18)),
        ("v1 none to v2, a batch a message", "none", 1.0, 0, Goal(5)),
    ]
    for name, codec, share, repack_bytes, goal in cases:
        if not bench.wanted(name):
            continue
        records = int(count * share)
        segment = data.segment(1, codec, BATCH_BYTES, records)
        window = Window(segment)
        bench.compare(
            name, records / 1e6, "M rec/s",
            {
                "seglog": lambda window=window, repack=repack_bytes: to_v2(window, repack),
                "aiokafka": lambda segment=segment: peers.aiokafka_to_v2(segment),
            },
            {("seglog", "aiokafka"): goal},
        )
