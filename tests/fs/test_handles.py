"""What is open is not copied: closing the copy would close the original."""
import asyncio
import copy
import pickle

import pytest

import seglog
import seglog.aio
from seglog.errors import InvalidArgumentError
from seglog.fs.handles import PathHandle


@pytest.fixture(params=[
    "log", "log dir", "partition", "managed ledger", "ledger", "delayed delivery", "cursor", "producer",
])
def handle(request, tmp_path):
    with seglog.open(tmp_path / "data" / "orders-0") as log:
        log.append(b"value")
        if request.param == "log":
            yield log, lambda: log.append(b"value")
            return
        if request.param == "cursor":
            with log.cursor("mailer") as cursor:
                yield cursor, lambda: cursor.commit(1)
            return
        if request.param == "producer":
            with log.producer(7) as producer:
                yield producer, producer.begin
            return
    match request.param:
        case "log dir":
            with seglog.open_dir(tmp_path / "data") as log_dir:
                yield log_dir, lambda: log_dir.log("orders").append(b"value")
        case "partition":
            with seglog.open_partition(tmp_path / "data" / "orders-0") as partition:
                yield partition, lambda: list(partition.read())
        case "managed ledger":
            with seglog.pulsar.ManagedLedger(tmp_path / "topic") as topic:
                yield topic, topic.flush
        case "ledger":
            with seglog.pulsar.Ledger.create(tmp_path / "ledger", 1) as ledger:
                yield ledger, lambda: ledger.add(b"entry")
        case "delayed delivery":
            pulsar = seglog.pulsar
            with pulsar.ManagedLedger(tmp_path / "topic") as topic, pulsar.DelayedDelivery(topic) as delivery:
                yield delivery, topic.flush


COPIES = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])


@COPIES
def test_an_open_handle_is_not_copied_and_goes_on(handle, copied):
    original, use = handle
    if copied is pickle.dumps and isinstance(original, PathHandle):
        with pickle.loads(copied(original)) as loaded:      # a reader of the path: tests/reading/test_partition.py
            assert isinstance(loaded, seglog.Partition)
        use()
        return
    with pytest.raises(InvalidArgumentError, match="open handle"):
        copied(original)
    use()


@COPIES
def test_what_belongs_to_an_event_loop_is_not_copied(tmp_path, copied):
    """Pickling told of "a local object WeakSet", and a copy shared half of the original."""
    async def main():
        async with seglog.aio.open(tmp_path / "orders-0") as log:
            for original in (log, log.read(), log.follow()):
                with pytest.raises(InvalidArgumentError, match="open handle"):
                    copied(original)
            assert await log.append(b"value") == 0

    asyncio.run(main())
