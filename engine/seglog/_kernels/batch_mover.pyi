from seglog._kernels.segment_scan import BatchTable

def first_to_open(table: BatchTable, first: int = 0, *, close_holes: bool = False) -> int: ...
def moved(
    table: BatchTable,
    first: int,
    stop: int,
    *,
    next_offset: int = -1,
    previous: int = -1,
    leader_epoch: int = -1,
    log_append_time: int | None = None,
    close_holes: bool = False,
    opened_span: int = -1,
) -> tuple[BatchTable, int]: ...
def kept(table: BatchTable, first: int, stop: int) -> BatchTable: ...
def run_of(table: BatchTable) -> memoryview: ...
