"""Real Pulsar as a witness: tests/oracle/pulsar driven from Python. One call is one JVM."""
import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from support.kafka_oracle import OracleError

SOURCES = Path(__file__).parents[2] / "oracle/pulsar"
CACHE = Path(os.environ.get("SEGLOG_ORACLE_CACHE", SOURCES.parents[2] / "build/oracle")) / "pulsar"
JVM = [
    "java", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", f"-Dlog4j2.configurationFile={SOURCES / 'log4j2.xml'}",
    "--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
]
LEDGER = 50_000     # messages of a ledger, in timings


def write_stream(path, entries):
    """Entries as the oracle reads them: (size uint32, bytes)*."""
    path.write_bytes(b"".join(struct.pack(">I", len(entry)) + entry for entry in entries))


class PulsarOracle:
    """The real classes of Pulsar 4.2.4."""

    def __init__(self):
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)        # two test workers may be first at the same time
            self._classpath = f"{self._classes()}:{self._jars()}"

    @staticmethod
    def _jars():
        """The jars of pulsar-broker, fetched once."""
        listed = CACHE / "classpath"
        if not listed.exists() or not all(Path(jar).exists() for jar in listed.read_text().split(":")):
            goal = ["dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
            subprocess.run(["mvn", "-q", "-B", "-f", SOURCES / "pom.xml", *goal], check=True)
        return listed.read_text()

    def _classes(self):
        """The driver, compiled where a source is newer."""
        classes, sources = CACHE / "classes", sorted(SOURCES.rglob("*.java"))
        if not classes.exists() or any(source.stat().st_mtime > classes.stat().st_mtime for source in sources):
            made = Path(tempfile.mkdtemp(dir=CACHE))
            subprocess.run(["javac", "-nowarn", "-Xlint:none", "-d", made, "-cp", self._jars(), *sources], check=True)
            shutil.rmtree(classes, ignore_errors=True)
            made.rename(classes)
        return classes

    def _java(self, *arguments):
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            command = [*JVM, f"-Djava.io.tmpdir={scratch}", "-cp", self._classpath, *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OracleError(f"{' '.join(map(str, arguments))}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def entries(self, file):
        """What the real classes say of each entry of a stream, a dict each, with the fields of entries.jsonl."""
        return [json.loads(line) for line in self._java("PulsarOracle", "entries", file).splitlines()]

    def compacted(self, file):
        """The same of the records of a compacted ledger, with `extract`, the live messages of a batch: [ledger, entry,
        number, key, size], and `last_position_if_last`, getLastMessagePosition() if the record were the last."""
        return [json.loads(line) for line in self._java("PulsarOracle", "compacted", file).splitlines()]

    def compact(self, file, out, *, retain, runs=1):
        """The real compactor over records of a topic, into the stream `out`: a dict a run, with its `cpu_s`."""
        told = self._java("PulsarOracle", "compact", file, out, str(retain).lower(), runs)
        return [json.loads(line) for line in told.splitlines()]

    def recover(self, now_ms, snapshots, *, strict=True, tick_ms=1000):
        """The real tracker recovers `snapshots` {(start, end): file} and drains: what it recovered, and
        [(now, [[ledger, entry], ...]), ...] of its polls, each at the time that it said was the next."""
        files = [f"{start}_{end}={file}" for (start, end), file in snapshots.items()]
        lines = self._java("PulsarOracle", "recover", now_ms, tick_ms, str(strict).lower(), *files).splitlines()
        recovered, *polls = map(json.loads, lines)
        return recovered, [(poll["now"], poll["ret"]) for poll in polls]

    def replay(self, operations, directory):
        """The real tracker's answers to `operations`, the configuration first; what it wrote is in `directory`."""
        file = directory / "ops.jsonl"
        file.write_text("".join(json.dumps(step) + "\n" for step in operations))
        self._java("PulsarOracle", "replay", file, directory)
        return [json.loads(line) for line in (directory / "replayed/ops.jsonl").read_text().splitlines()]

    def timing(self, kind, delays, count):
        """Messages added and scheduled a second of CPU time, and added a second on the clock: its best runs."""
        told = self._java("org.apache.pulsar.broker.delayed.bucket.BucketGolden", "time", kind, delays, count)
        added = [float(n) for n in re.findall(r"add [\d.]+ s = (\d+) msg/s", told)]
        scheduled = [float(n) for n in re.findall(r"getScheduledMessages\(1000\) [\d.]+ s = (\d+) msg/s", told)]
        on_the_clock = [float(n) for n in re.findall(r"on the clock (\d+) msg/s", told)]
        return max(added), max(scheduled), max(on_the_clock)

    def recovery_timing(self, delays, count):
        """Seconds of CPU time of recoveries of so many messages, one after the other in one JVM."""
        arguments = ["time", "bucket", delays, count, LEDGER, "recover"]
        told = self._java("org.apache.pulsar.broker.delayed.bucket.BucketGolden", *arguments)
        return [float(n) for n in re.findall(r"recovery: ([\d.]+) s", told)]
