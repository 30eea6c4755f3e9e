"""Restores that meet a full disk at one step after another."""
import errno
import shutil

import pytest

import seglog
from seglog.errors import SeglogError
from seglog.fs.files import OsFileSystem
from support.faultfs import FailingFs


def restores_that_fail(store, top, name, check, *, every):
    """Restore a store, with a disk that is full from one step on, then again with room. Yields the directory of each
    second run. `name`: a part of the snapshot, which is there as a whole or not at all; `check(back)` compares it."""
    probe = FailingFs(OsFileSystem())
    seglog.restore(store, top / "probe", fs=probe)
    assert len(probe.calls) > every
    for step in range(0, len(probe.calls), every):
        back = top / f"back-{step}"
        failing = FailingFs(OsFileSystem(), fail_at=step, error=errno.ENOSPC, short=True)
        with pytest.raises(SeglogError):
            seglog.restore(store, back, fs=failing)
        if (back / name).exists():
            check(back)
        else:
            assert not (back / "meta.properties").exists()
        seglog.restore(store, back)
        check(back)
        assert [path for path in top.rglob("*") if "staging" in path.name] == []
        yield back
        shutil.rmtree(back)
