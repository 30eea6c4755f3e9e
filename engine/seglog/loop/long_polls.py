"""Fetches that wait for records, and are woken when one of their logs publishes more (Log.on_published).

A fetch registers before it looks at its logs again, so it misses nothing that is published in between. It waits for
many logs at once, and all of them are open in this process; `arrivals` is for tasks that follow one log each, which
another process may write, and may change while they wait.
"""
import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

from seglog.log.log import Log
from seglog.loop.home import call_in
from seglog.reading.notices import Listening


class LongPolls:
    """The waiting fetches of each log. Use it in the loop's thread; only `_published` runs in the notices' thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Log, set[asyncio.Event]] = {}
        self._listenings: dict[Log, Listening] = {}

    @contextlib.contextmanager
    def waiting_for(self, logs: Sequence[Log]) -> "Iterator[asyncio.Event]":
        """Within the context, the event is set when one of the logs grows, is truncated or closed."""
        event = asyncio.Event()
        for log in logs:
            self._waiting.setdefault(log, set()).add(event)
            if log not in self._listenings:
                self._listenings[log] = log.on_published(partial(self._published, log))
        try:
            yield event
        finally:
            for log in logs:
                events = self._waiting.get(log)
                if events is not None:
                    events.discard(event)
                    if not events:
                        del self._waiting[log]

    def close(self) -> None:
        """Stop listening to the logs."""
        for listening in self._listenings.values():
            listening.cancel()
        self._listenings.clear()

    def _published(self, log: Log, end: int | None) -> None:
        # Runs in the notices' thread. A fetch that registers after this check looks at its log later, and sees it.
        if end is None or log in self._waiting:
            call_in(self._loop, self._wake, log, end)

    def _wake(self, log: Log, end: int | None) -> None:
        if end is None:
            self._listenings.pop(log, None)
        for event in self._waiting.get(log, ()):
            event.set()
