"""Damage copies of real partition directories, each in one way: corrupt.py CASES_DIR OUT_DIR SEED CASE...

The only bytes of the golden data that are ours. What real Kafka makes of each is recorded by `Oracle check-to`.
"""
import json
import random
import shutil
import struct
import sys
from pathlib import Path


class Partition:
    """A partition directory being damaged. Segments are given by index in order of base offset: 0 first, -1 last."""

    def __init__(self, folder, rnd):
        self.folder = folder
        self.rnd = rnd
        self.segments = sorted(path.stem for path in folder.glob("*.log"))

    def path(self, segment, suffix):
        return self.folder / f"{self.segments[segment]}{suffix}"

    def batches(self, segment):
        """(position, size) of the batches of a segment, by their size fields alone."""
        data = self.path(segment, ".log").read_bytes()
        position, found = 0, []
        while position + 12 <= len(data):
            size = struct.unpack_from(">i", data, position + 8)[0] + 12
            if position + size > len(data):
                break
            found.append((position, size))
            position += size
        return found

    def middle_batch(self, segment):
        batches = self.batches(segment)
        return batches[len(batches) // 2]

    def cut_last_batch(self, keep):
        """Leave keep(size) bytes of the last batch of the log."""
        position, size = self.batches(-1)[-1]
        path = self.path(-1, ".log")
        path.write_bytes(path.read_bytes()[: position + keep(size)])
        return {"segment": self.segments[-1], "cut_at": position + keep(size), "last_batch": [position, size]}

    def flip(self, segment, where):
        """Change the byte at where(size) of the middle batch of a segment."""
        position, size = self.middle_batch(segment)
        path = self.path(segment, ".log")
        data = bytearray(path.read_bytes())
        data[position + where(size)] ^= 0x5A
        path.write_bytes(data)
        return {"segment": self.segments[segment], "flipped": position + where(size), "batch": [position, size]}

    def overwrite(self, segment, offset, new):
        """Set bytes of the middle batch of a segment."""
        position, size = self.middle_batch(segment)
        path = self.path(segment, ".log")
        data = bytearray(path.read_bytes())
        data[position + offset : position + offset + len(new)] = new
        path.write_bytes(data)
        return {"segment": self.segments[segment], "at": position + offset, "batch": [position, size]}

    def append(self, segment, suffix, data):
        path = self.path(segment, suffix)
        with path.open("ab") as file:
            file.write(data)
        return {"file": path.name, "appended": len(data)}

    def empty(self, segment, suffix):
        path = self.path(segment, suffix)
        path.write_bytes(b"")
        return {"file": path.name, "size": 0}

    def remove(self, segment, suffix):
        path = self.path(segment, suffix)
        path.unlink(missing_ok=True)
        return {"removed": path.name}

    def change_last_index(self, at_least, change, note):
        """Change the bytes of the last offset index that has at least so many."""
        for segment in reversed(range(len(self.segments))):
            path = self.path(segment, ".index")
            data = bytearray(path.read_bytes())
            if len(data) >= at_least:
                change(data)
                path.write_bytes(data)
                return {"file": path.name, "note": note}
        return None


def set_last_relative_offset(data):
    data[-8:-4] = struct.pack(">i", -5)


def swap_first_entries(data):
    data[:8], data[8:16] = data[8:16], data[:8]


def damage_snapshots(p):
    for path in p.folder.glob("*.snapshot"):
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    return {}


def remove_epochs(p):
    path = p.folder / "leader-epoch-checkpoint"
    if not path.exists():
        return False
    path.unlink()
    return {}


# Byte 8 of a batch begins its size, 16 is its magic, 18 of v2 is inside its CRC.
KINDS = {
    "tail-cut7": lambda p: p.cut_last_batch(lambda size: size - 7),
    "tail-cut-header": lambda p: p.cut_last_batch(lambda size: 10),
    "tail-cut-17": lambda p: p.cut_last_batch(lambda size: 17),
    "flip-active": lambda p: p.flip(-1, lambda size: size - 3),
    "flip-earlier-seg": lambda p: p.flip((len(p.segments) - 1) // 2, lambda size: size - 3),
    "flip-crc-v2": lambda p: p.flip(-1, lambda size: 18),
    "garbage-tail": lambda p: p.append(-1, ".log", bytes(p.rnd.randrange(256) for _ in range(100))),
    "zero-tail": lambda p: p.append(-1, ".log", bytes(4096)),
    "magic-7": lambda p: p.overwrite(-1, 16, b"\x07"),
    "size-huge": lambda p: p.overwrite(-1, 8, b"\x7f\xff\xff\xf0"),
    "size-tiny": lambda p: p.overwrite(-1, 8, b"\0\0\0\x05"),
    "offset-back": lambda p: p.overwrite(-1, 0, bytes(8)),
    "index-empty": lambda p: p.empty(0, ".index"),
    "timeindex-empty": lambda p: p.empty(0, ".timeindex"),
    "index-empty-active": lambda p: p.empty(-1, ".index"),
    "index-missing": lambda p: p.remove(0, ".index"),
    "timeindex-missing": lambda p: p.remove(0, ".timeindex"),
    "index-zero-tail": lambda p: [p.append(-1, ".index", bytes(800)), p.append(-1, ".timeindex", bytes(1200))],
    "index-zero-tail-inactive": lambda p: [p.append(0, ".index", bytes(800)), p.append(0, ".timeindex", bytes(1200))],
    "index-odd-size": lambda p: p.append(0, ".index", b"\1\2\3"),
    "index-larger-than-max": lambda p: p.append(-1, ".index", bytes(16384)),
    "index-bad-last": lambda p: p.change_last_index(
        8, set_last_relative_offset, "last relative offset set to -5"
    ),
    "index-swapped": lambda p: p.change_last_index(16, swap_first_entries, "first two entries swapped"),
    "timeindex-odd-size": lambda p: p.append(0, ".timeindex", b"\1\2\3\4\5"),
    "snapshot-corrupt": damage_snapshots,
    "epoch-missing": remove_epochs,
}
FEW = ("tail-cut7", "tail-cut-17", "flip-active", "flip-earlier-seg", "garbage-tail", "zero-tail", "size-tiny",
       "index-empty", "index-zero-tail")


def main(cases, out, seed, *names):
    rnd = random.Random(int(seed))
    for i, source in enumerate(names):
        for kind in KINDS if i < 2 else FEW:
            name = f"{source}--{kind}"
            target = Path(out, name)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(cases, source, f"{source}-0"), target / f"{name}-0")
            how = KINDS[kind](Partition(target / f"{name}-0", rnd))
            described = json.loads(Path(cases, source, "case.json").read_text())
            described |= {"case": name, "source": source, "corruption": kind, "how": how}
            (target / "case.json").write_text(json.dumps(described, separators=(",", ":")))


if __name__ == "__main__":
    main(*sys.argv[1:])
