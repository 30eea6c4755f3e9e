"""A worked hex example: bytes walked field by field, one line a field, as docs/formats shows them."""
import struct

from support.plain_format import read_varint

WIDTH = 8       # bytes of hex in a line


class HexWalk:
    """`raw` from `start` on; positions are printed from `origin`, what the format's page counts from.

    Each `take` prints a field and gives its value; the walk must end where the bytes do (`done`).
    """

    def __init__(self, raw, start=0, *, end=None, origin=None):
        self.raw, self.pos = raw, start
        self.end = len(raw) if end is None else end
        self.origin = start if origin is None else origin
        self.lines = []

    def take(self, kind, name, note=""):
        """A field of struct's `kind` ("q", "I", "5s"); big-endian."""
        (value,) = struct.unpack_from(">" + kind, self.raw, self.pos)
        return self._print(struct.calcsize(">" + kind), name, value, note)

    def varint(self, name, note="", most_bytes=5):
        value, after = read_varint(self.raw, self.pos, self.end, most_bytes)
        return self._print(after - self.pos, name, value, note)

    def bytes(self, size, name, note="", show=True):
        """`size` bytes of content; None where it is negative."""
        if size < 0:
            return None
        value = bytes(self.raw[self.pos : self.pos + size])
        self._print(size, name, readable(value) if show else None, note)
        return value

    def skip(self, size, name):
        """`size` bytes that another page or example tells about."""
        self.lines.append(f"{self.pos - self.origin:>6}  {'...':<24}{name}, {size} bytes")
        self.pos += size

    def heading(self, text):
        self.lines.append(f"        {text}")

    def done(self):
        assert self.pos == self.end, (self.pos, self.end)
        return self.lines

    def _print(self, size, name, value, note):
        hexes = [
            " ".join(f"{b:02x}" for b in self.raw[self.pos + i : self.pos + min(i + WIDTH, size)])
            for i in range(0, size, WIDTH)
        ] or [""]
        if len(hexes) > 3:
            hexes = [hexes[0], hexes[1], "..."]
        text = name if value is None else f"{name}: {value}"
        self.lines.append(f"{self.pos - self.origin:>6}  {hexes[0]:<24}{text}{f'  ({note})' if note else ''}".rstrip())
        self.lines += [f"{'':>6}  {more}" for more in hexes[1:]]
        self.pos += size
        return value


def readable(value, most=40):
    """Bytes as a Python literal, cut where they are long."""
    return repr(value) if len(value) <= most else f"{value[:most]!r}... ({len(value)} bytes)"
