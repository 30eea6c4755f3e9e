"""A queue, or a log, that several processes have open: the first owns it, the others attach to that one by a socket."""
