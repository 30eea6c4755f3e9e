"""Memory for the columns of conversions and their proofs, used again by all of a process: fresh pages for each of some
thousand small segments took as long as the rest of their proof.
"""
from seglog._kernels.arena import ArenaPool

# One arena waits for the next segment.
POOL = ArenaPool(max_idle_bytes=20 << 20)
