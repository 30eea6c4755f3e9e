"""The partitions of a command line, one by one: what cannot be read is told, and the others are read all the same."""
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from seglog.errors import SeglogError

from . import report
from .targets import Place, resolve


class EachPlace:
    """`for place in places: with places.reading(place): ...`, then `places.status(found=...)`.

    Of a single place an error ends the command, as elsewhere. Of several it is shown, on stderr and as a JSON line
    `error`, and the next place follows. A partition that was removed meanwhile is passed over.
    """

    def __init__(self, paths: Iterable[Path], *, as_json: bool) -> None:
        self._under: dict[Path, Sequence[Place]] = {path: resolve([path], unreadable=True) for path in paths}
        self._places: Sequence[Place] = [place for places in self._under.values() for place in places]
        self._as_json = as_json
        self.unread = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def under(self, path: Path) -> Sequence[Place]:
        """Those of one path."""
        return self._under[path]

    @contextmanager
    def reading(self, place: Place) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except (SeglogError, OSError) as e:
            error = report.as_seglog_error(e)
            # (A setting that is wrong is wrong for all of them.)
            if len(self._places) == 1 or error.exit_status == click.UsageError.exit_code:
                raise
            if place.in_log_dir and not os.path.lexists(place.directory):
                report.note(f"{place.name} was removed while the log dir was being read")
                return
            self.unread += 1
            report.show_error(error, click.get_current_context().command_path, as_json=self._as_json)

    def status(self, *, found: bool) -> int:
        """The exit status: 7 if something could not be read, else 1 for findings."""
        return report.PARTIAL if self.unread else int(found)
