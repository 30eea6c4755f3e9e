"""The journal of a sink: the commit in progress, and what was committed. docs/formats/spark_sink.md describes it."""
from dataclasses import asdict, dataclass, field
from typing import Any

from seglog.errors import CorruptCheckpointError
from seglog.format import names
from seglog.format.checked_json import format_json, parse_json
from seglog.format.foreign_names import Shape, judged

JOURNAL_NAME = "journal.json"
VERSION = 1
_KIND = "seglog-spark-sink"
# Each takes about 40 bytes of a file that every commit writes twice.
_BATCHES_KEPT = 1000


@dataclass(frozen=True, slots=True)
class StagedPartition:
    """A partition that a task has written, with offsets from 0 up to `end_offset`."""

    directory: str
    name: str
    end_offset: int


@dataclass(frozen=True, slots=True)
class SinkStep:
    """The change of one partition. `from_offset`: where it ended before; None if it is renamed into place.

    `staged` is relative to `<path>.seglog-sink`; empty for a partition that is only removed. `former`: the partition's
    lines in the log dir's checkpoints if it is replaced or removed, {checkpoint: offset}.
    """

    name: str
    staged: str
    end_offset: int
    from_offset: int | None
    replaces: bool = False
    former: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkJournal:
    """`epochs`: {stream: its last epoch in the log dir}. `batches`: the ids of batches in the log dir, the last ones.
    `steps`: those of an unfinished commit; `stream` and `epoch` identify it, or `batch`, if the batch has an id.
    `drops`: the commit is being undone.
    """

    epochs: dict[str, int] = field(default_factory=dict)
    steps: tuple[SinkStep, ...] = ()
    stream: str | None = None
    epoch: int | None = None
    batch: str | None = None
    batches: tuple[str, ...] = ()
    drops: bool = False

    @property
    def place(self) -> str:
        """Where the unfinished commit was staged, and where partitions that it replaces are moved."""
        return next(step.staged.partition("/")[0] for step in self.steps if step.staged)

    @property
    def is_batch(self) -> bool:
        """Whether the commit of a batch is unfinished."""
        return bool(self.steps) and self.epoch is None

    def completed(self) -> "SinkJournal":
        """The journal once its commit is complete."""
        epochs, batches = dict(self.epochs), self.batches
        if self.stream is not None and self.epoch is not None:
            epochs[self.stream] = self.epoch
        if self.batch is not None:
            batches = (*batches, self.batch)[-_BATCHES_KEPT:]
        return SinkJournal(epochs, batches=batches)

    def dropped(self) -> "SinkJournal":
        """The journal once its commit is undone."""
        return SinkJournal(self.epochs, batches=self.batches)

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "SinkJournal":
        """Parse a journal. Raises CorruptCheckpointError, UnsupportedVersionError."""
        def make(body: dict[str, Any]) -> "SinkJournal":
            steps = tuple(SinkStep(**step) for step in body["steps"])
            for step in steps:
                judged(step.name, Shape.PARTITION, file, CorruptCheckpointError)
                if step.staged:
                    place, task, name = step.staged.split("/")
                    judged(place, Shape.FILE, file, CorruptCheckpointError)
                    judged(task, Shape.FILE, file, CorruptCheckpointError)
                    judged(name, Shape.PARTITION, file, CorruptCheckpointError)
                if not step.former.keys() <= set(names.OFFSET_CHECKPOINTS):
                    raise ValueError(f"unknown checkpoints {sorted(step.former)}")
            if steps and not any(step.staged for step in steps):
                raise ValueError("it has steps, but nothing is staged for them")
            return cls(
                dict(body["epochs"]), steps, body["stream"], body["epoch"], body.get("batch"),
                tuple(body.get("batches", ())), body.get("drops", False),
            )

        return parse_json(raw, _KIND, VERSION, file, make)

    def to_bytes(self) -> bytes:
        return format_json(
            _KIND, VERSION, epochs=self.epochs, steps=[asdict(step) for step in self.steps], stream=self.stream,
            epoch=self.epoch, batch=self.batch, batches=self.batches, drops=self.drops,
        )
