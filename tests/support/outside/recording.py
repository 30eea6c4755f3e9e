"""Runs processes under the recorder, and reads what it recorded. A Recording is a directory:

    disk/       what the processes change; after them, as the page cache has it
    record      every change, sync and note in order, by recorder.c
"""
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from support.outside.disk import write_tree
from support.outside.fork_server import Forked, ForkServer

_HEAD = struct.Struct("<IIiHHQqIBBxx")       # struct head of recorder.c


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the record. Paths are relative to the disk, "" for the disk itself.

    op: W write, T length set, S sync begun, E sync ended, C file created, M directory made, R rename, L link,
        U unlink or rmdir, F a call that was made to fail (data: which), X what disk.py does not know,
        N note (data), P a process began
    result: 0 or an errno. position: of a write; a length; the number of a sync; the flags of renameat2.
    """

    op: str
    thread: int
    result: int
    path: str
    other: str
    inode: int
    is_directory: bool
    position: int
    data: bytes

    def __str__(self):
        text = f"{self.op} {self.path}"
        if self.other:
            text += f" -> {self.other}"
        if self.op == "N":
            return text + self.data.decode().rstrip()
        if self.op in "WTSE":
            text += f" at {self.position}"
        if self.data:
            text += f" ({len(self.data)} bytes)" if self.op == "W" else f" {self.data.decode()}"
        return text + (f" [{os.strerror(self.result)}]" if self.result else "")


@dataclass(frozen=True)
class Fault:
    """See recorder.c. `pattern` is a shell pattern for the path below the disk."""

    call: str
    nth: int
    action: str = "fail"
    errno: int = 5
    span: str = "once"
    pattern: str = "*"

    def __str__(self):
        return f"{self.call} {self.pattern} {self.nth} {self.action} {self.errno} {self.span}"


@dataclass
class Ended:
    """A process that has come to its end, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class Recording:
    """`start`: the disk at first, as a tree (disk.py); `inodes`: of its paths. `events`: all that was done to it."""

    directory: Path
    server: ForkServer
    start: dict
    inodes: dict
    events: list = field(default_factory=list)

    @classmethod
    def begin(cls, directory, server, start=None):
        """A disk that holds `start`, a tree; by default nothing."""
        directory = Path(directory)
        directory.mkdir(parents=True)
        write_tree(start or {}, directory / "disk")
        return cls(directory, server, dict(start or {}), _inodes(directory / "disk"))

    @property
    def disk(self):
        return self.directory / "disk"

    def run(self, module, *arguments, faults=(), delays_us=(0, 0), timeout_s=120, check=True):
        """Run `main` of a module over the disk to its end; what it changed is recorded after what was.

        `delays_us`: how much longer each sync takes, and each write.
        """
        with self.process(module, *arguments, faults=faults, delays_us=delays_us) as process:
            ended = Ended(process.wait(timeout_s), process.said(), process.errors())
        if check and ended.returncode != 0:
            raise AssertionError(f"{module} {arguments} ended with {ended.returncode}:\n{ended.stderr}")
        self.read()
        return ended

    def run_script(self, script, *arguments, faults=()):
        """Run a Python program, which finds the arguments in sys.argv[1:], to its end."""
        return self.run("support.outside.script", script, *arguments, faults=faults)

    def read(self):
        self.events = read_record(self.directory / "record", self.disk)

    def process(self, module, *arguments, faults=(), delays_us=(0, 0), pipes=False):
        """One that is recorded."""
        environment = {
            "OUTSIDE_ROOT": str(self.disk), "OUTSIDE_RECORD": str(self.directory / "record"),
            "OUTSIDE_NOTES": str(self.directory / "notes"), "OUTSIDE_SYNC_DELAY_US": str(delays_us[0]),
            "OUTSIDE_WRITE_DELAY_US": str(delays_us[1]),
            "OUTSIDE_FAULTS": ";".join(map(str, faults)),
        }
        return Forked(self.server, module, arguments, environment, self.directory, pipes=pipes)


def read_record(path, disk):
    """All events of a record; paths below `disk` are made relative to it."""
    raw = memoryview(Path(path).read_bytes())
    above = os.fspath(disk)
    relative = {b"": ""}        # a record names few files, thousands of times
    events, at = [], 0
    while at < len(raw):
        size, thread, result, path_size, other_size, inode, position, data_size, op, is_directory = (
            _HEAD.unpack_from(raw, at)
        )
        begin = at + _HEAD.size
        paths = [bytes(raw[begin : begin + path_size]), bytes(raw[begin + path_size : begin + path_size + other_size])]
        data = bytes(raw[begin + path_size + other_size : at + size])
        assert len(data) == data_size
        for name in paths:
            if name not in relative:
                relative[name] = _below(os.path.normpath(os.fsdecode(name)), above)
        events.append(Event(
            chr(op), thread, result, relative[paths[0]], relative[paths[1]], inode, bool(is_directory), position, data,
        ))
        at += size
    return events


def _below(path, above):
    path = path.removesuffix(" (deleted)")
    return os.path.relpath(path, above) if path != above else ""


def _inodes(disk):
    """Relative path -> inode, of everything on the disk."""
    found = {"": os.stat(disk).st_ino}
    for directory, names, files in os.walk(disk):
        for name in names + files:
            path = os.path.join(directory, name)
            found[os.path.relpath(path, disk)] = os.lstat(path).st_ino
    return found
