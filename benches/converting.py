"""Converting v1 to v2 and back in memory, checking CRCs on input and computing them on output, beside aiokafka's
parsers and builders and beside Kafka's downConvert.
"""
from benches import data, java, peers
from benches.runner import Bench, Goal
from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.message_packer import MessagePacker
from seglog._kernels.packer import Packer
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.format.compression import compress, decompressor

BATCH_BYTES = 16384
STEP_BYTES = 4 << 20        # input bytes between two collections of the output, as in a directory conversion


def to_v2(window: Window, repack_bytes: int) -> int:
    return _converted(window, BatchPacker(
        repack_bytes=repack_bytes, decompress=decompressor(), compress=lambda codec, raw: compress(codec, 2, raw)))


def to_v1(window: Window) -> int:
    return _converted(window, MessagePacker(
        1, decompress=decompressor(), compress=lambda codec, raw: compress(codec, 1, raw)))


def _converted(window: Window, packer: Packer) -> int:
    position = made = 0
    while position < len(window):
        table = scan(window, position, max_bytes=STEP_BYTES)
        packer.add(table, 0, len(table))
        made += len(packer.take())
        position = table.end
    packer.finish()
    return made + len(packer.take())


def run(bench: Bench, count: int, *, with_java: bool) -> None:
    _up(bench, count)
    _down(bench, count, with_java=with_java)


def _up(bench: Bench, count: int) -> None:
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


def _down(bench: Bench, count: int, *, with_java: bool) -> None:
    cases = [
        ("none", 1.0, Goal(8, 13), Goal(3)),
        ("lz4", 0.25, Goal(), Goal(1.7)),
    ]
    for codec, share, goal, java_goal in cases:
        name, records = f"v2 {codec} to v1", int(count * share)
        beside_java = f"{name}, downConvert"
        if not (bench.wanted(name) or bench.wanted(beside_java)):
            continue
        segment = data.segment(2, codec, BATCH_BYTES, records)
        window = Window(segment)
        bench.compare(
            name, records / 1e6, "M rec/s",
            {
                "seglog": lambda window=window: to_v1(window),
                "aiokafka": lambda segment=segment, codec=codec: peers.aiokafka_to_v1(segment, data.CODECS[codec]),
            },
            {("seglog", "aiokafka"): goal},
        )
        if with_java and bench.wanted(beside_java):
            bench.beside(
                beside_java, records / 1e6, "M rec/s", lambda window=window: to_v1(window),
                "Kafka 3.9.1", *java.down_convert(segment, 1), java_goal,
            )
