"""What a broker's retention would delete at its next start: `seglog verify` and `recover` warn of it.

Segments of a disk that was off for a while are older than retention.ms, and a broker that starts on it deletes them
within log.retention.check.interval.ms (LogManager.cleanupLogs).
"""
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from seglog.errors import SeglogError
from seglog.fs.lock import is_locked
from seglog.upkeep.retain import retain

from . import report
from .targets import Place
from .topic_config import POLICY, RETENTION, TopicConfig

# Partitions that are shown.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class DueDeletion:
    """What would go of one partition. `settings`: the limits that say so."""

    partition: str
    segments: int
    size_bytes: int
    settings: str

    def fields(self) -> dict[str, int]:
        return {"segments": self.segments, "bytes": self.size_bytes}


class StartRetention:
    """For the partitions of a command line. `settings`: those of --config."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._config = TopicConfig(((key, str(value)) for key, value in settings.items()), RETENTION)
        self.found: list[DueDeletion] = []

    def see(self, place: Place) -> DueDeletion | None:
        """None if nothing would go, if the policy of its topic is not known, and for a log dir that is in use."""
        directory = place.directory
        if place.only is not None or not directory.is_dir() or is_locked(Path(directory).resolve().parent):
            return None
        try:
            settings, _ = self._config.of_page(directory)
            policy = self._config.known_policy(directory)
            limits = {key: value for key, value in settings.items() if key in ("retention.ms", "retention.bytes")}
            if policy is None or "delete" not in policy or not limits:
                return None
            retained = [
                one.retained for one in retain([directory], config={**settings, POLICY: policy}, dry_run=True)
            ]
        except (SeglogError, OSError):
            return None         # what cannot be read is the matter of the command
        segments = sum(len(one.expired) for one in retained)
        if not segments:
            return None
        deletion = DueDeletion(
            place.name, segments, sum(one.deleted_bytes for one in retained),
            ", ".join(f"{key}={value}" for key, value in limits.items()),
        )
        self.found.append(deletion)
        return deletion

    def show(self) -> None:
        """Print what would go, if anything."""
        for line in self._text():
            print(line)

    def _text(self) -> Iterable[str]:
        """A line for all, and one for each partition."""
        if not self.found:
            return
        segments, size = sum(one.segments for one in self.found), sum(one.size_bytes for one in self.found)
        yield (
            f"retention: a broker that starts on this now deletes {report.count_of(segments, 'segment')}, "
            f"{report.size(size)}, as too old or too much; read them before, or raise the limits of their topics"
        )
        for one in self.found[:_SHOWN]:
            of = report.count_of(one.segments, "segment")
            yield report.printable(f"  {one.partition}: {of}, {report.size(one.size_bytes)} ({one.settings})")
        if len(self.found) > _SHOWN:
            more = report.count_of(len(self.found) - _SHOWN, "more partition")
            yield f"  and of {more}: --json lists all"
