"""Another user of this machine: a process under an id of its own, which reads what it may, and plants what it likes."""
import json
import os
import subprocess
import sys
import threading

ID = 54_321     # no account needs to have it

_PROGRAM = """
import errno, json, os, socket, sys
os.setgroups([])
os.setresgid(int(sys.argv[1]), int(sys.argv[1]), int(sys.argv[1]))
os.setresuid(int(sys.argv[1]), int(sys.argv[1]), int(sys.argv[1]))
os.umask(0)

def look(root, secret):
    found = []
    def walk(path):
        try:
            entries = list(os.scandir(path))
        except OSError:
            return
        for entry in entries:
            if entry.is_symlink():
                continue
            if entry.is_dir():
                walk(entry.path)
                continue
            try:
                with open(entry.path, "rb") as file:
                    raw = file.read()
            except OSError:
                continue
            if secret.encode() in raw:
                found.append(entry.path)
    walk(root)
    return found

def call(name, *arguments):
    try:
        return getattr(os, name)(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]

def connect(path, data):
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(path)
        except OSError as error:
            return errno.errorcode[error.errno]
        one.settimeout(60)
        came = b""
        try:
            if data:
                one.sendall(data.encode())
                one.shutdown(socket.SHUT_WR)
            while piece := one.recv(65536):
                came += piece
        except (BrokenPipeError, ConnectionResetError):
            pass
        return came.decode("latin-1")

listening = []

def listen(path):
    one = socket.socket(socket.AF_UNIX)
    one.bind(path)
    os.chmod(path, 0o777)
    one.listen()
    listening.append(one)

def heard():
    listening[-1].settimeout(0)
    try:
        connection, _ = listening[-1].accept()
    except BlockingIOError:
        return ""
    with connection:
        connection.settimeout(60)
        came = b""
        while piece := connection.recv(65536):
            came += piece
        return came.decode("latin-1")

for line in sys.stdin:
    what, *arguments = json.loads(line)
    print(json.dumps(globals()[what](*arguments)), flush=True)
"""


class SecondUser:
    """Ask it by its methods; a context manager that ends it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()       # one question at a time, whichever thread has it
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM, str(ID)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "SecondUser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def look(self, root: os.PathLike[str], secret: str) -> list[str]:
        """The files under `root` that hold `secret` and that it can read."""
        return self._ask("look", os.fspath(root), secret)

    def call(self, name: str, *arguments: object) -> object:
        """What os.<name> gives it; the name of the error where it is refused."""
        return self._ask("call", name, *(os.fspath(a) if isinstance(a, os.PathLike) else a for a in arguments))

    def connect(self, path: os.PathLike[str], data: str) -> str:
        """Send `data` to a Unix socket: what comes back until it is closed; the name of the error if it is refused."""
        return self._ask("connect", os.fspath(path), data)

    def listen(self, path: os.PathLike[str]) -> None:
        """Listen on a Unix socket that all may connect to."""
        self._ask("listen", os.fspath(path))

    def heard(self) -> str:
        """What came from a process that connected to the socket, and has closed the connection."""
        return self._ask("heard")

    def _ask(self, *what: object):
        with self._lock:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
