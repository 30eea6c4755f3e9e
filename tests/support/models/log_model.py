"""What a log should say, in plain Python: lists of batches, and answers by looking at each record."""
from dataclasses import dataclass
from typing import NamedTuple

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class ModelRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple = ()


class Producer(NamedTuple):
    """What a batch says of its producer. `marker`: COMMITTED or ABORTED in the batch that ends a transaction."""

    id: int
    epoch: int
    first_sequence: int = -1
    last_sequence: int = -1
    is_transactional: bool = False
    marker: str | None = None


@dataclass(frozen=True)
class ModelBatch:
    records: tuple[ModelRecord, ...]
    producer: Producer | None = None

    @property
    def first(self):
        return self.records[0].offset

    @property
    def last(self):
        return self.records[-1].offset

    @property
    def is_control(self):
        return self.producer is not None and self.producer.marker is not None


class LogModel:
    """`batches` holds those below `start`, too: a transaction is what its marker says, wherever it began."""

    def __init__(self):
        self.batches = []
        self.start = self.end = 0

    # --- changing

    def add(self, batch):
        assert batch.first >= self.end
        self.batches.append(batch)
        self.end = batch.last + 1

    def truncate(self, offset, segment_base):
        """Whole batches go. The end is that of the batch before, or where the segment of the cut begins."""
        self._keep([batch for batch in self.batches if batch.last < offset], segment_base)

    def lose(self, count, segment_base):
        """The last `count` batches are gone."""
        self._keep(self.batches[: len(self.batches) - count], segment_base)

    def _keep(self, batches, segment_base):
        self.batches = batches
        self.end = max(batches[-1].last + 1 if batches else 0, segment_base)
        if self.end < self.start:
            # A log that ends below its start begins anew there.
            self.batches, self.end = [], self.start

    # --- answers

    def _outcomes(self):
        """[(batch, what became of its transaction)]; None for a batch of none."""
        open_since, outcomes = {}, []
        for batch in self.batches:
            producer = batch.producer
            if producer is not None and producer.marker is not None:
                for slot in open_since.pop(producer.id, []):
                    outcomes[slot] = (outcomes[slot][0], producer.marker)
            elif producer is not None and producer.is_transactional:
                open_since.setdefault(producer.id, []).append(len(outcomes))
                outcomes.append((batch, OPEN))
                continue
            outcomes.append((batch, None))
        return outcomes

    @property
    def last_stable_offsets(self):
        """(least, most): a log that replays its records may have forgotten the deleted part of a transaction.

        A recovery may find that part again, because it reads the first segment from its beginning, as Kafka's does.
        """
        undecided = [batch.first for batch, outcome in self._outcomes() if outcome == OPEN]
        least = max(undecided[0], self.start) if undecided else self.end
        return least, next((first for first in undecided if first >= self.start), self.end)

    def open_transactions(self):
        """The producers that have one."""
        return {batch.producer.id: batch.producer for batch, outcome in self._outcomes() if outcome == OPEN}

    def last_of(self, producer_id):
        """The last batch of a producer that has records and is not deleted."""
        return next(
            (b for b in reversed(self.batches)
             if b.producer is not None and b.producer.id == producer_id and not b.is_control and b.first >= self.start),
            None,
        )

    def records(self, start=None, stop=None, *, committed=False, control=False):
        start = self.start if start is None else max(start, self.start)
        stop = self.end if stop is None else stop
        return [
            record
            for batch, outcome in (self._outcomes() if committed else [(b, None) for b in self.batches])
            if (control or not batch.is_control) and outcome != ABORTED
            for record in batch.records
            if start <= record.offset < stop
        ]

    def offset_at(self, timestamp):
        return next((r.offset for r in self.records(control=True) if r.timestamp >= timestamp), None)
