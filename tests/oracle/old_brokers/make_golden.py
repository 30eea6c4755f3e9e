"""make_golden.py DIR [VERSION...]: have old brokers write directories, and read them by their own clients.

    DIR/VERSION/logs/          the log dir after a clean stop, whole
    DIR/VERSION/consumed/      what the version's own consumer read of each partition, a line a record (see Read)
    DIR/VERSION/committed/     the same with read_committed, where it knows that
    DIR/VERSION/killed/        partitions as kill -9 left them, and the log dir's recovery points
    DIR/VERSION/recovered/     the same after the broker had started again, recovered them and stopped: what it changed,
                               and in FILES the names of all that were there then
    DIR/VERSION/recovered-consumed/   what its consumer read in between

Records are synthetic; times, and where one batch ends, differ from run to run.
"""
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from support import plain_format as plain
from support.old_brokers import PATIENCE_S, VERSIONS, OldBroker, OldBrokerError, codecs, numbers

SEED = 20261122
RECORDS = 220
# Times of our own begin here, and go back and forth.
FIRST_MS = 1500000000000
GROWN_BYTES = 20_000


def topics_of(version: str) -> dict[str, dict[str, object]]:
    """{topic: its config}, of those that are stopped cleanly."""
    own = numbers(version)
    topics: dict[str, dict[str, object]] = {codec: {} for codec in codecs(version)}
    topics["compacted"] = {"cleanup.policy": "compact", "segment.bytes": 4096}
    if own < (2,):
        topics["scala"] = {}
    if own >= (0, 10):
        topics["append-time"] = {"message.timestamp.type": "LogAppendTime"}
        topics["switched"] = {"message.format.version": "0.9.0"}
    if own >= (0, 11):
        topics |= {"idempotent": {}, "transactions": {}}
    return topics


def killed_of(version: str) -> list[str]:
    return ["killed-none", "killed-gzip"] + (["killed-transactions"] if numbers(version) >= (0, 11) else [])


def write(broker: OldBroker) -> None:
    own = numbers(broker.version)
    headers = "h" if own >= (0, 11) else ""
    times = "t" if own >= (0, 10) else ""
    broker.create(topics_of(broker.version) | {name: {} for name in killed_of(broker.version)})
    jobs = [f"{codec},{codec},{RECORDS},k{headers}" + (f"{times},{FIRST_MS}" if codec in ("gzip", "lz4") else "")
            for codec in codecs(broker.version)]
    jobs += [f"compacted,{codec},150,K" for codec in ("none", "gzip", "snappy", "none")]
    if own >= (0, 10):
        jobs += [f"append-time,{codec},80,k" for codec in ("none", "gzip", "snappy")]
        jobs += [f"switched,{codec},40,k" for codec in ("none", "gzip", "snappy", "lz4")]
    if own >= (0, 11):
        jobs += [f"idempotent,snappy,{RECORDS},ki{headers}", f"transactions,lz4,{RECORDS},kx{headers}",
                 f"transactions,none,{RECORDS},kx{headers}"]
    broker.produce(SEED, jobs)
    if own < (2,):
        broker.produce(SEED, [f"scala,{codec},100" for codec in ("none", "gzip", "snappy")], by="ScalaProduce")
    # (zstd is for v2 alone: KIP-110.)
    for message_format, magic, known in (
        ("0.10.0", 1, ("gzip", "none", "lz4")), ("0.11.0", 2, codecs(broker.version))
    ):
        if own >= numbers(message_format):
            broker.alter(["switched"], f"message.format.version={message_format}")
            wait_for_format(broker, "switched", magic)
            broker.produce(SEED + 10 + len(known), [f"switched,{codec},40,k{times},{FIRST_MS}" for codec in known])
    broker.produce(SEED + 20, ["killed-gzip,gzip,200,k", "killed-none,snappy,100,k"])
    wait_for_cleaner(broker, "compacted")


def keep(target: Path, lines: dict[str, str]) -> None:
    target.mkdir(parents=True)
    for name, text in lines.items():
        (target / f"{name}.txt").write_text(text)


def copy_partitions(source: Path, target: Path, names: list[str]) -> None:
    for name in names:
        shutil.copytree(source / f"{name}-0", target / f"{name}-0")


def wait_until(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise OldBrokerError(problem)
        time.sleep(0.1)


def wait_for_format(broker: OldBroker, topic: str, magic: int) -> None:
    """Until the broker stores messages in the format: a change of the configuration is told to it by ZooKeeper, later.
    Each look costs a record."""
    def stored() -> int:
        broker.produce(SEED + 9, [f"{topic},none,1,k"])
        raw = b"".join(path.read_bytes() for path in sorted((broker.log_dir / f"{topic}-0").glob("*.log"))[-2:])
        *_, last = plain.split_batches(raw)
        return last[16]

    wait_until(lambda: stored() == magic, f"{topic} does not get format {magic}")


def wait_for_cleaner(broker: OldBroker, topic: str) -> None:
    """Until all segments but the active one are clean, and those that were replaced are gone: what consumers read
    after this is what the log dir holds at the end."""
    directory, checkpoint = broker.log_dir / f"{topic}-0", broker.log_dir / "cleaner-offset-checkpoint"

    def is_clean() -> bool:
        active = max(int(path.stem) for path in directory.glob("*.log"))
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        return f"{topic} 0 {active}" in lines and not list(directory.glob("*.deleted"))

    wait_until(is_clean, f"{topic} is not cleaned")


def wait_for_growth(broker: OldBroker, names: list[str]) -> None:
    """Until each of these topics grew by some hundred records since now: a slow machine's producers begin late."""
    def sizes() -> list[int]:
        return [sum(log.stat().st_size for log in (broker.log_dir / f"{name}-0").glob("*.log")) for name in names]

    before = sizes()
    wait_until(
        lambda: all(new >= old + GROWN_BYTES for new, old in zip(sizes(), before, strict=True)),
        f"{names} do not grow: {before}")


def forget_transactions(broker: OldBroker) -> None:
    """Let the coordinator begin with nothing. It would end, at its start, what was being committed or aborted when it
    was killed, and after a minute what was open: markers that stand behind what recovery left, and are none of it."""
    shutil.rmtree(broker.log_dir / "__transaction_state-0", ignore_errors=True)


def keep_changes(source: Path, before: Path, target: Path, names: list[str]) -> None:
    for name in names:
        (target / f"{name}-0").mkdir(parents=True)
        files = sorted((source / f"{name}-0").iterdir())
        (target / f"{name}-0/FILES").write_text("".join(f"{file.name}\n" for file in files))
        for file in files:
            old = before / f"{name}-0" / file.name
            if not old.exists() or old.read_bytes() != file.read_bytes():
                shutil.copy(file, target / f"{name}-0")


def make(version: str, target: Path, work: Path) -> None:
    killed = killed_of(version)
    with OldBroker(version, work) as broker:
        write(broker)
        keep(target / "consumed", broker.consume(f"{name}-0" for name in topics_of(version)))
        if "transactions" in topics_of(version):
            keep(target / "committed", broker.consume(["transactions-0"], "read_committed"))
        broker.stop()
        shutil.copytree(broker.log_dir, target / "logs", ignore=shutil.ignore_patterns("killed-*", "*-delete", ".lock"))
        broker.start()
        other, letters = ("killed-transactions", "kfx") if "killed-transactions" in killed else ("killed-gzip", "kf")
        jobs = "killed-none,none,0,kf", f"{other},gzip,0,{letters}"
        with broker.producing(SEED + 30, jobs[0]), broker.producing(SEED + 31, jobs[1]):
            wait_for_growth(broker, ["killed-none", other])
            broker.kill()
        copy_partitions(broker.log_dir, target / "killed", killed)
        shutil.copy(broker.log_dir / "recovery-point-offset-checkpoint", target / "killed")
        forget_transactions(broker)
        broker.start()
        keep(target / "recovered-consumed", broker.consume(f"{name}-0" for name in killed))
        broker.stop()
        keep_changes(broker.log_dir, target / "killed", target / "recovered", killed)


if __name__ == "__main__":
    root = Path(sys.argv[1]).absolute()
    for version in sys.argv[2:] or VERSIONS:
        began = time.monotonic()
        work = root / f"{version}.work"
        make(version, root / version, work)
        shutil.rmtree(work)
        print(version, f"{time.monotonic() - began:.0f} s", flush=True)
