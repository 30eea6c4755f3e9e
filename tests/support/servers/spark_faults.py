"""File systems that go with the tasks of a conversion and hurt them there: `pack` them, then give them as `fs`.

Each fault strikes once: the first to take the file `trigger` away is hurt. Shipped by value, so that executors need not
import the tests.
"""
import os
import resource
import signal
import sys
import time

from seglog.fs.files import OsFileSystem


class FaultyFs(OsFileSystem):
    """Hurts the task that makes a directory for its attempt, which only tasks do."""

    def __init__(self, trigger):
        self.trigger = str(trigger)

    def mkdir(self, path):
        if "/attempts/" in os.fspath(path) and self._is_mine():
            self.strike(path)
        super().mkdir(path)

    def _is_mine(self):
        try:
            os.unlink(self.trigger)
        except FileNotFoundError:
            return False
        return True

    def strike(self, path):
        raise NotImplementedError


class Raises(FaultyFs):
    def strike(self, path):
        raise RuntimeError("a task that raises")


class KillsWorker(FaultyFs):
    """The Python process of the task."""

    def strike(self, path):
        os.kill(os.getpid(), signal.SIGKILL)


class KillsExecutor(FaultyFs):
    """The JVM above it: worker, daemon, executor."""

    def strike(self, path):
        daemon = os.getppid()
        with open(f"/proc/{daemon}/stat") as stat:
            executor = int(stat.read().rpartition(")")[2].split()[1])
        os.kill(executor, signal.SIGKILL)
        time.sleep(60)


class Straggles(FaultyFs):
    """One attempt that takes longer than all others, on a busy machine, too: until another one is at its task."""

    BEGINS_S = 600      # within which Spark must have begun the other one
    ENDS_S = 60         # within which that one is done

    def mkdir(self, path):
        if "/attempts/" in os.fspath(path) and os.path.exists(f"{self.trigger}.{self._task()}"):
            with open(f"{self.trigger}.rival", "w"):
                pass
        super().mkdir(path)

    def strike(self, path):
        with open(f"{self.trigger}.{self._task()}", "w"):
            pass
        end = time.monotonic() + self.BEGINS_S
        while not os.path.exists(f"{self.trigger}.rival") and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(self.ENDS_S)     # Spark ends this process before

    @staticmethod
    def _task():
        from pyspark import TaskContext

        task = TaskContext.get()
        return f"{task.stageId()}-{task.partitionId()}"


class Appends(FaultyFs):
    """To a file of the source, while tasks are at work."""

    def __init__(self, trigger, log, data):
        super().__init__(trigger)
        self.log, self.data = str(log), data

    def strike(self, path):
        with open(self.log, "ab") as file:
            file.write(self.data)


class DiskIsFull(OsFileSystem):
    """On one of the workers no file grows beyond a few bytes; `address` is its SPARK_LOCAL_IP.

    By a limit of the process: the system itself refuses, in the middle of a file.
    """

    BYTES = 300

    def __init__(self, address):
        self.address = address

    def mkdir(self, path):
        if "/attempts/" in os.fspath(path) and os.environ.get("SPARK_LOCAL_IP") == self.address:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.BYTES, self.BYTES))
        super().mkdir(path)


class TellsWhere(OsFileSystem):
    """Leaves in the directory `log` a file for each attempt, named after the address of its worker."""

    def __init__(self, log):
        self.log = str(log)

    def mkdir(self, path):
        if "/attempts/" in os.fspath(path):
            name = f"{os.environ.get('SPARK_LOCAL_IP', 'here')}-{os.path.basename(os.fspath(path))}"
            with open(os.path.join(self.log, name), "x"):
                pass
        super().mkdir(path)


def pack():
    """Let Spark ship these classes, and the tests' own file system, as they are."""
    from pyspark import cloudpickle

    import support.conversion

    for module in (sys.modules[__name__], support.conversion):
        cloudpickle.register_pickle_by_value(module)
