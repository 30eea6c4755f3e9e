"""Real Kafka as a witness: tests/oracle/kafka driven from Python.

One call is one JVM, which costs about a second to start: ask about many directories at once. Answers come back keyed by
the paths that were given. Directories are never changed; what opens a log opens a copy.
"""
import base64
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.killed_logs import Kill

SCRIPTS = Path(__file__).parents[2] / "oracle/kafka"
VERSIONS = ("3.9.1", "4.1.1", "4.4.0")
# What kafka-dump-log calls the decoder of an internal topic.
INTERNAL = {
    "__consumer_offsets": "offsets", "__transaction_state": "transactions", "__cluster_metadata": "metadata",
    "__share_group_state": "share-group-state",
}


@cache
def lacking() -> str | None:
    """Why the oracle cannot run here; None where it can."""
    for program, purpose in (("java", "runs Kafka"), ("javac", "compiles the driver"), ("mvn", "fetches Kafka")):
        if shutil.which(program) is None:
            return f"there is no {program}, which {purpose}"
    told = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    version = re.search(r"javac (\d+)", told.stdout + told.stderr)
    if version is None or int(version[1]) < 17:
        return f"Java 17 or newer is needed, this is {(told.stdout + told.stderr).strip()}"
    return None


@cache
def fetch_tools(version: str) -> None:
    """Fetch the jars of Kafka's own tools, which takes a minute the first time: before a test waits with a limit."""
    subprocess.run([SCRIPTS / "tool.sh", version, "org.apache.kafka.tools.TopicCommand", "--version"],
                   stdout=subprocess.DEVNULL, check=True)


class OracleError(AssertionError):
    """The JVM ended in a way that is no answer."""


@dataclass
class Boot:
    """What a real broker and consumer made of partition directories, keyed by directory name."""

    records: dict[str, list[dict]]  # read_uncommitted, in the order of the consumer
    committed: dict[str, list[dict]]
    times: dict[str, list[dict]]  # offsetsForTimes
    partitions: dict[str, dict]  # begin and end offsets, record counts, errors, log_bytes_unchanged
    summary: dict  # directories found in the log dir at the end, seconds, consume_errors
    messages: str  # what Kafka logged


@dataclass
class Consumed:
    """What a consumer was given, with the field names of golden expected.jsonl, and the offsets it was told."""

    records: list[dict]
    begin: int
    end: int    # of committed records, the last stable offset


class Serving:
    """A broker, single node, that is started and stopped as often as wanted (Serve.java)."""

    def __init__(self, work: Path, jvm: subprocess.Popen[str]) -> None:
        self.log_dir = work / "data"
        self._work = work
        self._jvm = jvm

    def start(self) -> None:
        self._ask("start")

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens to clients."""
        properties = (self._work / "server.properties").read_text()
        host, port = re.search(r"^listeners=PLAINTEXT\\?://([\d.]+)\\?:(\d+)", properties, re.MULTILINE).groups()
        return host, int(port)

    def stop(self) -> None:
        self._ask("stop")

    def create(self, topic: str, config: Mapping[str, object], *, partitions: int = 1) -> None:
        self._ask("create", topic, partitions, *(f"{key}={value}" for key, value in config.items()))

    def produce(
        self, partition: str, first: int, count: int, ms: int, *, codec: str = "none",
        transaction: tuple[str, str] | None = None,
    ) -> int:
        """Records number `first` and on, of an idempotent producer. Returns the last one's offset.

        `transaction`: (transactional id, "commit", "abort" or "open").
        """
        return self._ask("produce", partition, first, count, ms, codec, *(transaction or ()))["last"]

    def consume(self, partition: str, isolation: str = "read_uncommitted") -> "Consumed":
        """What a consumer gets from the beginning to the end."""
        file = self._work / "consumed.jsonl"
        answer = self._ask("consume", partition, isolation, file)
        error = answer.get(f"{isolation}_error")
        if error:
            raise OracleError(f"{partition}: {error}")
        return Consumed(_read_lines(file), answer[f"{isolation}_begin"], answer[f"{isolation}_end"])

    def times(self, partition: str, timestamps: Iterable[int]) -> list[tuple[int, int] | None]:
        """offsetsForTimes: (offset, timestamp) of the first record as late as each, in log order."""
        return [found and tuple(found) for found in self._ask("times", partition, *timestamps)["times"]]

    def delete_records(self, partition: str, before: int) -> None:
        self._ask("delete", partition, before)

    def of_groups(self, command: str) -> None:
        """A command about groups, as Groups.java lists them: `commit GROUP PARTITION OFFSET`."""
        self._ask(*command.split(" "))

    def configure(self, kind: str, name: str, config: Mapping[str, object]) -> None:
        """Change settings of a topic or a broker; the name "default" stands for those of all brokers."""
        self._ask("configure", kind, name, *(f"{key}={value}" for key, value in config.items()))

    def delete_topic(self, topic: str) -> None:
        self._ask("delete-topic", topic)

    def topics(self) -> dict[str, dict]:
        """Of each topic its id, its partitions, and its settings as (value, source)."""
        return self._ask("topics")["topics"]

    def groups(self) -> dict[str, dict]:
        """Of each group its state, its members' instance ids, and offset and metadata of its partitions."""
        return self._ask("groups")["groups"]

    def _ask(self, *words: object) -> dict:
        self._jvm.stdin.write(" ".join(map(str, words)) + "\n")
        self._jvm.stdin.flush()
        line = self._jvm.stdout.readline()
        while line and not line.startswith("{"):        # StorageTool says something too
            line = self._jvm.stdout.readline()
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            messages = (self._work / "messages").read_text()[-4000:]
            raise OracleError(f"{' '.join(map(str, words[:2]))}: {answer['error']}\n{messages}")
        return answer


class KafkaOracle:
    """The classes of one Kafka version.

    A log is opened with the topic configuration of `case.json` beside its directory ({"config": {...}}, as golden cases
    have it), then of `config`; without either with Kafka's defaults.
    """

    def __init__(self, version: str) -> None:
        self.version = version

    def dump(self, dirs: Iterable[Path]) -> dict[Path, list[dict]]:
        """Every record, with the field names of golden expected.jsonl."""
        return self._sections("dump", dirs)

    def batches(self, dirs: Iterable[Path]) -> dict[Path, list[dict]]:
        """Every batch, with the field names of golden batches.jsonl."""
        return self._sections("batches", dirs)

    def index(self, dirs: Iterable[Path]) -> dict[Path, dict]:
        """Every index entry, aborted transactions, producer snapshots, leader epochs."""
        return self._lines("index", dirs)

    def lookups(self, dirs: Iterable[Path], config: Mapping[str, object] | None = None) -> dict[Path, dict]:
        """Answers of the opened log for a sample of offsets and times."""
        return self._lines("lookups", dirs, config)

    def check(self, dirs: Iterable[Path], config: Mapping[str, object] | None = None) -> dict[Path, dict]:
        """`clean` and `unclean`: what the real loader found after each kind of stop, and which files it changed."""
        return self._lines("check", dirs, config)

    def load(self, dirs: Iterable[Path]) -> dict[Path, dict]:
        """What the real log holds after it recovered a copy: `end`, `unchanged`, `records` (offset, timestamp, value).
        Kafka 2.8.2 can answer this, too."""
        dirs = list(dirs)
        answers = map(json.loads, self._java("Load", *map(str, dirs)).stdout.splitlines())
        return {
            path: {**found, "records": [(o, t, base64.b64decode(value)) for o, t, value in found["records"]]}
            for path, found in zip(dirs, answers, strict=True)
        }

    def index_check(self, dirs: Iterable[Path]) -> dict[Path, dict]:
        """`bad`: index entries by which a lookup could go wrong; `notes`: loose ones, as real Kafka writes them."""
        return self._lines("index-check", dirs, may_fail=True)

    def clean(self, cases: Path) -> None:
        """One round of the real cleaner for each case in this directory, `before/` and `meta.json`. It leaves `after-`
        and the version, and its answer among the results in `meta.json` (Pairs.java)."""
        self._java("Pairs", "clean-all", str(cases))

    def run(self, programs: Mapping[Path, str]) -> dict[Path, list[dict]]:
        """Run programs on logs of the real class (Program.java): the answers to their steps, by directory.

        A directory is made where it is missing, and is left as its program leaves it; the program stands beside it.
        """
        arguments = []
        for directory, program in programs.items():
            file = directory.with_suffix(".program")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(program)
            arguments += [str(directory), str(file)]
        return self._by_section(self._java("Program", *arguments), {str(d): d for d in programs})

    def open_and_close(self, directory: Path, copy: Path) -> None:
        """Let `copy` be what the real log makes of a directory when it is opened after a clean stop, and closed."""
        self._java("Pairs", "retain", str(directory), "0", "retention.ms=-1", f"out={copy}")

    def recover(self, dirs: Iterable[Path]) -> dict[Path, Path]:
        """Beside each directory what the real log makes of it when it is opened after a crash."""
        dirs = list(dirs)
        self._java("-Dkeep=1", "Oracle", "check-to", *map(str, dirs))
        return {directory: directory.parent / f"recovered-{self.version}" for directory in dirs}

    def recover_in_place(self, kills: Mapping[Path, Kill], work: Path) -> dict[Path, dict]:
        """Let the real log open directories as after a kill, and close: `start` and `end`, or why it `failed`.
        Kafka 2.8.2 can do this, too."""
        file = work / f"kills-{self.version}.txt"
        file.write_text("".join(f"{kill.line(directory)}\n" for directory, kill in kills.items()))
        answers = map(json.loads, self._java("Recover", str(file)).stdout.splitlines())
        return dict(zip(kills, answers, strict=True))

    def describe(self, dirs: Iterable[Path], config: Mapping[str, object] | None = None) -> None:
        """Write expected.jsonl, batches.jsonl, index.json and lookups.json beside each directory."""
        self._java("Oracle", "describe", *map(str, dirs), config=config)

    def validate(self, cases: Iterable[Iterable[object]], work: Path) -> list[dict]:
        """What the real LogValidator makes of encoded batches: `raw` (hex) with what it says of it, or `error`.

        A case: compression.type, message.timestamp.type, compacted, before and after max ms, max.message.bytes,
        AppendOrigin, now (ms), first offset, leader epoch, the bytes.
        """
        lines = [" ".join(field.hex() if isinstance(field, bytes) else str(field) for field in case) for case in cases]
        file = work / "cases.txt"
        file.write_text("".join(f"{line}\n" for line in lines))
        return [json.loads(line) for line in self._java("Validate", str(file)).stdout.splitlines()]

    def boot(self, dirs: Iterable[Path], work: Path, *, clean: bool = True, beside: Iterable[Path] = ()) -> Boot:
        """Put partition directories (`topic-0`) under a real broker, start it and read them with the real consumer.

        `clean=False` takes the mark of a clean shutdown away first, so that every log is recovered. `beside` are
        directories to find in the log dir as they are. `work` is deleted first; the log dir stays in `work/data`.
        """
        dirs = list(dirs)
        names = [path.name for path in dirs]
        if len(set(names)) != len(names):
            raise ValueError(f"directory names must differ: {sorted(names)}")
        extra = ["--beside", *map(str, beside)]
        done = self._java("Boot", str(work), "clean" if clean else "unclean", *map(str, dirs), *extra, may_fail=True)
        *partitions, summary = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")] or [{}]
        if "consume_errors" not in summary:
            raise OracleError(f"the broker of Kafka {self.version} did not come up:\n{done.stderr[-4000:]}")
        out = work / "out"
        return Boot(
            records={name: _read_lines(out / f"{name}.jsonl") for name in names},
            committed={name: _read_lines(out / f"{name}.committed.jsonl") for name in names},
            times={name: json.loads((out / f"{name}.times.json").read_text()) for name in names},
            partitions={partition["dir"]: partition for partition in partitions},
            summary=summary,
            messages=done.stderr,
        )

    def internal(self, topic: str, files: Iterable[Path]) -> dict[Path, dict[int, tuple[str | None, str | None]]]:
        """What kafka-dump-log says of the records of an internal topic: by offset, the text of key and payload."""
        files = list(files)
        name = INTERNAL[topic]
        tool = ["Internal", name, *map(str, files)]
        if self.version != "4.4.0":
            decoder = {"metadata": "cluster-metadata", "transactions": "transaction-log"}.get(name, name)
            tool = ["kafka.tools.DumpLogSegments", f"--{decoder}-decoder", "--files", ",".join(map(str, files))]
        answers: dict[Path, dict[int, tuple[str | None, str | None]]] = {}
        for line in self._java(*tool).stdout.splitlines():
            if line.startswith("Dumping "):
                rows = answers[Path(line.removeprefix("Dumping "))] = {}
            elif line.startswith("| offset: "):
                offset = int(line.split()[2])
                payload = line.rpartition(" payload: ") if " payload: " in line else ("", "", None)
                key = line.partition(" key: ")[2].partition(" payload: ")[0] or None
                if key or payload[2]:       # else a control record
                    rows[offset] = key, payload[2]
        return answers

    def error_codes(self) -> dict[str, int]:
        """The protocol's error codes by their names."""
        rows = (line.split() for line in self._java("ErrorCodes").stdout.splitlines())
        return {name: int(code) for name, code in rows}

    def definitions(self) -> dict[str, str]:
        """The release's definitions of messages, JSON with comments, by the name of the message."""
        return {name: text for (_, name), text in self.all_definitions().items()}

    def all_definitions(self) -> dict[tuple[str, str], str]:
        """The same by jar, such as kafka-metadata, and name. Of Kafka 3.3.2, too."""
        fetch = 'source "$0/settings.sh"; source "$0/fetch_classpath.sh"; fetch_classpath "$1" "$cache/$1.classpath" '
        subprocess.run(["bash", "-c", f"{fetch} kafka_2.13 kafka-clients", SCRIPTS, self.version], check=True)
        cache = Path(os.environ.get("SEGLOG_ORACLE_CACHE", SCRIPTS.parents[2] / "build/oracle/kafka"))
        found = {}
        for jar in (cache / f"{self.version}.classpath").read_text().strip().split(":"):
            with zipfile.ZipFile(jar) as files:
                for name in files.namelist():
                    if re.match(r"(common|message)/.*\.json|[A-Z][A-Za-z]+\.json", name):
                        jar_name = Path(jar).name.rpartition(f"-{self.version}")[0]
                        found[jar_name, Path(name).stem] = files.read(name).decode()
        return found

    @contextmanager
    def serving(self, work: Path, settings: Mapping[str, object] | None = None) -> Iterator["Serving"]:
        """A real broker on command, with its log dir in `work/data`; what is there already it takes up. `settings`: of
        the broker, beside those of Broker.java.

        It dies at the end of the block where it was not stopped.
        """
        work.mkdir(parents=True, exist_ok=True)
        with (
            open(work / "messages", "ab") as messages,
            subprocess.Popen(
                self._command(*(f"-Dbroker.{k}={v}" for k, v in (settings or {}).items()), "Serve", str(work)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages, text=True,
            ) as jvm,
        ):
            yield Serving(work, jvm)
            jvm.stdin.close()

    @contextmanager
    def lock_held(self, file: Path) -> Iterator[None]:
        """A JVM holds `file` as a broker holds the .lock of its log dir."""
        with subprocess.Popen(
            self._command("Lock", "hold", str(file)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            answer = holder.stdout.readline().strip()
            if answer != "locked":
                raise OracleError(f"the JVM was {answer or 'silent'} about {file}")
            yield
            holder.stdin.close()

    def try_lock(self, file: Path) -> bool:
        """Whether a JVM's tryLock on `file` succeeds; it lets go at once."""
        return self._java("Lock", "try", str(file)).stdout.strip() == "locked"

    def _command(self, *arguments: str) -> list[str]:
        return [str(SCRIPTS / "java.sh"), self.version, *arguments]

    def _java(
        self, *arguments: str, config: Mapping[str, object] | None = None, may_fail: bool = False
    ) -> subprocess.CompletedProcess[str]:
        properties = [f"-Dconfig.{key}={value}" for key, value in (config or {}).items()]
        done = subprocess.run(self._command(*properties, *arguments), capture_output=True, text=True, check=False)
        if done.returncode and not may_fail:
            raise OracleError(f"{' '.join(arguments[:2])} of Kafka {self.version} failed:\n{done.stderr[-4000:]}")
        return done

    def _lines(
        self, command: str, dirs: Iterable[Path], config: Mapping[str, object] | None = None, may_fail: bool = False
    ) -> dict[Path, dict]:
        """The answers of a command that prints one line per directory."""
        dirs = list(dirs)
        done = self._java("Oracle", command, *map(str, dirs), config=config, may_fail=may_fail)
        lines = done.stdout.splitlines()
        if len(lines) != len(dirs):
            raise OracleError(f"{len(lines)} answers about {len(dirs)} directories:\n{done.stderr[-4000:]}")
        return {path: json.loads(line) for path, line in zip(dirs, lines, strict=True)}

    def _sections(self, command: str, dirs: Iterable[Path]) -> dict[Path, list[dict]]:
        """The answers of a command that prints many lines per directory, opened by a line that names it."""
        given = {str(path.absolute()): path for path in dirs}
        return self._by_section(self._java("Oracle", command, *given), given)

    @staticmethod
    def _by_section(done: subprocess.CompletedProcess[str], given: Mapping[str, Path]) -> dict[Path, list[dict]]:
        answers: dict[Path, list[dict]] = {}
        for line in done.stdout.splitlines():
            row = json.loads(line)
            if row.keys() == {"dir"}:
                answers[given[row["dir"]]] = rows = []
            else:
                rows.append(row)
        return answers


def _read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
