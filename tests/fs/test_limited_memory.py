"""A map that exceeds the process's limit of address space: the error names that limit, and what it must be."""
import re
import resource
import subprocess
import sys

import pytest

FILE_BYTES = 600 << 20
PROGRAM = """
import sys
from pathlib import Path
from seglog.errors import StorageError
from seglog.fs.mapping import Mapping
try:
    first = Mapping(Path(sys.argv[1]))
    second = Mapping(Path(sys.argv[1]))
except StorageError as error:
    print(error, error.hint, sep="\\n")
else:
    print("mapped")
"""


def mapped_with(path, limit_kib):
    """What a process says that maps the file twice, as a scan does, under `ulimit -v`."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (limit_kib << 10, limit_kib << 10))

    command = [sys.executable, "-c", PROGRAM, str(path)]
    return subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="how much is in use is read from /proc")
def test_the_limit_that_the_error_asks_for_is_enough(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    with open(path, "wb") as file:
        file.truncate(FILE_BYTES)
    said = mapped_with(path, 512 << 10)
    assert "limited to 512 MiB (RLIMIT_AS)" in said
    assert "max_map_count" not in said
    needed_kib = int(re.search(r"at least (\d+) KiB", said)[1])
    assert mapped_with(path, needed_kib) == "mapped\n"
