"""A process that reads a compacted table again and again while it is written, compacted, cut and backed up.

    python -m support.table_reader PARTITION FLOORS

FLOORS: a file of int64, for each key the last version that is certain: written, and not to be cut any more. It is read
before each opening, so that what is then found may be later and never earlier. Prints what is wrong, or "read N" at
the end of its stdin.
"""
import mmap
import os
import struct
import sys
import threading

import seglog
from seglog.errors import SeglogError

TOMBSTONE = 1 << 62     # added to a floor: the last version deletes the key


def look(path):
    """What identifies the files that a reader may have mapped."""
    try:
        return sorted((entry.name, entry.inode()) for entry in os.scandir(path) if entry.name.endswith(".log"))
    except FileNotFoundError:
        return []


def read(path):
    """{key: (version, is a tombstone)} of the table as of now, and what is wrong with it."""
    found, wrong, last = {}, [], -1
    with seglog.open_partition(path) as table:
        for record in table.read():
            if record.offset <= last:
                wrong.append(f"offset {record.offset} behind {last}")
            last = record.offset
            key = int(record.key)
            version = int(record.headers[0][1])
            if record.value is not None and record.value != b"%d.%d." % (key, version) + b"v" * (version % 200):
                wrong.append(f"offset {record.offset}: another value than was written")
            if key in found and version <= found[key][0]:
                wrong.append(f"offset {record.offset}: version {version} of key {key} behind {found[key][0]}")
            found[key] = version, record.value is None
    return found, wrong


def main():
    path, floors_path = sys.argv[1:]
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    with open(floors_path, "rb") as file:
        shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reads = 0
    while not stopped.is_set():
        floors = struct.unpack(f"<{len(shared) // 8}q", shared[:])
        before = look(path)
        try:
            found, wrong = read(path)
        except SeglogError as error:
            if look(path) != before:
                continue        # segments were exchanged or deleted while it read: open again
            wrong, found = [f"{type(error).__name__}: {error}"], None
        if found is not None:
            for key, floor in enumerate(floors):
                version = floor & (TOMBSTONE - 1)
                is_gone = floor >= TOMBSTONE and key not in found
                if floor and not is_gone and found.get(key, (-1,))[0] < version:
                    wrong.append(f"key {key} has version {found.get(key)}, and had {version} before it was opened")
        if wrong:
            print("\n".join(wrong[:5]), flush=True)
            sys.exit(1)
        if not reads:
            print("begun", flush=True)
        reads += 1
    print(f"read {reads}", flush=True)


if __name__ == "__main__":
    main()
