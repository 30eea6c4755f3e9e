"""A Mapping gives out the bytes of a file and keeps them as long as anybody looks."""
import errno
import gc
import os
import subprocess
import sys
import tempfile
import threading

import pytest

from seglog._kernels.mapping import FileMap, file_size
from seglog._kernels.window import Window
from seglog.errors import StorageError
from seglog.fs.mapping import Advice, Mapping, read_file, read_part

CONTENT = bytes(range(256)) * 64     # four pages


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(params=[False, True], ids=["mapped", "copied"])
def mapping(request, path):
    with Mapping(path, copy=request.param) as mapping:
        yield mapping


def is_mapped(path):
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("no /proc/self/maps on this system")
    with open("/proc/self/maps") as maps:
        return any(str(path) in line for line in maps)


def open_descriptors():
    return len(os.listdir("/dev/fd"))


def test_it_holds_the_bytes_of_the_file(mapping, path):
    assert len(mapping) == len(CONTENT)
    assert bytes(mapping) == CONTENT
    assert memoryview(mapping)[256:260] == b"\x00\x01\x02\x03"
    assert mapping.path == str(path)
    assert repr(mapping) == f"<Mapping {path} {len(CONTENT)} bytes>"


def test_it_is_read_only(mapping):
    view = memoryview(mapping)
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_kernel_s_window_fits_on_it(mapping):
    assert len(Window(mapping)) == len(CONTENT)


@pytest.mark.parametrize("copy", [False, True])
def test_an_empty_file_is_an_empty_buffer(tmp_path, copy):
    path = tmp_path / "empty.log"
    path.touch()
    with Mapping(path, copy=copy) as mapping:
        mapping.advise(Advice.SEQUENTIAL)
        assert len(mapping) == 0
        assert bytes(mapping) == b""


def test_its_size_is_that_at_opening(path):
    with Mapping(path) as mapping:
        with open(path, "ab") as appending:
            appending.write(b"more")
        assert bytes(mapping) == CONTENT


def test_the_file_may_be_unlinked_or_replaced(mapping, path):
    path.unlink()
    path.write_bytes(b"another file")
    assert bytes(mapping) == CONTENT


def test_no_descriptor_stays_open(path):
    before = open_descriptors()
    mapping = Mapping(path)
    assert open_descriptors() == before
    mapping.close()


# --- lifetimes ---------------------------------------------------------------------------


def test_a_view_keeps_the_pages_after_close(mapping):
    view = memoryview(mapping)
    mapping.close()
    assert mapping.closed
    assert view == CONTENT


def test_a_slice_of_a_view_keeps_the_pages_after_all_else_is_gone(path):
    mapping = Mapping(path)
    part = memoryview(mapping)[1000:1010]
    mapping.close()
    del mapping
    gc.collect()
    assert is_mapped(path)
    assert part == CONTENT[1000:1010]
    del part
    gc.collect()
    assert not is_mapped(path)


def test_a_window_keeps_the_pages_after_close(path):
    mapping = Mapping(path)
    window = Window(mapping)
    mapping.close()
    assert is_mapped(path)
    del window
    assert not is_mapped(path)


def test_a_view_keeps_the_pages_of_a_mapping_that_nobody_closed(path):
    view = memoryview(Mapping(path))
    gc.collect()
    assert view == CONTENT
    view.release()
    assert not is_mapped(path)


def test_close_without_views_unmaps_at_once(path):
    mapping = Mapping(path)
    assert is_mapped(path)
    mapping.close()
    assert not is_mapped(path)


def test_close_may_be_called_twice_also_with_views_alive(mapping):
    view = memoryview(mapping)
    mapping.close()
    mapping.close()
    view.release()
    mapping.close()
    assert len(mapping) == len(CONTENT)


def test_a_closed_mapping_gives_out_no_new_views(mapping):
    mapping.close()
    with pytest.raises(ValueError, match="closed"):
        memoryview(mapping)
    mapping.advise(Advice.RANDOM)
    assert "closed" in repr(mapping)


def test_views_may_go_in_any_order(path):
    mapping = Mapping(path)
    views = [memoryview(mapping) for _ in range(5)]
    views[2].release()
    mapping.close()
    for slot in (4, 0, 3):
        assert views[slot] == CONTENT
        views[slot].release()
    assert is_mapped(path)
    views[1].release()
    assert not is_mapped(path)


def test_a_refused_export_does_not_count_as_a_view(path):
    mapping = Mapping(path)
    with pytest.raises(BufferError):
        os.readv(0, [mapping])      # asks for a writable buffer
    mapping.close()
    assert not is_mapped(path)


def test_threads_may_view_and_close_at_once(path):
    for _ in range(50):
        mapping = Mapping(path)
        views = [memoryview(mapping) for _ in range(4)]

        def look_and_go(view):
            assert view[-1] == CONTENT[-1]
            view.release()

        threads = [threading.Thread(target=look_and_go, args=(view,)) for view in views]
        for thread in threads:
            thread.start()
        mapping.close()
        for thread in threads:
            thread.join()
        assert not is_mapped(path)


# --- advice ------------------------------------------------------------------------------


@pytest.mark.parametrize("advice", list(Advice))
def test_advice_changes_no_byte(mapping, advice):
    mapping.advise(advice)
    mapping.advise(advice, position=4097, size=1)
    mapping.advise(advice, position=5000, size=1 << 40)      # beyond the end: as far as mapped
    mapping.advise(advice, position=1 << 40)
    assert bytes(mapping) == CONTENT     # DONT_NEED on a copy would leave zeros, were it passed on


@pytest.mark.parametrize(("position", "size"), [(-1, 1), (0, -1)])
def test_advice_on_a_negative_range_is_refused(mapping, position, size):
    with pytest.raises(ValueError, match="advice"):
        mapping.advise(Advice.NORMAL, position, size)


# --- files that another process cuts -----------------------------------------------------

CUT_UNDER_A_COPY = """
import os, sys
from seglog.fs.mapping import Mapping
mapping = Mapping(sys.argv[1], copy=True)
os.truncate(sys.argv[1], 0)          # as Kafka does with an index at a roll
assert bytes(mapping) == bytes(range(256)) * 64
"""


def test_a_copy_survives_a_file_that_is_cut(path):
    # In a process of its own: over a map this would be SIGBUS.
    subprocess.run([sys.executable, "-c", CUT_UNDER_A_COPY, str(path)], check=True)


def test_a_copy_of_a_file_that_shrank_meanwhile_is_shorter(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        assert len(FileMap(fd, len(CONTENT) + 5000, copy=True)) == len(CONTENT)
    finally:
        os.close(fd)


# --- what cannot be mapped ---------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StorageError, match="no such file") as refusal:
        Mapping(tmp_path / "gone.log")
    assert refusal.value.file == str(tmp_path / "gone.log")
    assert refusal.value.exit_status == 3


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(StorageError, match="expected a file, found a directory"):
        Mapping(tmp_path)


def test_a_fifo_is_refused_without_waiting_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe.log")
    with pytest.raises(StorageError, match="not a regular file"):
        Mapping(tmp_path / "pipe.log")


def test_a_sparse_file_of_a_tebibyte_is_refused_and_not_read(tmp_path):
    """No file of a log is that large, and reading its zeros takes hours, or all the memory there is."""
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    for read in (Mapping, lambda path: Mapping(path, copy=True), read_file):
        with pytest.raises(StorageError, match="1099511627776 bytes") as refused:
            read(path)
        assert refused.value.errno == errno.EFBIG


def test_a_link_to_nothing_is_not_a_missing_file(tmp_path):
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(StorageError, match="no such file"):
        read_file(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nothing")


def test_a_failing_open_leaks_no_descriptor(tmp_path):
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(StorageError):
            Mapping(tmp_path)
    assert open_descriptors() == before


def test_a_negative_size_is_refused(path):
    with pytest.raises(ValueError, match="-1 bytes"):
        FileMap(0, -1)


@pytest.mark.parametrize("copy", [False, True])
def test_a_descriptor_that_is_none_is_an_os_error(copy):
    with pytest.raises(OSError, match="Bad file descriptor"):
        FileMap(1 << 20, 10, copy=copy)


def test_a_small_file_is_read_whole_and_a_pipe_is_not_waited_for(path, tmp_path):
    assert read_file(path) == CONTENT
    with pytest.raises(FileNotFoundError) as missing:
        read_file(tmp_path / "none")
    assert missing.value.filename == str(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        read_file(tmp_path / "pipe")


def test_a_part_of_a_file_is_read_as_far_as_there_is_one(tmp_path):
    path = tmp_path / "index"
    path.write_bytes(b"0123456789")
    assert read_part(str(path), 0, 10) == b"0123456789"
    assert read_part(str(path), 7, 2) == b"78"
    assert read_part(str(path), 7, 100) == b"789"
    assert read_part(str(path), 10, 1) == read_part(str(path), 3, 0) == b""
    with pytest.raises(StorageError, match="cannot read") as refused:
        read_part(str(tmp_path / "none"), 0, 1)
    assert (refused.value.errno, refused.value.file) == (errno.ENOENT, str(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError):       # and does not wait for a writer
        read_part(str(tmp_path / "pipe"), 0, 1)
    with pytest.raises(StorageError):
        read_part(str(tmp_path), 0, 1)


def test_the_size_of_a_file_is_what_the_system_says(tmp_path):
    path = tmp_path / "grö\u00dfe"
    for size in (0, 1, 70_000):
        path.write_bytes(bytes(size))
        assert file_size(str(path)) == file_size(path) == os.stat(path).st_size == size
    with pytest.raises(FileNotFoundError) as caught:
        file_size(tmp_path / "gone")
    assert caught.value.filename == tmp_path / "gone"


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells what is in its page cache")
def test_load_brings_what_is_not_there_into_the_page_cache():
    def is_cached(position):
        try:
            return os.preadv(opened.fileno(), [bytearray(1)], position, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False
        except OSError as error:
            pytest.skip(f"this file system does not tell what is in its page cache: {error}")

    # In the sources' file system: tmp_path may lie in memory, which nobody evicts.
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(__file__)) as opened:
        opened.write(bytes(8 << 20))
        opened.flush()
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if is_cached(3 << 20):      # (To ask brings this page in: so it is none that is asked for below.)
            pytest.skip("this file system keeps what it is told not to need")
        with Mapping(opened.name) as mapping:
            mapping.load(2 << 20, 4 << 20)
            assert is_cached(2 << 20)
            assert is_cached((6 << 20) - 1)
            mapping.load(7 << 20, 1 << 30)
            assert is_cached((8 << 20) - 1)


def test_load_of_what_is_gone_or_closed_is_no_error(mapping, path):
    mapping.load(0, 1 << 20)
    mapping.load(len(mapping), 1)
    path.unlink()
    mapping.load(0, 1)
    mapping.close()
    mapping.load(0, 1)
