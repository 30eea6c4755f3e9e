"""Shorter questions to a log."""


def offset_at(log, when):
    """The offset of the first record with timestamp >= `when`, or None."""
    found = log.offset_for_time(when)
    return None if found is None else found.offset
