"""`python -m benches`: measures every ratio of docs/benchmarks.md in one run.

    python -m benches [--records N] [--keys N] [--repetitions N] [--only TEXT] [--java] [--json FILE]

CI runs it with `--records 2000 --repetitions 1`, only to check that it works; for figures use the defaults.
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
    reading,
    serving,
    tables,
    validating,
)
from benches.runner import Bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches", description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="in the uncompressed segments")
    parser.add_argument("--keys", type=int, help="of the log whose compaction's memory is measured; as many as records")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--java", action="store_true", help="also beside Kafka's own classes: needs Java 17 and Maven")
    parser.add_argument("--json", help="write a line a result to this file")
    parser.add_argument("--markdown", help="write the table of docs/benchmarks.md to this file")
    options = parser.parse_args()
    bench = Bench(options.repetitions, options.only)
    with tempfile.TemporaryDirectory() as directory:
        reading.run(bench, Path(directory), options.records)
        converting.run(bench, options.records, with_java=options.java)
        encoding.run(bench, options.records)
        validating.run(bench, options.records)
        appending.run(bench, Path(directory), options.records)
        following.run(bench, Path(directory), options.records)
        event_loop.run(bench, Path(directory), options.records)
        format_versions.run(bench, Path(directory), options.records, with_java=options.java)
        looking_up.run(bench, Path(directory), options.records)
        opening.run(bench, Path(directory), options.records)
        backup.run(bench, Path(directory), options.records)
        serving.run(bench, Path(directory), options.records, with_java=options.java)
        ledgers.run(bench, Path(directory), options.records)
        compaction.run(bench, Path(directory), options.records, with_java=options.java)
        log_compaction.run(bench, Path(directory), options.records, with_java=options.java)
        delayed.run(bench, options.records)
        growth.run(bench, Path(directory), options.records)
        tables.run(bench, Path(directory), options.records)
        if sys.platform == "linux":
            index_memory.run(bench, Path(directory), options.records)
            delayed_scale.run(bench, Path(directory) / "delayed", options.records)
            memory.run(bench, Path(directory), options.records * 1000)
            memory.run_keys(bench, Path(directory), options.keys or options.records)
    if options.json:
        bench.write_json(options.json)
    if options.markdown:
        bench.write_markdown(options.markdown)
    short = [r.case for r in bench.results if r.verdict == "SHORT"]
    print(f"\n{len(bench.results)} figures, {len(short)} short of their goal", *short, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
