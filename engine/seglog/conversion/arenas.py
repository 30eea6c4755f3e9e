"""Memory for the columns of conversions and their proofs, reused by the whole process: fresh pages for each of several
thousand small segments took as long as the rest of their proof.
"""
from seglog._kernels.arena import ArenaPool

# One arena is kept for the next segment.
POOL = ArenaPool(max_idle_bytes=20 << 20)
