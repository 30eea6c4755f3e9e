"""`seglog mirror`: append batches of one partition to another, or to several, and open only those that must change."""
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from seglog.errors import SeglogError
from seglog.log.log import Log
from seglog.log.mirror import Mirrored, check_begin, mirror
from seglog.reading.partition import Partition

from . import report
from .cli import Command
from .options import PATH, SOURCE, NumberType, config_option, dry_run_option, json_option

_LOOK_S = 0.2
# Counts of the batches that needed more work, and their names in the output.
_COUNTS = {
    "opened_batches": "opened", "rebuilt_batches": "rebuilt", "left_out_batches": "empty, left out",
    "keyless_batches": "routed whole", "keyed_batches": "split by keys",
    "missing_offsets": "offsets missing in the source",
}


@click.command(cls=Command)
@click.argument("source", metavar="SRC", type=SOURCE)
@click.argument("targets", metavar="DST...", type=PATH, nargs=-1, required=True)
@click.option("--from-offset", metavar="OFFSET", type=NumberType(),
              help="Start at this offset: with the batch that holds it.")
@click.option("--new-offsets", is_flag=True, help="Append the batches at the end of DST, with new offsets.")
@click.option("--close-gaps", is_flag=True, help="Assign consecutive new offsets; batches with gaps are rebuilt.")
@click.option("--follow", is_flag=True, help="Keep running as the log grows, until ^C.")
@dry_run_option
@config_option
@json_option
def command(
    source: Path, targets: Sequence[Path], from_offset: int | None, new_offsets: bool, close_gaps: bool, follow: bool,
    dry_run: bool, settings: Sequence[tuple[str, str]], as_json: bool,
) -> int:
    """Append the batches of the partition SRC to the partition DST, which is created if it does not exist.

    Checks checksums, but decompresses nothing, except v0 wrappers that get other offsets. Without --new-offsets all
    offsets stay, and a run continues where DST ends. SRC may be written to meanwhile, even by a broker.

    Several DST are the partitions of a topic: batches with keys are split as Kafka's producers would split them, and
    batches without keys go round-robin, whole. Records then get new offsets.
    """
    are_new = {path: not path.exists() for path in targets}
    with Partition(source) as src:      # before a target is created
        own = {"seglog.message.dialect": src._dialect.name} if src._dialect.is_tagged else {}
        if from_offset is not None:
            check_begin(src, from_offset)
        if any(are_new.values()):
            for _ in src.tables(from_offset, src.log_end_offset):
                break       # the first batch is intact
    keeps_offsets = not new_offsets and not close_gaps and len(targets) == 1
    if dry_run:
        continues = keeps_offsets and from_offset is None and not are_new[targets[0]]
        return _show(source, targets[0] if continues else None, from_offset, as_json)
    logs: list[Log] = []
    with ExitStack() as opened:
        try:
            for target in targets:
                config = own | dict(settings) if are_new[target] else dict(settings)
                logs.append(opened.enter_context(Log(target, config=config, fsync="interval")))
            while True:
                with Partition(source) as src:
                    done = mirror(
                        src, logs if len(logs) > 1 else logs[0], from_offset=from_offset,
                        preserve_offsets=keeps_offsets, close_gaps=close_gaps,
                    )
                if done.batches or not follow:
                    _print(done, logs, as_json)
                if not follow:
                    return 0
                from_offset = None if keeps_offsets else done.next_offset
                time.sleep(_LOOK_S)
        except SeglogError as error:
            _name_empty(error, [log for log, target in zip(logs, targets, strict=False) if are_new[target]])
            raise


def _show(source: Path, continued: Path | None, from_offset: int | None, as_json: bool) -> int:
    """Count what would be appended, and return the status of a dry run. `continued`: where it would continue."""
    if continued is not None:
        with Partition(continued) as target:
            from_offset = target.log_end_offset
    with Partition(source) as src:
        tables = src.tables(from_offset, src.log_end_offset)
        sizes = [batch.size_bytes for _, table in tables for batch in table]
    if as_json:
        report.print_json(
            "summary", **report.dry_run_fields(True, bool(sizes), apply=False), batches=len(sizes),
            size_bytes=sum(sizes),
        )
    else:
        print(f"{report.count_of(len(sizes), 'batch', 'batches')}, {report.size(sum(sizes))}, would be appended")
        print(report.dry_run_text(bool(sizes), apply=False))
    return int(bool(sizes))


def _name_empty(error: SeglogError, made: Sequence[Log]) -> None:
    """Name in the hint the logs that this run has created and left empty."""
    empty = [str(log.path) for log in made if log.log_end_offset == log.log_start_offset]
    if empty:
        error.hint = f"{error.hint}; created and still empty: {', '.join(empty)}"


def _print(done: Mirrored, logs: Sequence[Log], as_json: bool) -> None:
    ends = [log.log_end_offset for log in logs]
    if as_json:
        report.print_json(
            "mirrored", batches=done.batches, size_bytes=done.size_bytes, next_offset=done.next_offset,
            **{name: getattr(done, name) for name in _COUNTS},
            **({"log_end_offset": ends[0]} if len(ends) == 1 else {"log_end_offsets": ends}),
        )
        sys.stdout.flush()      # with --follow, a pipe would buffer some KiB before it passes them on
        return
    counts = "".join(f", {getattr(done, name)} {words}" for name, words in _COUNTS.items() if getattr(done, name))
    click.echo(
        f"{done.batches} batches{counts}, {done.size_bytes} bytes; next offset of the source {done.next_offset}, "
        f"of the target{'s' if len(ends) > 1 else ''} {', '.join(map(str, ends))}"
    )
