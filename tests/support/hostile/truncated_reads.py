"""Reads of a log whose file becomes shorter in the middle, each by itself: another process would do it like this.

    python truncated_reads.py CASE

Prints the class and the words of what was raised, as JSON.
"""
import faulthandler
import io
import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import StorageError
from seglog.fs.mapping import Mapping
from seglog.tools.cli import cli

KEEP_BYTES = 5_000


def written(codec="none"):
    path = Path(tempfile.mkdtemp()) / "t-0"
    with seglog.open(path, config={"compression.type": codec}) as log:
        for n in range(300):
            log.append_many([(b"key %d" % n, os.urandom(1_000)) for _ in range(10)])
    return path


def cut(path):
    os.truncate(next(Path(path).glob("*.log")), KEEP_BYTES)


def read(codec="none"):
    path = written(codec)
    with seglog.open_partition(path) as partition:
        records = partition.read()
        next(records)
        cut(path)
        sum(len(record.value) for record in records)


def columns():
    path = written()
    with seglog.open_partition(path) as partition:
        chunks = partition.columns(chunk_bytes=1 << 16)
        next(chunks)
        cut(path)
        list(chunks)


def point():
    path = written()
    with seglog.open_partition(path) as partition:
        partition[0]
        cut(path)
        bytes(partition[2_500].value)


def by_time():
    path = written()
    with seglog.open_partition(path) as partition:
        partition.offset_for_time(0)
        cut(path)
        partition.offset_for_time(2**60)
        bytes(partition[2_000].value)


def value():
    path = written()
    with seglog.open_partition(path) as partition:
        record = partition[2_500]
        cut(path)
        bytes(record.value)


def raw(copy=False):
    path = written()
    with seglog.open_partition(path) as partition:
        batches = list(partition.batches())
        cut(path)
        if copy:
            batches[-1].raw(copy=True)
        view = batches[-1].raw()
        assert bytes(view) == bytes(len(view))
        list(partition.batches())


def converted():
    path = written()
    real = seglog.fs.mapping.Mapping.__new__

    def shortened(cls, name, **options):
        made = real(cls, name, **options)
        if str(name).endswith(".log") and str(name).startswith(str(path)):
            cut(path)
        return made

    seglog.fs.mapping.Mapping.__new__ = shortened
    (path.parent / "new").mkdir()
    seglog.plan_conversion(path, path.parent / "new" / "t-0", codec="gzip")


def verified():
    path = written()
    real = seglog.fs.mapping.Mapping.__new__

    def shortened(cls, name, **options):
        made = real(cls, name, **options)
        if str(name).endswith(".log"):
            cut(path)
        return made

    seglog.fs.mapping.Mapping.__new__ = shortened
    report = seglog.verify(path, level="deep")
    assert report.size_bytes == KEEP_BYTES      # it looked again, as it does when files change


def dumped():
    """A command, with the file cut while it prints."""
    path = written()
    lines = 0

    class Output(io.TextIOBase):
        def write(self, text):
            nonlocal lines
            lines += 1
            if lines == 5:
                cut(path)
            return len(text)

    sys.stdout, printed = Output(), sys.stdout
    try:
        cli.main(["dump", str(path)], standalone_mode=False)
    finally:
        sys.stdout = printed


def bytes_of(size=1 << 20):
    path = Path(tempfile.mkdtemp()) / "bytes"
    path.write_bytes(b"x" * size)
    return path


def torn_window():
    path = bytes_of()
    mapped = Mapping(path)
    window = Window(mapped, str(path))
    os.truncate(path, 0)
    return scan(window, check_crc=True)


def threads():
    told = []

    def work():
        try:
            torn_window()
        except StorageError as error:
            told.append(error)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(told) == 8
    raise told[0]


def child():
    Mapping(bytes_of())
    pid = os.fork()
    if pid == 0:
        try:
            torn_window()
        except StorageError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    torn_window()


def with_faulthandler_before():
    faulthandler.enable()
    torn_window()


def with_faulthandler_behind():
    Mapping(bytes_of())
    faulthandler.enable()
    torn_window()           # its map puts ours on top again


def other_fault():
    """A fault that is not ours: as without a handler."""
    import mmap
    Mapping(bytes_of())
    path = bytes_of()
    with path.open("rb") as file:
        other = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    os.truncate(path, 0)
    bytes(other[:5])


def other_fault_with_faulthandler():
    faulthandler.enable()
    other_fault()


def other_fault_with_faulthandler_between():
    Mapping(bytes_of())
    faulthandler.enable()
    other_fault()


def killed():
    Mapping(bytes_of())
    os.kill(os.getpid(), signal.SIGBUS)


def python_handler():
    told = []
    signal.signal(signal.SIGBUS, lambda *_: told.append(1))
    Mapping(bytes_of())
    os.kill(os.getpid(), signal.SIGBUS)
    os.kill(os.getpid(), signal.SIGBUS)
    assert told == [1, 1]
    torn_window()


def many_maps():
    path = bytes_of(10)
    maps = [Mapping(path) for _ in range(30_000)]
    del maps[::2]
    again = [Mapping(path) for _ in range(10_000)]
    os.truncate(path, 0)
    for one in (maps[0], maps[-1], again[0], again[-1]):
        assert not one.is_torn
        assert bytes(memoryview(one)) == bytes(10)
        assert one.is_torn
    assert not maps[5].is_torn
    Mapping(bytes_of()).check_whole()
    maps[0].check_whole()


CASES = {
    **{f"read_{codec}": lambda codec=codec: read(codec) for codec in ("none", "gzip", "lz4", "zstd", "snappy")},
    "raw_copy": lambda: raw(copy=True),
    **{made.__name__: made for made in (
        dumped, columns, point, by_time, value, raw, converted, verified, torn_window, threads, child,
        with_faulthandler_before, with_faulthandler_behind, other_fault, other_fault_with_faulthandler,
        other_fault_with_faulthandler_between,
        killed, python_handler, many_maps,
    )},
}


def main(case):
    try:
        CASES[case]()
    except Exception as error:      # whatever it is, it is told
        print(json.dumps([type(error).__name__, str(error)]))


if __name__ == "__main__":
    main(sys.argv[1])
