"""Removes the records of some keys from a partition, and keeps all else: formats, codecs, batches and offsets.

It is a conversion (directory, in_place) whose profile erases: built aside, proven against the files, exchanged with the
partition in one step, and reversible. The proof reads the source without the records of these keys, which it finds by
comparing bytes; the code that writes the result finds them by a hash (BatchFilter).
"""
from collections.abc import Iterable, Mapping

from seglog.config import LogConfig
from seglog.conversion.directory import AnyPath, Options, plan_from_options
from seglog.conversion.in_place import plan_in_place
from seglog.conversion.plan import OneProgress, Plan, Progress, Result
from seglog.errors import InvalidArgumentError
from seglog.fs.files import FileSystem
from seglog.reading.arguments import checked_path


def erase(
    src: AnyPath,
    keys: Iterable[bytes | str],
    backup: AnyPath,
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> Result:
    """Erase the records with these keys from the partition directory `src`, in place.

    `backup`: a directory beside the log dir that keeps the old partition directory under its name, erased records
    included, until you remove it. All other records keep offset, timestamp, key, value and headers; a v2 batch that
    loses all its records stays as an empty batch. Repeat it for each replica of the partition.
    `result.plan.losses.erased_records` counts the erased records. `progress(done, total)` is called with bytes of work.

    Raises what seglog.convert and conversion.in_place.plan_in_place raise; InvalidArgumentError without a key, and if
    the last records of a log in format v0 or v1, or of a tagged log, would be erased.
    """
    both = OneProgress(progress)
    plan = plan_erasure(src, keys, checked_path(backup), config=config, progress=both.of_plan, fs=fs)
    return plan.run(both.of_run)


def plan_erasure(
    src: AnyPath,
    keys: Iterable[bytes | str],
    backup: AnyPath | None = None,
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> Plan:
    """Plan what `seglog.erase` would do with the same arguments, and change nothing; `plan.run()` carries it out.

    `plan.losses.erased_records` counts the records; `plan.changes_nothing` is true if there are none. Without `backup`
    it is a dry run, which cannot be carried out. Raises as `seglog.erase`.
    """
    options = erasing(keys, config)
    if backup is None:
        return plan_from_options(src, None, options, progress=progress, fs=fs)
    return plan_in_place(src, backup, options, progress=progress, fs=fs)


def erasing(keys: Iterable[bytes | str], config: Mapping[str, object] | LogConfig | None = None) -> Options:
    """Make the options of a conversion that only erases. Raises InvalidArgumentError."""
    if isinstance(keys, bytes | bytearray | memoryview | str):
        raise InvalidArgumentError(f"keys must be a list of keys, not {keys!r}", hint="erase(src, [key])")
    found = [key.encode() if isinstance(key, str) else key for key in keys]
    for key in found:
        if not isinstance(key, bytes):
            raise InvalidArgumentError(f"a key must be bytes or str, not {key!r}")
    if not found:
        raise InvalidArgumentError("there is no key to erase")
    return Options(config=config, erased=tuple(sorted(set(found))))
