"""How far a conversion came: one small file, replaced whole, before and after each step that shows in the target."""
from dataclasses import dataclass, field, replace
from typing import Any, Self

from seglog._version import __version__
from seglog.errors import CorruptCheckpointError, InvalidArgumentError, LogLockedError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.foreign_names import Shape, judged
from seglog.spark.options import ConversionOptions
from seglog.spark.workplace import VERSION, members
from seglog.stores.store import WORKPLACE_SUFFIX, Store

_KIND = "seglog-spark-journal"

# converting -> publishing -> committed; from each of them -> rolling back, from committed -> finalizing. The last two
# end with the workplace gone.
CONVERTING, PUBLISHING, COMMITTED, ROLLING_BACK, FINALIZING = (
    "converting", "publishing", "committed", "rolling back", "finalizing"
)
_STATES = (CONVERTING, PUBLISHING, COMMITTED, ROLLING_BACK, FINALIZING)


@dataclass(frozen=True, slots=True)
class Journal:
    """`published` are the partitions that have got, or are about to get, their names in the target; `failed` those that
    could not be converted when they were last tried, with the reason.

    `prefix`: what the result is collected under in an object store; empty in others. `run`: of the driver that took up
    the conversion last.
    """

    state: str
    source: str
    target: str
    options: dict[str, Any]
    seglog: str = __version__
    published: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    prefix: str = ""
    run: str = ""

    @classmethod
    def read(cls, store: Store, target: str) -> "Journal | None":
        """The journal of the conversion into `target`; None where none is under way. Raises CorruptCheckpointError."""
        path = _path(target)
        raw = store.read(path)
        if raw is None:
            return None

        def make(body: dict[str, Any]) -> "Journal":
            published = tuple(
                judged(name, Shape.PARTITION, path, CorruptCheckpointError) for name in body["published"]
            )
            failed = {judged(name, Shape.PARTITION, path, CorruptCheckpointError): str(what)
                      for name, what in body.get("failed", {}).items()}
            journal = cls(**members(body) | {"published": published, "failed": failed})
            ConversionOptions.of_dict(journal.options)      # or it raises what is wrong
            if journal.state not in _STATES:
                raise ValueError(f"unknown state {journal.state!r}")
            if journal.prefix:
                judged(journal.prefix, Shape.VERSION, path, CorruptCheckpointError)
            return journal

        journal = parse_json(raw, _KIND, VERSION, path, make)
        # What is taken back or removed is found by this path.
        if journal.target != target:
            raise CorruptCheckpointError(
                f"the journal is of a conversion into {journal.target}", file=path,
                hint="name the target as the conversion was given it",
            )
        return journal

    def to_bytes(self) -> bytes:
        return format_json(
            _KIND, VERSION, state=self.state, source=self.source, target=self.target, options=self.options,
            seglog=self.seglog, published=self.published, failed=self.failed, prefix=self.prefix, run=self.run,
        )

    def write(self, store: Store) -> None:
        """Let it be the journal of its target."""
        store.write(_path(self.target), self.to_bytes())

    def now(self, store: Store, state: str, published: tuple[str, ...] | None = None) -> Self:
        """The journal with another state, written."""
        journal = replace(self, state=state, published=self.published if published is None else published)
        journal.write(store)
        return journal

    def check_ours(self, run: str) -> None:
        """Raises LogLockedError where another driver has taken up the conversion since: a remote store has no lock."""
        if self.run != run:
            raise LogLockedError(
                "another run has taken up this conversion", file=_path(self.target),
                hint="wait until that one ends; run only one at a time",
            )

    def check_same(self, source: str, options: ConversionOptions) -> None:
        """Raises InvalidArgumentError where another conversion is under way."""
        if self.state in (ROLLING_BACK, FINALIZING):
            word = "--rollback" if self.state == ROLLING_BACK else "--finalize"
            raise InvalidArgumentError(
                f"a conversion into this target was {self.state} and did not end", file=_path(self.target),
                hint=f"run it to its end with {word}",
            )
        if self.source != source or not options.go_on_with(ConversionOptions.of_dict(self.options)):
            raise InvalidArgumentError(
                f"another conversion into this target is under way: of {self.source}, with options"
                f" {_differing(self.options, options.to_dict())}", file=_path(self.target),
                hint="pass the same source and options to continue it, undo it with --rollback, or keep its result "
                "with --finalize",
            )


def _path(target: str) -> str:
    return f"{target}{WORKPLACE_SUFFIX}/journal.json"


def _differing(before: dict[str, Any], now: dict[str, Any]) -> str:
    found = [f"{key}={before.get(key)}" for key in now if before.get(key) != now[key]]
    return ", ".join(found) or "that are the same"
