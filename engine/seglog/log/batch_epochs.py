"""The leader epochs that begin within batches that bring their own epochs: a replica's append, a mirror."""
from collections.abc import Callable

from seglog._kernels.batch_survey import first_of_later_epoch
from seglog.format.validate import Assigned


def begin_epochs_of(assigned: Assigned, begin: Callable[[int, int], None]) -> None:
    """Call `begin(-1, offset)` for the append itself, then `begin(epoch, offset)` for each epoch that begins in it."""
    table = assigned.table
    begin(-1, assigned.first_offset)
    slot = first_of_later_epoch(table, -1)
    while slot >= 0:        # no other batch is parsed: the base offset of a wrapper is inside it
        epoch = table[slot].leader_epoch
        begin(epoch, table[slot].base_offset)
        slot = first_of_later_epoch(table, epoch, slot)
