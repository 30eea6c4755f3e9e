"""A directory holds one thing: what writes a log, a log dir, a managed ledger or a queue refuses one of another kind,
and writes nothing there."""
import re

import pytest

import seglog
from seglog.errors import NotALogError
from seglog.pulsar import ManagedLedger, MessageMetadata, build_entry


@pytest.fixture
def there(tmp_path):
    """One directory of each kind, each in a directory of its own."""
    with seglog.open(tmp_path / "data/orders-0") as log:
        log.append(b"a")
    with seglog.Queue(tmp_path / "queues/jobs-0") as jobs:
        jobs.put(b"x")
    with ManagedLedger(tmp_path / "topics/orders-0") as topic:
        topic.add_entry(entry())
    (tmp_path / "tagged").mkdir()
    with seglog.open(tmp_path / "tagged/orders-0", config={"seglog.message.dialect": "tagged"}) as log:
        log.append(b"a")
    return tmp_path


def entry():
    return build_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x")


def all_files(top):
    return {path: path.read_bytes() if path.is_file() else None for path in top.rglob("*")}


FOR_LEDGERS = [seglog.Queue, lambda path: seglog.Queue(path, recover=True), ManagedLedger]
FOR_LOGS = [seglog.open, lambda path: seglog.open(path, create=False)]


@pytest.mark.parametrize(("opening", "path", "found"), [
    *((opening, path, found) for opening in FOR_LEDGERS for path, found in (
        ("data/orders-0", "a partition directory"), ("tagged/orders-0", "a partition directory"),
        ("data", "a log dir"), ("queues/jobs-0/ledger-0", "a ledger"), ("topics/orders-0/ledger-0", "a ledger"),
    )),
    *((opening, path, found) for opening in FOR_LOGS for path, found in (
        ("queues/jobs-0", "a managed ledger or a queue"), ("topics/orders-0", "a managed ledger or a queue"),
        ("queues/jobs-0/ledger-0", "a ledger"),
    )),
    (seglog.open_dir, "queues/jobs-0", "a managed ledger or a queue"),
    (seglog.open_dir, "topics/orders-0/ledger-0", "a ledger"),
])
def test_a_directory_of_another_kind_is_refused_and_stays_as_it_is(there, opening, path, found):
    before = all_files(there)
    with pytest.raises(NotALogError, match=f"expected .*, found {found}") as refused:
        opening(there / path).close()
    assert refused.value.file == str(there / path)
    assert re.fullmatch(r"pass a .*; a new (one|log) needs a directory of its own", refused.value.hint)
    assert all_files(there) == before


def test_a_log_is_not_opened_in_a_log_dir_that_has_the_name_of_a_partition(tmp_path):
    with seglog.open(tmp_path / "disk-1/orders-0") as log:
        log.append(b"a")
    before = all_files(tmp_path / "disk-1")
    with pytest.raises(NotALogError, match="expected a partition directory, found a log dir"):
        seglog.open(tmp_path / "disk-1")
    assert all_files(tmp_path / "disk-1") == before


@pytest.mark.parametrize("name", ["orders-0", "ledger-7"])
def test_no_log_begins_inside_a_managed_ledger(there, name):
    before = all_files(there / "topics")
    with pytest.raises(NotALogError, match="expected a log dir, found a managed ledger or a queue") as refused:
        seglog.open(there / "topics/orders-0" / name)
    assert refused.value.file == str(there / "topics/orders-0")
    assert all_files(there / "topics") == before


def test_what_was_mixed_before_stays_reachable(there):
    (there / "data/orders-0/manifest").write_bytes((there / "queues/jobs-0/manifest").read_bytes())
    (there / "queues/jobs-0/ledger-0").rename(there / "data/orders-0/ledger-0")
    with seglog.open(there / "data/orders-0") as log:
        assert log.get(0).value == b"a"
    with ManagedLedger(there / "data/orders-0") as topic:
        assert topic.entry_count == 1


@pytest.mark.parametrize(("name", "opening"), [("a-0", seglog.open), ("d", seglog.open_dir)])
def test_a_directory_with_other_files_may_become_a_log_or_a_log_dir(tmp_path, name, opening):
    (tmp_path / name).mkdir()
    (tmp_path / name / "README").touch()
    opening(tmp_path / name).close()
    opening(tmp_path / name).close()


@pytest.mark.parametrize("opening", [*FOR_LEDGERS, seglog.Topic])
def test_a_directory_with_other_files_becomes_no_queue_topic_or_managed_ledger(tmp_path, opening):
    """Nobody wants a queue among the pages of docs/."""
    (tmp_path / "README").touch()
    with pytest.raises(NotALogError, match=r"not a (queue|topic|managed ledger): it has no") as refused:
        opening(tmp_path)
    assert "one that is new or empty" in refused.value.hint
    assert all_files(tmp_path) == {tmp_path / "README": b""}


def test_the_topic_of_others_is_no_queue_until_it_has_the_subscription(there):
    path = there / "topics/orders-0"
    before = all_files(path)
    for recover in (False, True):
        with pytest.raises(NotALogError, match="managed ledger without a subscription `queue`") as refused:
            seglog.Queue(path, recover=recover)
        assert "open_cursor" in refused.value.hint
        assert all_files(path) == before
    with ManagedLedger(path) as topic:
        topic.open_cursor("queue", "earliest")
    with seglog.Queue(path) as jobs:
        assert jobs.get(timeout=0).value == b"x"


def test_a_managed_ledger_that_never_had_an_entry_may_become_a_queue(tmp_path):
    ManagedLedger(tmp_path / "jobs").close()
    with seglog.Queue(tmp_path / "jobs") as jobs:
        jobs.put(b"x")
        assert jobs.get(timeout=0).value == b"x"


def test_a_queue_is_a_managed_ledger_that_others_add_to(there):
    with ManagedLedger(there / "queues/jobs-0") as topic:
        topic.add_entry(entry())
    with seglog.Queue(there / "queues/jobs-0") as jobs:
        assert [jobs.get(timeout=0).value for _ in range(2)] == [b"x", b"x"]
