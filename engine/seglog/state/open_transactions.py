"""The transactions of one partition that readers of committed data must wait for.

Kafka's ProducerStateManager.ongoingTxns and unreplicatedTxns. A transaction is undecided from its first record to its
marker. The marker counts once readers can see it, just as a broker ignores a marker above the high watermark. Here the
high watermark is the published end of the log.
"""
import threading
from collections import deque
from collections.abc import Iterable


class Transactions:
    """Transactions that the appending thread begins and completes in log order; any thread may ask for the last stable
    offset."""

    def __init__(self, ongoing: Iterable[tuple[int, int]] = ()) -> None:
        """`ongoing`: (first offset, producer id) of transactions that a snapshot left open."""
        # Guards both fields. Transactions begin and end in offset order, so both stay sorted.
        self._lock = threading.Lock()
        self._ongoing = {producer_id: first_offset for first_offset, producer_id in sorted(ongoing)}
        self._completed: deque[tuple[int, int]] = deque()   # (first offset, offset of the marker)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A producer wrote the first batch of a transaction."""
        with self._lock:
            self._ongoing[producer_id] = first_offset

    def complete(self, producer_id: int, marker_offset: int) -> int:
        """The producer's transaction has its marker. Returns the last stable offset after it.

        A .txnindex entry keeps this offset: the first of other transactions still open, or one past the marker
        (ProducerStateManager.lastStableOffset). Batches of one append are processed one by one, as when a broker
        recovers the log.
        """
        with self._lock:
            self._completed.append((self._ongoing.pop(producer_id), marker_offset))
            return next(iter(self._ongoing.values()), marker_offset + 1)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset up to which everything is decided, for readers that see the log up to `high_watermark`, exclusive.
        """
        with self._lock:
            stable = min(high_watermark, next(iter(self._ongoing.values()), high_watermark))
            for first_offset, marker_offset in reversed(self._completed):
                if marker_offset < high_watermark:
                    break
                stable = min(stable, first_offset)
            return stable

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Forget the completed transactions whose markers readers can see."""
        if not self._completed:
            return
        with self._lock:
            while self._completed and self._completed[0][1] < high_watermark:
                self._completed.popleft()

    @property
    def producer_ids(self) -> list[int]:
        """The producers of the open transactions, in the order of their offsets."""
        with self._lock:
            return list(self._ongoing)

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest open transaction begins; None if there is none."""
        with self._lock:
            return next(iter(self._ongoing.values()), None)
