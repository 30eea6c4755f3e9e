"""Backups in a real S3 server behind a proxy that is a bad network: what a finished run said it had is there, whole."""
import os
import random
import shutil

import pytest

pytest.importorskip("pyarrow", reason="the extra [spark] is not installed")

import seglog
from seglog.errors import CorruptBackupError, InvalidArgumentError, LogLockedError, StorageError
from support.backed_log import files, fill
from support.faulty_s3 import FAULTS, FaultyS3, port_of

pytestmark = pytest.mark.spark

TURNS = 120 if os.environ.get("SEGLOG_TORTURE") else 12


def logs(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".snapshot")}


def test_a_bad_network_costs_runs_and_no_snapshot(s3, tmp_path):
    """Create, forget, prune, check and restore by turns; with a log, and a queue beside it."""
    from pyarrow import fs

    rng, has, outcomes = random.Random(11), {}, {"done": 0, "refused": 0}
    s3.bucket("faults")
    fs.S3FileSystem(**s3.options, allow_bucket_creation=True).create_dir("faults")
    with (
        FaultyS3(port_of(s3.options["endpoint_override"]), seed=5) as proxy,
        seglog.open(tmp_path / "data/orders-0", config={"segment.bytes": 3000}) as log,
    ):
        hurried = {"endpoint_override": proxy.endpoint, "retries": "2", "request_timeout": "1", "connect_timeout": "1"}
        backups = seglog.BackupStore("s3://faults/kafka", options={**s3.options, **hurried})
        sure = seglog.BackupStore("s3://faults/kafka", options=s3.options)

        def attempt(act, *given, **more):
            """What it returns; None if it was refused, with an error that tells what to do."""
            proxy.rate = rng.choice([0.02, 0.1, 0.3])
            try:
                done = act(*given, **more)
            except (StorageError, LogLockedError, InvalidArgumentError, CorruptBackupError):
                outcomes["refused"] += 1
                return None
            finally:
                proxy.rate = 0.0
            outcomes["done"] += 1
            return done

        for turn in range(TURNS):
            fill(log, rng.randrange(1, 30))
            with seglog.Queue(tmp_path / "data/jobs") as queue:
                queue.put(b"job %d" % turn)
            held = logs(tmp_path / "data/orders-0"), files(tmp_path / "data/jobs")
            run = attempt(backups.create, tmp_path / "data")
            if run is not None:
                assert run.snapshot.left_out == {}
                has[run.snapshot.id] = held
            if turn % 4 == 3:
                kept = [snapshot.id for snapshot in sure.forget(keep_last=4, dry_run=True).kept]
                attempt(backups.forget, keep_last=4)
                has = {one: there for one, there in has.items() if one in kept}
                attempt(backups.prune)
            there = {snapshot.id for snapshot in sure.snapshots()}
            assert has.keys() <= there, (turn, has.keys() - there)
            found = sure.check(read_data=turn % 10 == 9).findings
            assert not [finding for finding in found if finding.snapshots], (turn, found)
            if has and turn % 5 == 4:
                snapshot_id = rng.choice(list(has))
                back = tmp_path / "back"
                while attempt(backups.restore, back, snapshot=snapshot_id) is None:
                    pass        # run again, it goes on
                assert (logs(back / "orders-0"), files(back / "jobs")) == has[snapshot_id]
                shutil.rmtree(back)
        last = sure.create(tmp_path / "data").snapshot
        sure.forget(keep_last=3)
        sure.prune()
        check = sure.check(read_data=True)
        assert (check.findings, check.unused) == ([], 0)
        sure.restore(tmp_path / "back", snapshot=last.id)
        assert logs(tmp_path / "back/orders-0") == logs(tmp_path / "data/orders-0")
    assert outcomes["done"] > TURNS // 4
    assert proxy.counts.keys() <= set(FAULTS)
    assert len(proxy.counts) > 3
