"""What a task of the source could not read: damage that was skipped, and offsets that no segment holds.

    lost-2f1c0a9d83b7e645.json      one for each task that lost something; a line of JSON for each range

The name is that of the task's work, so a task that Spark runs again replaces the file of its first run.
"""
import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from seglog.frames.options import OFFSET_MAX
from seglog.frames.part import ScanPart
from seglog.frames.row_losses import lost_offsets
from seglog.frames.sink import new_file
from seglog.fs.aside import SCRATCH_SUFFIX, make_directories
from seglog.fs.files import OsFileSystem
from seglog.named_tuple import NamedTuple
from seglog.segment.positions import LostRange


class Loss(NamedTuple):
    """Offsets that a read should have had: `first_offset` <= offset < `end_offset`, None if the end is not known.

    file, position, size_bytes: where they are, or should be; size_bytes 0: nothing holds them.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int | None
    file: str
    position: int
    size_bytes: int
    reason: str


def losses_of(part: ScanPart, found: Iterable[LostRange]) -> list[Loss]:
    """The losses among the ranges that reading a part has found: those with offsets that it should have had."""
    made = []
    for lost in found:
        first, stop = lost_offsets(part, lost)
        if first < stop:
            made.append(Loss(
                part.topic, part.partition, first, None if stop == OFFSET_MAX else stop, lost.file, lost.position,
                lost.size_bytes, lost.reason,
            ))
    return made


def write_losses(directory: str, task: Sequence[ScanPart | Loss], losses: Sequence[Loss]) -> None:
    """Write what a task lost into a file of its own. `task`: what it had to read. Raises StorageError."""
    fs, path = OsFileSystem(), Path(directory)
    make_directories(fs, path)
    name = hashlib.sha256(repr(task).encode()).hexdigest()[:16]
    # Spark may run a task twice at one time, and ignores files whose names begin with a dot.
    scratch = path / f".lost-{name}-{uuid.uuid4().hex}.json{SCRATCH_SUFFIX}"
    with new_file(fs, scratch) as file:
        file.write("".join(f"{json.dumps(loss._asdict())}\n" for loss in losses).encode())
    fs.replace(scratch, path / f"lost-{name}.json")
    fs.sync_directory(path)
