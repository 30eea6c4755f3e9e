"""`seglog demo`: the main task, done with the real commands on a partition that a real broker wrote.

Copies the sample that is shipped with the package (tools/sample/README.md), shows it, verifies it, seeks in it,
converts it to v2, verifies the result, and compares the two record by record, independently of the proof of
`convert`.
"""
import contextlib
import hashlib
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from seglog.errors import InvalidArgumentError
from seglog.fs.scratch import scratch_directory
from seglog.reading.partition import open_partition
from seglog.spark.java import find_java

from . import report
from .cli import Command, cli
from .options import PATH, json_option

# The setting of the sample's broker: the directory does not contain it.
_INTERVAL = "index.interval.bytes=256"
OLD, NEW = "old-log-dir/orders-0", "new-log-dir/orders-0"
ON_SPARK = "spark-log-dir/orders-0"
STEPS = (
    ("What is here: two segments, written while the message format changed from v0 to v1 to v2.",
     ["ls", OLD]),
    ("Some records, across the change from v0 to v1.",
     ["dump", OLD, "--from-offset", "38", "--to-offset", "46"]),
    ("Is it intact?",
     ["verify", OLD, "--config", _INTERVAL]),
    ("The first record at or after a time, and how it was found.",
     ["seek", OLD, "--time", "2023-11-14T22:16:20Z"]),
    ("Convert everything to v2, in a new directory. The old one is only read.",
     ["convert", OLD, NEW, "--config", _INTERVAL]),
    ("Is the result intact, and do its indexes match its log?",
     ["verify", NEW, "--config", _INTERVAL]),
    ("It is all v2 now. (Times come from batch headers; a v1 wrapper has only its latest.)",
     ["ls", NEW]),
)


SPARK_STEP = (
    "The same with Apache Spark, for whole topics: each task converts segments on any free core.",
    ["spark", "convert", "old-log-dir", "spark-log-dir", "--config", _INTERVAL, "--master", "local[1]"],
)


@click.command(cls=Command)
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--spark/--no-spark", default=None,
              help="Also convert it on Spark. By default if Java and PySpark are installed.")
@click.option("--sample", metavar="DIR", type=PATH,
              help="Only put the sample into the log dir DIR, as DIR/orders-0, for experiments of your own.")
@json_option
def command(directory: Path | None, spark: bool | None, sample: Path | None, as_json: bool) -> int:
    """Show, verify, seek and convert the sample that comes with seglog, with the real commands.

    Works in DIR, a new directory, and leaves it there; without DIR, in a temporary directory that it removes.
    """
    if sample is not None:
        if directory is not None or spark is not None:
            raise click.UsageError("--sample runs nothing: leave out the other arguments")
        with _workplace(sample) as log_dir:
            _copy_sample(log_dir / "orders-0")
        if as_json:
            report.print_json("sample", path=sample / "orders-0")
        else:
            print(report.printable(str(sample / "orders-0")))
        return 0
    with _workplace(directory) as workplace, contextlib.chdir(workplace):
        if not as_json:
            print(f"$ cd {workplace}")
        _copy_sample(Path(OLD))
        Path(NEW).parent.mkdir()
        if spark is None:
            spark = find_spec("pyspark") is not None and find_java() is not None
        for remark, arguments in (*STEPS, SPARK_STEP) if spark else STEPS:
            if as_json:
                report.print_json("command", directory=workplace, arguments=arguments, remark=remark)
            else:
                print(f"\n# {remark}\n{report.paint(f'$ seglog {shlex.join(arguments)}', 'bold')}", flush=True)
            status = cli([*arguments, *["--json"] * as_json], standalone_mode=False)
            sys.stdout.flush()
            if status:
                return int(status)
        status = _compare([OLD, NEW, *[ON_SPARK] * spark], as_json)
        if not spark and not as_json:
            print("Not shown: the conversion on Spark. `seglog doctor` says what it needs.")
        return status


def _copy_sample(target: Path) -> None:
    with as_file(files(__package__) / "sample") as source:
        shutil.copytree(source / "orders-0", target)


@contextlib.contextmanager
def _workplace(directory: Path | None) -> Iterator[Path]:
    if directory is None:
        with scratch_directory() as temporary:
            yield temporary
        return
    if directory.exists() and any(directory.iterdir()):
        raise InvalidArgumentError("the directory is not empty", file=directory, hint="pass a new one, or none")
    directory.mkdir(parents=True, exist_ok=True)
    yield directory


def _compare(paths: list[str], as_json: bool) -> int:
    """Read all sides record by record in Python, and report whether they are the same."""
    sides: list[dict[str, Any]] = []
    for path in paths:
        digest, count = hashlib.sha256(), 0
        with open_partition(path) as partition:
            for r in partition.read(control=True):
                digest.update(repr((r.offset, r.timestamp, r.key, r.value, r.headers)).encode())
                count += 1
            formats = sorted({f"v{batch.magic}" for batch in partition.batches()})
        sides.append({"path": path, "formats": formats, "records": count, "sha256": digest.hexdigest()})
    same = len({(side["records"], side["sha256"]) for side in sides}) == 1
    if as_json:
        report.print_json("comparison", same=same, sides=sides)
    else:
        print("\n# Did a record change? Read everything again: offset, timestamp, key, value, headers.")
        width = max(len(side["path"]) for side in sides)
        for side in sides:
            versions = ", ".join(side["formats"])
            print(f"{side['path']:{width}}  {versions:10}  {side['records']} records  sha256 {side['sha256']}")
        print("The same records: none was changed, lost or added." if same else "THE RECORDS DIFFER.")
    return 0 if same else 1
