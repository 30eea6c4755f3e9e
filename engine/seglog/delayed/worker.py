"""Where background work runs: in a thread of its own, or, for tests, at once."""
import threading
from collections.abc import Callable
from typing import Protocol


class Worker(Protocol):
    """Runs one function whenever it is woken; wakes that come while it runs make it run once more."""

    def start(self, work: Callable[[], None]) -> None: ...

    def wake(self) -> None:
        """Ask for a run. Returns at once."""
        ...

    def wait_idle(self) -> None:
        """Return when every run that was asked for is over."""
        ...

    def close(self) -> None:
        """Let the present run end and begin no other."""
        ...


class InlineWorker:
    """Works in the thread that wakes it, before `wake` returns: runs are the same every time."""

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._working = False

    def start(self, work: Callable[[], None]) -> None:
        self._work = work

    def wake(self) -> None:
        if self._work is not None and not self._working:
            self._working = True
            try:
                self._work()
            finally:
                self._working = False

    def wait_idle(self) -> None:
        pass

    def close(self) -> None:
        self._work = None


class IdleWorker:
    """Does nothing: what there is to do is left to who opens the tracker next."""

    def start(self, work: Callable[[], None]) -> None:
        pass

    def wake(self) -> None:
        pass

    def wait_idle(self) -> None:
        pass

    def close(self) -> None:
        pass


class BackgroundWorker:
    """Works in a thread, which starts when it is first woken."""

    def __init__(self, name: str = "seglog-delayed") -> None:
        self._name = name
        self._work: Callable[[], None] | None = None
        # Guards what follows.
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = False
        self._working = False
        self._closed = False

    def start(self, work: Callable[[], None]) -> None:
        self._work = work

    def wake(self) -> None:
        with self._condition:
            if self._closed:
                return
            self._asked = True
            if self._thread is None:
                # A daemon: an embedding program that forgets to close still ends, and nothing is lost by it.
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._working = False
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._asked or self._closed)
                if self._closed:
                    return
                self._asked = False
                self._working = True
            assert self._work is not None
            try:
                self._work()
            except BaseException:
                with self._condition:
                    # threading.excepthook tells of it; the next wake begins a new thread.
                    self._working = False
                    self._thread = None
                    self._condition.notify_all()
                raise

    def wait_idle(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._closed or not (self._asked or self._working))

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
