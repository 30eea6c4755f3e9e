"""Proves a conversion again in plain Python: no kernel reads or computes the digest (format.plain_records).

The first proof (conversion.proof) reads both sides with the code that converted them. This one counts and hashes the
same canonical bytes of source and target with another reader, and must get the same numbers.
"""
from collections.abc import Callable, Iterator
from pathlib import Path

from seglog.conversion.proof import Proof, RecordsDigest
from seglog.errors import CorruptRecordError, ProofMismatchError
from seglog.format.conversion_profile import TO_TAGGED
from seglog.format.dialect import dialect_of
from seglog.format.plain_codecs import Malformed
from seglog.format.plain_records import ABORT, PlainBatch, PlainDigest, read_batches
from seglog.format.plain_tagged import read_tagged
from seglog.fs.refusals import refusals


def prove_again(
    proof: Proof, source: Path, target: Path, *, drops_undecided: bool, every: int = 1,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> int:
    """Read every `every`th source segment again, always including the last, and its result. Return how many were read.

    `drops_undecided`: records of aborted and open transactions were left out of the target. `on_bytes` is called with
    the bytes read since the last call. Raises ProofMismatchError for the first segment that differs, MissingCodecError
    without the `witness` extra.
    """
    proven = 0
    left_out = _undecided(source, proof) if drops_undecided else set()
    has_tags = proof.to == TO_TAGGED or any(dialect_of(s.source.files[0]).is_tagged for s in proof.segments)
    is_whole = proof.to == 2 and not has_tags       # as in conversion.proof.views
    for slot, segment in enumerate(proof.segments):
        if slot % every and slot != len(proof.segments) - 1:
            continue
        proven += 1
        before = _digest(source, segment.source, proof.to, is_whole, left_out, on_bytes)
        after = _digest(target, segment.target, proof.to, is_whole, frozenset(), on_bytes)
        for side, again, directory in ((segment.source, before, source), (segment.target, after, target)):
            if (side.records, side.sha256) != (again.records, again.sha256):
                raise ProofMismatchError(
                    f"plain Python reads {again.records} records with digest {again.sha256[:16]}, but the kernels read"
                    f" {side.records} with {side.sha256[:16]}: one of the two is wrong",
                    file=directory / side.files[0],
                )
    return proven


def _digest(
    directory: Path, side: RecordsDigest, to: int, is_whole: bool,
    left_out: "frozenset[tuple[str, int]] | set[tuple[str, int]]", on_bytes: Callable[[int], None],
) -> PlainDigest:
    """Digest all the records in these files that the target's format can store."""
    digest = PlainDigest(with_time=to != 0, with_headers=is_whole)
    for name in side.files:
        for batch in _batches(directory / name):
            if (is_whole or not batch.is_control) and (name, batch.position) not in left_out:
                try:
                    digest.add(batch.records())
                except Malformed as e:
                    raise CorruptRecordError(str(e), file=directory / name, position=batch.position) from e
            on_bytes(len(batch.raw))
    return digest


def _batches(path: Path) -> Iterator[PlainBatch]:
    with refusals("read", path), open(path, "rb") as file:
        yield from read_tagged(file) if dialect_of(path).is_tagged else read_batches(file)


def _undecided(source: Path, proof: Proof) -> set[tuple[str, int]]:
    """Return (file, position) of the batches whose transaction was aborted or has no marker in the log."""
    left_out: set[tuple[str, int]] = set()
    open_transactions: dict[int, list[tuple[str, int]]] = {}
    for segment in proof.segments:
        for name in segment.source.files:
            for batch in _batches(source / name):
                if not batch.is_transactional:
                    continue
                if not batch.is_control:
                    open_transactions.setdefault(batch.producer_id, []).append((name, batch.position))
                    continue
                decided = open_transactions.pop(batch.producer_id, [])
                if batch.marker == ABORT:
                    left_out.update(decided)
    return left_out.union(*open_transactions.values())
