"""`python -m benches`: measures seglog beside its peers, in one run.

    python -m benches [--quick] [--all] [--java] [--only TEXT] [--records N] [--repetitions N] [--json FILE]

Without options it takes a few minutes on a quiet machine. docs/benchmarks.md shows one such run, and benches/README.md
says what the cases measure and what their goals are.
"""
import argparse
import sys
import tempfile
from pathlib import Path

from benches import (
    appending,
    backup,
    compaction,
    converting,
    delayed,
    delayed_scale,
    dumping,
    encoding,
    event_loop,
    following,
    format_versions,
    growth,
    index_memory,
    ledgers,
    log_compaction,
    looking_up,
    memory,
    opening,
    queue,
    queue_waiting,
    reading,
    serving,
    tables,
    typed_tables,
    validating,
)
from benches.runner import Bench

QUICK = {"records": 100_000, "repetitions": 2}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, two rounds: about a minute")
    parser.add_argument("--all", action="store_true", help="also memory, and costs at growing sizes: about an hour")
    parser.add_argument("--java", action="store_true", help="also beside Kafka's own classes: needs Java 17 and Maven")
    parser.add_argument("--only", default="", help="cases whose name holds this, those of --all among them")
    parser.add_argument("--records", type=int, default=1_000_000, help="in the uncompressed segments")
    parser.add_argument("--keys", type=int, help="of the log whose compaction's memory is measured; as many as records")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", help="write the run to this file: the machine, and every figure")
    options = parser.parse_args()
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args()
    bench = Bench(options.repetitions, options.only)
    with tempfile.TemporaryDirectory() as directory:
        peers_of(bench, Path(directory), options.records, with_java=options.java)
        if options.all or options.only:
            sizes_of(bench, Path(directory), options.records, options.keys or options.records)
    if options.json:
        bench.write_json(options.json)
    short = [r.case for r in bench.results if r.verdict == "SHORT"]
    print(f"\n{len(bench.results)} figures, {len(short)} short of their goal", *short, sep="\n  ")
    return 0


def peers_of(bench: Bench, directory: Path, records: int, *, with_java: bool) -> None:
    """seglog beside what its users would take otherwise."""
    reading.run(bench, directory, records)
    converting.run(bench, records, with_java=with_java)
    encoding.run(bench, records)
    validating.run(bench, records)
    appending.run(bench, directory, records)
    following.run(bench, directory, records)
    event_loop.run(bench, directory, records)
    format_versions.run(bench, directory, records, with_java=with_java)
    looking_up.run(bench, directory, records)
    opening.run(bench, directory, records)
    backup.run(bench, directory, records)
    serving.run(bench, directory, records, with_java=with_java)
    ledgers.run(bench, directory, records)
    queue.run(bench, directory, records)
    queue_waiting.run(bench, directory, records)
    compaction.run(bench, directory, records, with_java=with_java)
    log_compaction.run(bench, directory, records, with_java=with_java)
    delayed.run(bench, records)
    tables.run(bench, directory, records)
    typed_tables.run(bench, directory, records)
    dumping.run(bench, directory, records, with_java=with_java)


def sizes_of(bench: Bench, directory: Path, records: int, keys: int) -> None:
    """What a unit of work costs beside ever more neighbours, and how much memory it takes."""
    growth.run(bench, directory, records)
    if sys.platform == "linux":
        index_memory.run(bench, directory, records)
        queue_waiting.run_delayed(bench, directory, records)
        delayed_scale.run(bench, directory / "delayed", records)
        memory.run(bench, directory, records * 1000)
        memory.run_keys(bench, directory, keys)


if __name__ == "__main__":
    sys.exit(main())
