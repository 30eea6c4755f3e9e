"""`seglog mirror`: batches of one partition into another, without opening them."""
import time
from collections.abc import Sequence
from pathlib import Path

import click

from seglog.log.log import Log
from seglog.log.mirror import Mirrored, check_begin, mirror
from seglog.log.partition import Partition

from . import report
from .cli import Command
from .options import PATH, config_option, json_option

_LOOK_S = 0.2


@click.command(cls=Command)
@click.argument("source", metavar="SRC", type=PATH)
@click.argument("target", metavar="DST", type=PATH)
@click.option("--from-offset", metavar="OFFSET", type=int, help="Begin with the batch that holds it.")
@click.option("--new-offsets", is_flag=True, help="Put the batches behind the end of DST, whatever offsets they had.")
@click.option("--follow", is_flag=True, help="Go on as SRC grows, until ^C.")
@config_option
@json_option
def command(
    source: Path, target: Path, from_offset: int | None, new_offsets: bool, follow: bool,
    settings: Sequence[tuple[str, str]], as_json: bool,
) -> int:
    """Append the batches of the partition SRC to the partition DST, which is made where it is not there.

    Checksums are checked, nothing is decompressed; only v0 wrappers that get other offsets have to be opened. Without
    --new-offsets all offsets stay, and a run goes on where DST ends. SRC may be written to meanwhile, also by a broker.
    """
    with Partition(source) as src:      # before the target is made
        if from_offset is not None:
            check_begin(src, from_offset)
    with Log(target, config=dict(settings), fsync="interval") as dst:
        while True:
            with Partition(source) as src:
                done = mirror(src, dst, from_offset=from_offset, preserve_offsets=not new_offsets)
            if done.batches or not follow:
                _print(done, dst, as_json)
            if not follow:
                return 0
            from_offset = done.next_offset if new_offsets else None
            time.sleep(_LOOK_S)


def _print(done: Mirrored, dst: Log, as_json: bool) -> None:
    if as_json:
        report.print_json(
            "mirrored", batches=done.batches, size_bytes=done.size_bytes, opened_batches=done.opened_batches,
            next_offset=done.next_offset, log_end_offset=dst.log_end_offset,
        )
        return
    opened = f", {done.opened_batches} of them opened" if done.opened_batches else ""
    click.echo(
        f"{done.batches} batches{opened}, {done.size_bytes} bytes; next offset of the source {done.next_offset}, "
        f"of the target {dst.log_end_offset}"
    )
