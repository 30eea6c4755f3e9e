"""Frames of the protocol changed on purpose."""
import struct

from seglog.wire import codec
from seglog.wire.messages import REQUESTS
from support.random_messages import random_message

SIZES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 24]


def request_frames(rnd, each=3):
    """Good requests of every API and version, without the size in front."""
    for request in REQUESTS.values():
        for version in range(request.MIN_VERSION, request.MAX_VERSION + 1):
            for _ in range(each):
                made = random_message(rnd, request, version)
                yield codec.encode_request(codec.new_header(made, version, 7, "hostile"), made)[4:]


def mutate_frame(rnd, frame):
    """`frame` with one to three changes of bytes, lengths and its end; the API in front mostly stays."""
    data = bytearray(frame)
    for _ in range(rnd.randint(1, 3)):
        at = rnd.randrange(len(data)) if rnd.random() < 0.02 else rnd.randrange(min(8, len(data)), len(data) + 1)
        match rnd.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rnd.choice((0, 1, 2, 0x7F, 0x80, 0xFF))])
            case 1:
                data[at : at + 1] = bytes([rnd.randrange(256)])
            case 2:
                size = rnd.choice(SIZES)
                data[at : at + 4] = struct.pack(">I", size)
            case 3:
                data[at : at + 2] = struct.pack(">H", rnd.choice(SIZES) & 0xFFFF)
            case 4:
                data[at : at + 5] = b"\xff\xff\xff\xff" + bytes([rnd.choice((0, 7, 0x0F, 0x7F, 0xFF))])
            case 5:
                del data[max(at, 8) :]
    return bytes(data)
