"""The partitions of a command line, one by one: if one cannot be read, it is reported and the others are still read."""
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import click

from seglog.errors import CompactedTopicError, InvalidRecordError, NotALogError, SeglogError, UnknownPolicyError
from seglog.format import names
from seglog.format.directory_kinds import SEE_LEDGERS, is_of_ledgers

from . import report
from .targets import Place, resolve

# A wrong setting is wrong for all of them; but one that is missing may be told for the others, and not all are
# compacted, or have records without a key.
_OF_ONE_PLACE = (UnknownPolicyError, CompactedTopicError, InvalidRecordError)


class EachPlace:
    """`for place in places: with places.reading(place): ...`, then `places.status(found=...)`.

    With a single place, an error ends the command, as elsewhere. With several, it is shown on stderr and as a JSON line
    `error`, and the next place follows. A partition that was removed meanwhile is skipped.
    """

    def __init__(
        self, paths: Iterable[Path | str], *, as_json: bool, marked: bool = False,
        store_options: Mapping[str, str] | None = None, topics: Sequence[str] = (),
    ) -> None:
        """`marked`: in a log dir, also partitions that a broker has marked; see `resolve`. `store_options`: of the
        stores of backups. `topics`: patterns; only partitions of topics that match one."""
        self._under: dict[Path | str, Sequence[Place]] = {
            path: _places_under(path, store_options or {}, marked=marked) for path in paths
        }
        if topics:
            self._under = {path: of_topics(places, topics) for path, places in self._under.items()}
            if self._under and not any(self._under.values()):
                first, is_one = next(iter(self._under)), names.parse_partition_dir(topics[0]) is not None
                raise NotALogError(
                    f"no partition of a topic that matches {' or '.join(map(repr, topics))}", file=first,
                    hint=f"for one partition, pass its directory: {first}/{topics[0]}" if is_one
                    else "`seglog ls` lists what is here",
                )
        count = Counter(place.name for places in self._under.values() for place in places)
        self._under = {
            path: [replace(place, has_namesake=True) if count[place.name] > 1 else place for place in places]
            for path, places in self._under.items()
        }
        self._places: Sequence[Place] = [place for places in self._under.values() for place in places]
        self._as_json = as_json
        self.unread = 0
        self._progress: PlacesProgress | None = None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def under(self, path: Path | str) -> Sequence[Place]:
        """Return the places under one path."""
        return self._under[path]

    def progress(self, label: str, *, enabled: bool) -> "PlacesProgress":
        """Show one bar over all of them. An error wipes it."""
        self._progress = PlacesProgress(label, self._places, enabled=enabled)
        return self._progress

    @contextmanager
    def reading(self, place: Place, *, stops: type[SeglogError] | tuple[()] = ()) -> Iterator[None]:
        """`stops`: an error that concerns the other places as well, and ends the command."""
        try:
            yield
        except BrokenPipeError:
            raise
        except (SeglogError, OSError) as e:
            if self._progress is not None:
                self._progress.wipe()
            error = report.as_seglog_error(e)
            is_usage = error.exit_status == click.UsageError.exit_code and not isinstance(error, _OF_ONE_PLACE)
            if len(self._places) == 1 or is_usage or isinstance(error, stops):
                raise
            if place.is_gone():
                report.note(f"{place.name} was removed while the log dir was being read")
                return
            self.unread += 1
            report.show_error(error, click.get_current_context().command_path, as_json=self._as_json)

    def status(self, *, found: bool) -> int:
        """Return the exit status: 7 if something could not be read, otherwise 1 if there are findings."""
        return report.PARTIAL if self.unread else int(found)


def of_topics(places: Sequence[Place], topics: Sequence[str]) -> Sequence[Place]:
    """The places whose topics match one of the patterns."""
    found = ((place, place.topic_partition()) for place in places)
    return [place for place, where in found if where is not None and any(fnmatchcase(where[0], one) for one in topics)]


def _places_under(path: Path | str, store_options: Mapping[str, str], *, marked: bool) -> Sequence[Place]:
    if not os.path.exists(path):
        from .in_backup import places_in_backup  # half as long as a command takes to start

        found = places_in_backup(path, store_options)
        if found is not None:
            return found
    path = Path(path)
    places = resolve([path], marked=marked, unreadable=True)
    if is_of_ledgers(path):
        report.note(f"{path} holds entries of Pulsar: {SEE_LEDGERS}")
    return places


class PlacesProgress(report.Progress):
    """One progress bar over several places."""

    def __init__(self, label: str, places: Sequence[Place], *, enabled: bool) -> None:
        super().__init__(label, enabled=enabled)
        self._doing = label
        # Without a visible bar, do not list ten thousand segments for it.
        self._sizes = {place: place.log_bytes() for place in places} if self.is_shown else {}
        self.total_bytes = sum(self._sizes.values())

    def of(self, place: Place) -> Callable[[int, int], None]:
        """Return the callback for this place's part; call it with (done, total) of the place."""
        return self.part(f"{self._doing} {place.name}", self._sizes.get(place, 0))
