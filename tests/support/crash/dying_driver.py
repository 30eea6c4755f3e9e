"""A driver of a conversion of topics that dies between two changes of the disk, and what is in a log dir then."""
import os

from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.state.clean_marks import CLEAN_MARK, PARTITION_MARK, PERIOD_FILE
from support.conversion import UnsyncedFs

MARKS = (CLEAN_MARK, PARTITION_MARK, PERIOD_FILE)


def by_cli(source, target, **options):
    """The same by `seglog convert`."""
    rows = list(convert_log_dir(source, target, Options(**options), fs=UnsyncedFs()))
    assert {row.status for row in rows} == {"converted"}
    return content(target)


def content(log_dir):
    """{partition/file: bytes} of all that lies in a log dir, but for locks, our marks and the paths in proofs."""
    found = {}
    for path in sorted(log_dir.rglob("*")):
        if path.name == PROOF_FILE:
            proof = Proof.read(path)
            found[str(path.relative_to(log_dir))] = (proof.segments, proof.left_out, proof.to)
        elif path.is_file() and not path.name.endswith(".lock") and path.name not in MARKS:
            data = path.read_bytes()
            # In a checkpoint of a log dir the lines stand as the partitions came.
            found[str(path.relative_to(log_dir))] = data if path.parent != log_dir else sorted(data.splitlines())
    return found


class Died(BaseException):
    """kill -9: nothing runs any more, no cleaning up either."""


class MortalFs(UnsyncedFs):
    """Does `steps` changes of the disk; each one after that finds the process dead."""

    CHANGES = ("create", "rename", "replace", "exchange", "link", "unlink", "mkdir", "rmdir", "set_mtime")

    def __init__(self, steps):
        self.left = steps

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in MortalFs.CHANGES:
            return found

        def counted(*arguments, **more):
            self.left -= 1
            if self.left < 0:
                raise Died
            return found(*arguments, **more)

        return counted

    def __reduce__(self):
        # To a task: another process, which lives on.
        return UnsyncedFs, ()


def whole_or_absent(target, whole):
    """Each partition is there as a whole or not at all, and nothing that a broker does not know is."""
    if not target.exists():
        return
    for path in target.iterdir():
        if path.is_dir():
            found = {name: data for name, data in content(target).items() if name.startswith(f"{path.name}/")}
            assert found == {name: data for name, data in whole.items() if name.startswith(f"{path.name}/")}
            assert found


def steps_of_a_driver(work):
    """How many changes of the disk `work(fs)` makes."""
    fs = MortalFs(10**9)
    work(fs)
    return 10**9 - fs.left


def dies_in_wave(number, death=KeyboardInterrupt):
    """What the driver does to its tasks, if it dies in the conversion of this wave."""

    def run(job, task, run):
        if job == 3 * (number - 1):
            raise death
        return run()

    return run


def partitions_in(log_dir):
    """The names of its directories."""
    return sorted(path.name for path in log_dir.iterdir() if path.is_dir())


def damage(log_dir, partition):
    """Spoil a batch; call what is returned to mend it, so that the file looks unchanged."""
    log = sorted((log_dir / partition).glob("*.log"))[0]
    raw, status = log.read_bytes(), log.stat()
    log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert status.st_size == log.stat().st_size

    def mend():
        log.write_bytes(raw)
        os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))

    return mend
