"""The progress of a conversion: one small file, replaced before and after each step that changes the target."""
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from seglog._version import __version__
from seglog.errors import CorruptCheckpointError, InvalidArgumentError, LogLockedError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.foreign_names import Shape, judged
from seglog.spark.options import ConversionOptions
from seglog.spark.workplace import members
from seglog.stores.store import WORKPLACE_SUFFIX, Store

JOURNAL_FILE = "journal.json"
VERSION = 3         # below: `allow_lossy` of the options is a bool
_KIND = "seglog-spark-journal"

# converting -> publishing, for each wave; from the last one -> committed; from each of these -> rolling back; from
# committed -> finalizing. The last two end with the removal of the workplace.
CONVERTING, PUBLISHING, COMMITTED, ROLLING_BACK, FINALIZING = (
    "converting", "publishing", "committed", "rolling back", "finalizing"
)
_STATES = (CONVERTING, PUBLISHING, COMMITTED, ROLLING_BACK, FINALIZING)


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of a conversion. `published`: partitions that have, or are about to get, their names in the target.
    `final`: those that are in the target and cannot be taken back any more. `failed`: those that could not be converted
    at the last attempt, with the reason.

    `prefix`: where the result is collected in an object store; empty in others. `run`: of the last driver of the
    conversion. `made_target`: the conversion made the target, a directory on a mounted file system, so a rollback
    removes it.
    """

    state: str
    source: str
    target: str
    options: dict[str, Any]
    seglog: str = __version__
    published: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    prefix: str = ""
    run: str = ""
    made_target: bool = False

    @classmethod
    def read(cls, store: Store, target: str) -> "Journal | None":
        """The journal of the conversion into `target`; None if none is under way. Raises CorruptCheckpointError, and
        InvalidArgumentError if the workplace is a link."""
        path = _path(target)
        store.check_workplace(f"{target}{WORKPLACE_SUFFIX}")
        raw = store.read(path)
        if raw is None:
            return None

        def make(body: dict[str, Any]) -> "Journal":
            published, final = (
                tuple(judged(name, Shape.PARTITION, path, CorruptCheckpointError) for name in listed)
                for listed in (body["published"], body.get("final", ()))
            )
            failed = {judged(name, Shape.PARTITION, path, CorruptCheckpointError): str(what)
                      for name, what in body.get("failed", {}).items()}
            journal = cls(**members(body) | {"published": published, "final": final, "failed": failed})
            ConversionOptions.of_dict(journal.options)      # raises if they are invalid
            if journal.state not in _STATES:
                raise ValueError(f"unknown state {journal.state!r}")
            if not isinstance(journal.made_target, bool):
                raise ValueError(f"made_target is {journal.made_target!r}")
            if journal.prefix:
                judged(journal.prefix, Shape.VERSION, path, CorruptCheckpointError)
            return journal

        journal = parse_json(raw, _KIND, VERSION, path, make, oldest=1)
        # Rollback and removal find files by this path.
        if journal.target != target:
            raise CorruptCheckpointError(
                f"the journal belongs to a conversion into {journal.target}", file=path,
                hint="name the target exactly as for the conversion",
            )
        return journal

    def to_bytes(self) -> bytes:
        final: dict[str, Any] = {"final": self.final} if self.final else {}
        return format_json(
            _KIND, VERSION, state=self.state, source=self.source, target=self.target, options=self.options,
            seglog=self.seglog, published=self.published, failed=self.failed, prefix=self.prefix, run=self.run,
            made_target=self.made_target, **final,
        )

    def made_final(self, partitions: Iterable[str]) -> Self:
        """The journal once these published partitions cannot be taken back any more. It is not written."""
        final = {*self.final, *partitions}
        published = tuple(name for name in self.published if name not in final)
        return replace(self, published=published, final=tuple(sorted(final)))

    def write(self, store: Store) -> None:
        """Write it as the journal of its target."""
        store.write(_path(self.target), self.to_bytes())

    def now(self, store: Store, state: str, published: tuple[str, ...] | None = None) -> Self:
        """Write the journal with another state, and return it."""
        journal = replace(self, state=state, published=self.published if published is None else published)
        journal.write(store)
        return journal

    @classmethod
    def read_ours(cls, store: Store, target: str, run: str) -> "Journal":
        """The journal of the conversion that the driver `run` has begun or taken up.

        Raises LogLockedError if another one has taken it over, or has ended it, while the target was not locked: a
        remote store has no lock.
        """
        journal = cls.read(store, target)
        if journal is None or journal.run != run:
            raise LogLockedError(
                f"another run has {'ended' if journal is None else 'taken over'} this conversion", file=_path(target),
                hint="wait until that one ends; run only one at a time",
            )
        return journal

    def check_same(self, source: str, options: ConversionOptions) -> None:
        """Raises InvalidArgumentError if another conversion is under way."""
        if self.state in (ROLLING_BACK, FINALIZING):
            word = "--rollback" if self.state == ROLLING_BACK else "--finalize"
            raise InvalidArgumentError(
                f"a conversion into this target is unfinished; its state is: {self.state}", file=_path(self.target),
                hint=f"complete it with {word}",
            )
        if self.source != source or not options.go_on_with(ConversionOptions.of_dict(self.options)):
            raise InvalidArgumentError(
                f"another conversion into this target is under way: from {self.source}, with options"
                f" {_differing(self.options, options.to_dict())}", file=_path(self.target),
                hint="pass the same source and options to continue it, undo it with --rollback, or keep its result "
                "with --finalize",
            )


def _path(target: str) -> str:
    return f"{target}{WORKPLACE_SUFFIX}/{JOURNAL_FILE}"


def _differing(before: dict[str, Any], now: dict[str, Any]) -> str:
    found = [f"{key}={before.get(key)}" for key in now if before.get(key) != now[key]]
    return ", ".join(found) or "that are the same"
