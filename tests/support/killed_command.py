"""A command that dies by SIGKILL at a call of the file system."""
import signal
import subprocess
import sys

# Runs a command, which dies by SIGKILL at the nth call of one method of the file system that names a path like this.
DIES = """
import os, signal, sys
from seglog.fs.files import OsFileSystem
from seglog.tools.cli import main
method, part, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
plain = getattr(OsFileSystem, method)
def dies(self, *arguments, **options):
    global left
    if part in " ".join(map(str, arguments)):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *arguments, **options)
setattr(OsFileSystem, method, dies)
sys.argv = ["seglog", *sys.argv[4:]]
main()
"""


def killed(method, part, nth, *arguments):
    """Run the command until its nth call of this method with an argument that contains `part`."""
    result = subprocess.run(
        [sys.executable, "-c", DIES, method, part, str(nth), *map(str, arguments)], capture_output=True, timeout=60
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
