"""What is open is not copied: closing the copy would close the original."""
import copy
import pickle

import pytest

import seglog
from seglog.errors import InvalidArgumentError
from seglog.fs.handles import PathHandle


@pytest.fixture(params=["log", "log dir", "partition", "managed ledger", "ledger", "delayed delivery"])
def handle(request, tmp_path):
    with seglog.open(tmp_path / "data" / "orders-0") as log:
        log.append(b"value")
        if request.param == "log":
            yield log, lambda: log.append(b"value")
            return
    match request.param:
        case "log dir":
            with seglog.open_dir(tmp_path / "data") as log_dir:
                yield log_dir, lambda: log_dir.log("orders").append(b"value")
        case "partition":
            with seglog.open_partition(tmp_path / "data" / "orders-0") as partition:
                yield partition, lambda: list(partition.read())
        case "managed ledger":
            with seglog.ManagedLedger(tmp_path / "topic") as topic:
                yield topic, topic.flush
        case "ledger":
            with seglog.Ledger.create(tmp_path / "ledger", 1) as ledger:
                yield ledger, lambda: ledger.add(b"entry")
        case "delayed delivery":
            with seglog.ManagedLedger(tmp_path / "topic") as topic, seglog.DelayedDelivery(topic) as delivery:
                yield delivery, topic.flush


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_open_handle_is_not_copied_and_goes_on(handle, copied):
    original, use = handle
    if copied is pickle.dumps and isinstance(original, PathHandle):
        with pickle.loads(copied(original)) as loaded:      # a reader of the path: tests/log/test_partition.py
            assert isinstance(loaded, seglog.Partition)
        use()
        return
    with pytest.raises(InvalidArgumentError, match="open handle"):
        copied(original)
    use()
