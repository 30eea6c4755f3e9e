"""What keeps a lock without a descriptor. That it does: tests/fs/test_kept_lock.py."""
import errno
import sys

import pytest

from seglog._kernels.lock_map import LockMap


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(OSError) as caught:      # noqa: PT011
        LockMap(-1)
    assert caught.value.errno == (errno.EBADF if sys.platform == "linux" else errno.ENOTSUP)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such locks")
def test_a_map_is_there_until_it_is_closed_and_no_longer(tmp_path):
    def maps():
        with open("/proc/self/maps") as lines:
            return sum(str(tmp_path) in line for line in lines)

    with open(tmp_path / "file", "w+b") as file:
        page = LockMap(file.fileno())
    assert maps() == 1
    page.close()
    page.close()
    assert maps() == 0
    with open(tmp_path / "file", "rb") as file:
        other = LockMap(file.fileno())
    del other
    assert maps() == 0
