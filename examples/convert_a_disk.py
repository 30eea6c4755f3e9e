"""A stopped broker's disk, from the old record formats to v2, with a proof for each partition.

    python convert_a_disk.py OLD_LOG_DIR NEW_LOG_DIR

OLD_LOG_DIR is only read. What `seglog convert` does from a shell, from a program: look, convert, prove, check.
"""
import sys
from pathlib import Path

import seglog


def convert_disk(old: Path, new: Path) -> bool:
    new.mkdir(exist_ok=True)
    all_well = True
    for source in sorted(path for path in old.iterdir() if any(path.glob("*.log"))):
        before = seglog.verify(source)
        if not before.ok:
            worst = before.findings[0]
            print(f"{source.name}: left alone, {worst.meaning} ({worst.file}, byte {worst.position})")
            all_well = False
            continue
        result = seglog.convert(source, new / source.name, to=2)
        after = seglog.verify(new / source.name)
        print(
            f"{source.name}: {result.proof.records} records, the same on both sides: {result.proof.holds}; "
            f"{before.size_bytes:,} bytes became {after.size_bytes:,}; {'clean' if after.ok else 'NOT clean'}"
        )
        all_well = all_well and after.ok
    return all_well


if __name__ == "__main__":
    sys.exit(0 if convert_disk(Path(sys.argv[1]), Path(sys.argv[2])) else 1)
