"""Golden files, changed on purpose: case `number` is always the same bytes.

A case is a small partition directory (a golden segment with the files beside it and the segment that
follows) of which one file was changed in the ways of damage and of malice: bits, runs, cuts, splices with
other golden files, lengths and counts set to extremes. In most cases the checksum in front of the change is
mended, so that what it guards is reached; in some a compressed batch was opened, changed inside, and closed again.
"""
import random
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from seglog._kernels.crc import crc32c
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import SeglogError
from seglog.format.compression import compress, decompress
from support import plain_format as plain
from support.golden import GOLDEN, unpack
from support.mutations import mend_checksums

SEED = 20_261_121
# Of what is larger, only `big` cases exist; they are looked at less often.
USUAL_BYTES = 20_000
MAX_INSIDE_BYTES = 1 << 20

# What to change, and how often of a thousand.
KINDS = {
    "log": 600, "index": 100, "timeindex": 90, "txnindex": 50, "snapshot": 60, "leader-epoch-checkpoint": 40,
    "partition.metadata": 20, "log-start-offset-checkpoint": 40,
}

# Names beside a partition directory, not in it.
LOG_DIR_FILES = ("log-start-offset-checkpoint",)


@dataclass(frozen=True, slots=True)
class Slice:
    """One golden segment: the files of its directory that concern it, and those of the segment behind it."""

    name: str
    base: str                       # twenty digits
    files: Mapping[str, bytes]

    @property
    def directory(self) -> str:
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Case:
    """`slice` with `data` in the place of its file `file`. `kind` is a key of KINDS."""

    number: int
    slice: Slice
    kind: str
    file: str
    data: bytes
    story: str

    def __str__(self) -> str:
        return f"case {self.number}: {self.slice.name}/{self.file}, {len(self.data)} bytes: {self.story}"


# --- golden slices -------------------------------------------------------------------------------


@cache
def slices() -> list[Slice]:
    """Every segment of the golden cases, and of the directories that were damaged for real recovery."""
    found = []
    for group in ("cases", "corrupt"):
        for directory in sorted((unpack("kafka") / group).glob("*/*-0")):
            logs = sorted(directory.glob("*.log"))
            for log, following in zip(logs, [*logs[1:], None], strict=True):
                bases = [log.stem] + ([following.stem] if following else [])
                files = {
                    path.name: path.read_bytes() for path in sorted(directory.iterdir())
                    if path.name[:20] in bases or not path.name[:20].isdigit()
                }
                found.append(Slice(f"{group}/{directory.name}", log.stem, files))
    return found


@cache
def golden_texts(kind: str) -> list[bytes]:
    """The files of that name in the log dirs that brokers left."""
    return [path.read_bytes() for path in sorted((GOLDEN / "log_dir").rglob(kind))]


def file_name(slice_: Slice, kind: str) -> str:
    return f"{slice_.base}.{kind}" if kind in ("log", "index", "timeindex", "txnindex", "snapshot") else kind


@cache
def holders(kind: str) -> list[Slice]:
    """The slices whose file of that kind has bytes; for texts that a log dir may hold, all."""
    if golden_texts(kind):
        return slices()
    usual = [s for s in slices() if 0 < len(s.files.get(file_name(s, kind), b"")) <= USUAL_BYTES]
    large = [s for s in slices() if len(s.files.get(file_name(s, kind), b"")) > USUAL_BYTES]
    return usual + large[::4]


def golden_bytes(rng: random.Random, slice_: Slice, kind: str) -> bytes:
    texts = golden_texts(kind)
    return rng.choice(texts) if texts else slice_.files[file_name(slice_, kind)]


def make_case(number: int, *kinds: str) -> Case:
    """The case of that number among those of the kinds; of all without any."""
    rng = random.Random(f"{SEED} {number}")
    chosen = kinds or tuple(KINDS)
    [kind] = rng.choices(chosen, [KINDS[kind] for kind in chosen])
    slice_ = rng.choice(holders(kind))
    data = golden_bytes(rng, slice_, kind)
    other = golden_bytes(rng, rng.choice(holders(kind)), kind)
    match kind:
        case "log":
            data, story = changed_log(rng, data, other)
        case "index" | "timeindex" | "txnindex" | "snapshot":
            width = {"index": 8, "timeindex": 12, "txnindex": 34, "snapshot": 46}[kind]
            data, story = changed_table(rng, data, other, width)
            if kind == "snapshot" and len(data) >= 6 and rng.random() < 0.7:
                data = data[:2] + struct.pack(">I", crc32c(data[6:])) + data[6:]
                story += ", CRC mended"
        case _:
            data, story = changed_text(rng, data, other)
    return Case(number, slice_, kind, file_name(slice_, kind), data, story)


# --- bytes ---------------------------------------------------------------------------------------

HOSTILE_BYTES = [0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF]
HOSTILE_INTS = [0, 1, -1, 2, 6, 7, 13, 14, 49, 127, 128, 2**15 - 1, 2**15, 2**24, 2**31 - 1, -(2**31), 2**31 - 13, -2]
HOSTILE_LONGS = [*HOSTILE_INTS, 2**32, 2**62, 2**63 - 1, -(2**63), 2**63 - 2**31, 2**63 - 2, -(2**62)]
HOSTILE_VARINTS = [plain.varint(n) for n in HOSTILE_LONGS] + [b"\xff" * 10, b"\x80" * 10 + b"\0", b"\x80\x80\0"]


def changed_bytes(rng: random.Random, data: bytearray, other: bytes) -> str:
    """One change anywhere; says which."""
    at = rng.randrange(len(data) + 1)
    size = min(rng.choice([1, 2, 4, 8, 30, 200]), len(data) - at)
    match rng.randrange(8 if data else 1):
        case 0:
            piece = other[rng.randrange(len(other) + 1) :][: rng.randrange(300)]
            data[at:at] = piece
            return f"{len(piece)} bytes of another file at {at}"
        case 1 | 2:
            at = min(at, len(data) - 1)
            bit = rng.randrange(8)
            data[at] ^= 1 << bit
            return f"bit {bit} of byte {at}"
        case 3:
            at = min(at, len(data) - 1)
            data[at] = rng.choice(HOSTILE_BYTES)
            return f"byte {at} = {data[at]}"
        case 4:
            fill = rng.choice([b"\0", b"\xff", b"\x80", b"\x01"])
            data[at : at + size] = fill * size
            return f"{size} times {fill!r} at {at}"
        case 5:
            data[at : at + size] = rng.randbytes(size)
            return f"{size} random bytes at {at}"
        case 6:
            del data[at:]
            return f"cut at {at}"
        case _:
            del data[at : at + size]
            return f"{size} bytes gone at {at}"


def spliced(rng: random.Random, data: bytes, other: bytes, joints: list[int], others: list[int]) -> tuple[bytes, str]:
    """The head of one file and the tail of another, joined where entries begin, or anywhere."""
    if rng.random() < 0.3:
        head, tail = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    else:
        head, tail = rng.choice(joints), rng.choice(others)
    return data[:head] + other[tail:], f"spliced {head}+{tail}"


# --- logs ----------------------------------------------------------------------------------------

# (position in the header, struct code) of what is not the checksum.
V2_FIELDS = [
    (0, "q"), (8, "i"), (12, "i"), (16, "b"), (21, "h"), (23, "i"), (27, "q"), (35, "q"), (43, "q"), (51, "h"),
    (53, "i"), (57, "i"),
]
LEGACY_FIELDS = [(0, "q"), (8, "i"), (16, "b"), (17, "b"), (18, "i"), (18, "q"), (22, "i"), (26, "i"), (30, "i")]


def starts_of(data: bytes) -> list[int]:
    return [batch.position for batch in scan(Window(data))] or [0]


def changed_log(rng: random.Random, data: bytes, other: bytes) -> tuple[bytes, str]:
    stories = []
    raw = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        match rng.randrange(10):
            case 0 | 1 | 2:
                stories.append(changed_header(rng, raw))
            case 3 | 4:
                stories.append(changed_varint(rng, raw))
            case 5 | 6:
                raw, story = changed_inside(rng, raw)
                stories.append(story)
            case 7:
                joined, story = spliced(rng, bytes(raw), other, starts_of(bytes(raw)), starts_of(other))
                raw = bytearray(joined)
                stories.append(story)
            case _:
                stories.append(changed_bytes(rng, raw, other))
    data = bytes(raw)
    if rng.random() < 0.65:
        data = mend_checksums(data)
        stories.append("CRCs mended")
    return data, ", ".join(stories)


def changed_header(rng: random.Random, raw: bytearray) -> str:
    start = rng.choice(starts_of(bytes(raw)))
    is_v2 = len(raw) - start > 16 and raw[start + 16] == 2
    field, code = rng.choice(V2_FIELDS if is_v2 else LEGACY_FIELDS)
    size = struct.calcsize(code)
    if len(raw) - start - field < size:
        return "nothing"
    bits = 8 * size
    value = (rng.choice(HOSTILE_LONGS) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    if rng.random() < 0.4:      # near what is there: off by one reaches further than a wild value
        there, = struct.unpack_from(f">{code}", raw, start + field)
        value = min(max(there + rng.choice([-2, -1, 1, 2]), -(2 ** (bits - 1))), 2 ** (bits - 1) - 1)
    struct.pack_into(f">{code}", raw, start + field, value)
    return f"header field {field} at {start} = {value}"


def changed_varint(rng: random.Random, raw: bytearray) -> str:
    """An extreme number over the bytes of a record; sizes around it are as they were."""
    start = rng.choice(starts_of(bytes(raw)))
    at = start + rng.choice([61, 61, 62, 63, 64, 65, rng.randrange(61, 400)])
    number = rng.choice(HOSTILE_VARINTS)
    number = number[: max(len(raw) - at, 0)]
    raw[at : at + len(number)] = number
    return f"varint {number.hex()} at {at}"


def changed_inside(rng: random.Random, raw: bytearray) -> tuple[bytearray, str]:
    """A compressed batch whose content was changed, or its codec bits, and its sizes and CRC made to fit."""
    data = bytes(raw)
    at = 0
    found = []
    for batch in plain.split_batches(data):
        codec = batch[22 if batch[16] == 2 else 17] & 7
        if 0 < codec <= plain.ZSTD:
            found.append((at, batch, codec))
        at += len(batch)
    if not found:
        return raw, changed_header(rng, raw)
    at, batch, codec = rng.choice(found)
    magic = batch[16]
    prefix = 61 if magic == 2 else (30 if magic == 0 else 38)
    try:
        [outer] = scan(Window(batch))
        inside = bytearray(decompress(codec, magic, outer.payload(), MAX_INSIDE_BYTES))
        if magic < 2:
            if outer.codec and struct.unpack_from(">i", batch, prefix - 8)[0] >= 0:
                return raw, changed_header(rng, raw)        # a wrapper with a key: not Kafka's
            prefix -= 4
        story = rng.choice([changed_bytes, changed_inside_varint])(rng, inside, data)
        if rng.random() < 0.1 and magic == 2:
            codec = rng.choice([plain.GZIP, plain.SNAPPY, plain.LZ4, plain.ZSTD])
        payload = bytes(compress(codec, magic, bytes(inside)))
    except (SeglogError, ValueError):
        return raw, changed_header(rng, raw)
    head = bytearray(batch[:prefix])
    head[22 if magic == 2 else 17] = head[22 if magic == 2 else 17] & ~7 | codec
    size = b"" if magic == 2 else struct.pack(">i", len(payload))
    closed = bytearray(head + size + payload)
    struct.pack_into(">i", closed, 8, len(closed) - 12)
    struct.pack_into(">I", closed, plain.crc_position(closed), plain.computed_crc(closed))
    return raw[:at] + closed + raw[at + len(batch) :], f"inside the batch at {at}: {story}"


def changed_inside_varint(rng: random.Random, inside: bytearray, other: bytes) -> str:
    at = rng.randrange(min(len(inside), 60) + 1)
    number = rng.choice(HOSTILE_VARINTS)
    inside[at : at + len(number)] = number
    return f"varint {number.hex()} at {at}"


# --- tables of fixed width -------------------------------------------------------------------------


def changed_table(rng: random.Random, data: bytes, other: bytes, width: int) -> tuple[bytes, str]:
    head = 10 if width == 46 else 0
    stories = []
    raw = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3])):
        match rng.randrange(6):
            case 0 | 1 if len(raw) >= 8:
                code = rng.choice("hiq")
                size = struct.calcsize(code)
                value = (rng.choice(HOSTILE_LONGS) + 2 ** (8 * size - 1)) % 2 ** (8 * size) - 2 ** (8 * size - 1)
                at = rng.choice([2, 4, 6, rng.randrange(len(raw))])
                at = min(at, len(raw) - size)
                struct.pack_into(f">{code}", raw, at, value)
                stories.append(f"{value} at {at}")
            case 2:
                joints = list(range(head, len(raw) + 1, width)) or [0]
                others = list(range(head, len(other) + 1, width)) or [0]
                joined, story = spliced(rng, bytes(raw), other, joints, others)
                raw = bytearray(joined)
                stories.append(story)
            case 3:
                more = rng.choice([b"\0", b"\xff"]) * (width * rng.randrange(1, 5))
                raw += more
                stories.append(f"{len(more)} bytes of padding")
            case _:
                stories.append(changed_bytes(rng, raw, other))
    return bytes(raw), ", ".join(stories)


# --- texts -----------------------------------------------------------------------------------------

HOSTILE_WORDS = [
    b"", b"-1", b"0", b"1", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"9" * 5000,
    b"+1", b" ", b"\xff\xfe", b"\0", "\u0663".encode(), b"1_0", b"1e5", b"0x10", b"NaN", b"\\u12", b"\\", b"=",
    b"version", b"topic", b"AAAAAAAAAAAAAAAAAAAAAA", b"\r", b"\x0b", b"\xe2\x80\xa8", b"[" * 10_000, b"{}", b"null",
]


def changed_text(rng: random.Random, data: bytes, other: bytes) -> tuple[bytes, str]:
    stories = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        lines = data.split(b"\n")
        words = re.split(rb"([ \n:=,]+)", data)
        match rng.randrange(7):
            case 0 | 1 | 2:
                slot = rng.randrange(len(words))
                words[slot] = rng.choice(HOSTILE_WORDS)
                data = b"".join(words)
                stories.append(f"word {slot} = {words[slot][:30]!r}")
            case 3:
                slot = rng.randrange(len(lines))
                lines[slot:slot] = [rng.choice(other.split(b"\n"))] * rng.randrange(1, 4)
                data = b"\n".join(lines)
                stories.append(f"lines at line {slot}")
            case 4:
                slot = rng.randrange(len(lines))
                del lines[slot]
                data = b"\n".join(lines)
                stories.append(f"line {slot} gone")
            case _:
                raw = bytearray(data)
                stories.append(changed_bytes(rng, raw, other))
                data = bytes(raw)
    return data, ", ".join(stories)
