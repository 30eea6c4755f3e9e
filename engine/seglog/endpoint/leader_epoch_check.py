"""Comparison of a client's leader epoch with the log's."""
from seglog.log.log import Log
from seglog.wire.error_codes import Errors


def epoch_fault(log: Log, current_leader_epoch: int) -> Errors:
    """The error for a client whose leader epoch differs from the log's; -1: the client knows none. (KIP-320)"""
    if current_leader_epoch < 0 or current_leader_epoch == log.leader_epoch:
        return Errors.NONE
    return Errors.FENCED_LEADER_EPOCH if current_leader_epoch < log.leader_epoch else Errors.UNKNOWN_LEADER_EPOCH
