"""A real HDFS on loopback, a namenode and two datanodes: tests/oracle/hadoop driven from Python."""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from support import kafka_oracle

SOURCES = Path(__file__).parents[2] / "oracle/hadoop"
CACHE = Path(os.environ.get("SEGLOG_ORACLE_CACHE", SOURCES.parents[2] / "build/oracle")) / "hadoop"


def lacking() -> str | None:
    """Why there is no HDFS here; None where there is."""
    reason = kafka_oracle.lacking()
    return reason and f"no HDFS: {reason}"


class HdfsServer:
    """Up when the block begins, gone when it ends. `options` are the store's."""

    def __init__(self, work: Path):
        self.work = work
        self.options = {"user": "root"}

    def __enter__(self):
        self.work.mkdir(parents=True, exist_ok=True)
        command = [
            "java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "--add-opens", "java.base/java.lang=ALL-UNNAMED", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp", f"{_classes()}:{_jars()}", "MiniHdfs", self.work / "disks",
        ]
        # Its superuser is who runs it.
        environment = {**os.environ, "HADOOP_USER_NAME": self.options["user"]}
        with open(self.work / "messages", "wb") as messages:
            self._jvm = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages, env=environment
            )
        ports = self._jvm.stdout.readline().split()
        assert ports, f"HDFS did not start: see {self.work}/messages"
        self.url = f"webhdfs://127.0.0.1:{int(ports[0])}"
        return self

    def __exit__(self, *_):
        self._jvm.stdin.close()
        self._jvm.stdout.close()
        self._jvm.wait()

    def forced_blocks(self) -> int:
        """How often datanodes have forced a block to their disk since the start."""
        return self._counter("FsyncCount")

    def bytes_read(self) -> int:
        """How many bytes of blocks datanodes have sent to readers since the start."""
        return self._counter("BytesRead")

    def _counter(self, name: str) -> int:
        """Of all datanodes together, as it is now."""
        self._jvm.stdin.write(f"{name}\n".encode())
        self._jvm.stdin.flush()
        return int(self._jvm.stdout.readline())


def _jars() -> str:
    """Fetched once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    listed = CACHE / "classpath"
    if not listed.exists() or not all(Path(jar).exists() for jar in listed.read_text().split(":")):
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
        options = [f"-Dmdep.outputFile={listed}", "-DincludeScope=runtime"]
        subprocess.run(["mvn", "-q", "-B", "-f", SOURCES / "pom.xml", goal, *options], check=True)
    return listed.read_text()


def _classes() -> Path:
    """Compiled where the source is newer."""
    jars, classes, source = _jars(), CACHE / "classes", SOURCES / "MiniHdfs.java"
    if not classes.exists() or source.stat().st_mtime > classes.stat().st_mtime:
        made = Path(tempfile.mkdtemp(dir=CACHE))
        subprocess.run(["javac", "-nowarn", "-Xlint:none", "-d", made, "-cp", jars, source], check=True)
        shutil.rmtree(classes, ignore_errors=True)
        made.rename(classes)
    return classes
