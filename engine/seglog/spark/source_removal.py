"""Removes the source of partitions whose result is final: published, synced, and read again in full.

A partition directory is renamed as Kafka renames a deleted one, in one step, and then its files go. So at every moment
each partition is whole in the source or final in the target, and a broker that starts on either log dir serves only
whole partitions.
"""
import os
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Any

from seglog._kernels.columns import ArenaPool
from seglog.conversion.proof import Proof, SegmentProof, digest, views
from seglog.conversion.segment import check_indexes
from seglog.errors import CorruptCheckpointError, InvalidArgumentError, SeglogError
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.format.dialect import dialect_of
from seglog.segment.segment import Segment
from seglog.spark.plan import segments_of
from seglog.spark.segment_task import Failure, of_the_partition
from seglog.spark.target import Target, merge_checkpoints, target_of
from seglog.spark.workplace import Workplace, changed
from seglog.stores.store import LocalStore, RenamingStore, Store


def check_options(store: Store, source: str, *, finalize_each: bool, verify: str, skip_active: bool) -> None:
    """Raises InvalidArgumentError if these options do not allow to remove the source."""
    if not finalize_each or verify != "full":
        raise InvalidArgumentError(
            "--remove-source needs --finalize-each and --verify full",
            hint="the source is removed only if the result stays, and all of it was read again",
        )
    if skip_active:
        raise InvalidArgumentError(
            "--remove-source with --skip-active would remove segments that are not converted",
            hint="leave out one of them",
        )
    if not isinstance(store, RenamingStore):
        raise InvalidArgumentError(
            "--remove-source: an object store cannot remove a partition in one step", file=source,
            hint="convert with --finalize-each, and delete the objects of the source afterwards",
        )


def check_place(workplace: Workplace, partition: str) -> None:
    """Raises InvalidArgumentError if removing the partition directory would not remove its files."""
    path = workplace.source_of(partition)
    if isinstance(workplace.source_store, LocalStore) and os.path.islink(path):
        raise InvalidArgumentError(
            "the partition is a symbolic link: --remove-source would remove only the link", file=path,
            hint="move the directory into the log dir, or convert this partition without --remove-source",
        )


def removal_store(workplace: Workplace) -> RenamingStore:
    """The source's store."""
    store = workplace.source_store
    assert isinstance(store, RenamingStore)         # check_options
    return store


def complete_removals(workplace: Workplace, partitions: Iterable[str]) -> None:
    """Complete what an interrupted run has begun: `partitions` are final, and the source of some is removed."""
    store = removal_store(workplace)
    store.remove_deleted(workplace.source)
    _forget_lines(workplace, [name for name in partitions if not store.exists(workplace.source_of(name))])


def remove_sources(workplace: Workplace, partitions: Iterable[str]) -> tuple[list[str], list[Failure]]:
    """Remove the source of partitions that are final. The log dirs of source and target are locked by the caller.

    Returns those whose source was removed, and why others stay. Raises StorageError.
    """
    store, goal = removal_store(workplace), target_of(workplace)
    removed, failures = [], []
    for partition in partitions:
        try:
            _check(workplace, goal, partition)
        except SeglogError as error:
            failures.append(Failure.of(partition, of_the_partition(workplace, error)))
            continue
        store.remove_partition(workplace.source_of(partition))
        removed.append(partition)
    _forget_lines(workplace, removed)
    return removed, failures


def _check(workplace: Workplace, goal: Target, partition: str) -> None:
    """Check that the target has the result of the source as it is now."""
    check_place(workplace, partition)
    path, proof = workplace.source_of(partition), _proof(goal, partition)
    segments = segments_of(workplace.source_store.files(path), path)
    if not goal.has_result(partition, [segment.file for segment in segments]):
        raise changed(path)
    there = {file.name for file in workplace.store.files(goal.place(partition))}
    missing = [name for segment in proof.segments for name in segment.target.files if name not in there]
    if missing:
        raise CorruptCheckpointError("a segment of the result is missing", file=f"{goal.place(partition)}/{missing[0]}")
    goal.check_unchanged([partition])


def _proof(goal: Target, partition: str) -> Proof:
    proof = goal.kept(partition)
    if proof is None:
        raise CorruptCheckpointError(
            "the target has no result of this conversion with a proof", file=goal.place(partition),
            hint="the source stays: find out what became of the result",
        )
    return proof


def _forget_lines(workplace: Workplace, partitions: list[str]) -> None:
    """Remove the lines of removed partitions from the checkpoints of the source. A broker ignores them."""
    gone = dict.fromkeys(names.OFFSET_CHECKPOINTS)
    merge_checkpoints(workplace.source_store, workplace.source, dict.fromkeys(partitions, gone))


# --- what an earlier run published -----------------------------------------------------------------


def verify_result(workplace: Workplace, number: int) -> dict[str, Any]:
    """Read the published segments of one task again, and compare them with the proof: an earlier run may have read only
    a sample. Returns the failures.
    """
    goal, failures = target_of(workplace), []
    for partition, first, stop in workplace.task(number).ranges:
        try:
            proof = _proof(goal, partition)
            sizes = {file.name: file.size_bytes for file in workplace.store.files(goal.place(partition))}
            for segment in proof.segments[first:stop]:
                _verify_segment(workplace, goal.place(partition), segment, sizes)
        except SeglogError as error:
            failures.append(asdict(Failure.of(partition, of_the_partition(workplace, error))))
    return {"failures": failures, "bytes_out": 0}


def _verify_segment(workplace: Workplace, directory: str, proven: SegmentProof, sizes: dict[str, int]) -> None:
    config, store = workplace.options.log_config, workplace.store
    decompress = decompressor(config.max_decompressed_message_bytes)
    with ExitStack() as closer:
        segments = []
        for name in proven.target.files:
            if name not in sizes:
                raise CorruptCheckpointError("a segment of the result is missing", file=f"{directory}/{name}")
            path = closer.enter_context(store.local(directory, name, sizes[name]))
            segments.append(closer.enter_context(closing(Segment(path, is_last=False, decompress=decompress))))
        view = views(workplace.options.profile, dialect_of(proven.source.files[0])).target
        SegmentProof(proven.source, digest(segments, ArenaPool(), view=view)).check(segments[0].path)
        for segment in segments:
            check_indexes(segment, config, lambda name: store.read(f"{directory}/{name}"))
