"""The look at checksums in the pieces that a backup reads, beside its slow twin, which reads the segment."""
import random
import sys

import pytest

import seglog
from seglog.archive import moments
from seglog.archive.sound_batches import SoundBatches
from seglog.backups.buffers import Buffers
from seglog.segment.segment import Segment
from support.golden import golden_cases


def says(path, raw, cuts, check_from=0, start=0):
    looker = SoundBatches(path, start, check_from, len(raw))
    for begin, end in zip([start, *cuts], [*cuts, len(raw)], strict=True):
        looker.add(memoryview(raw)[begin:end])
    return looker.is_sound


def twin_says(path, raw, position=0):
    path.write_bytes(raw)
    lost, segment = [], Segment(path)
    try:
        end = position
        for table in segment.tables(position, on_lost=lost.append):
            end = table.end
        return not lost and end == len(raw)
    finally:
        segment.close()


@pytest.fixture
def raw(in_memory):
    """Batches of many sizes."""
    rng = random.Random(3)
    with seglog.open(in_memory / "orders-0") as log:
        for _ in range(25):
            log.append(rng.randbytes(rng.choice([1, 40, 900])), key=b"k")
        return (in_memory / "orders-0" / f"{0:020}.log").read_bytes()


def test_a_sound_log_is_sound_in_whatever_pieces_it_comes(raw, in_memory):
    path = in_memory / f"{0:020}.log"
    for size in (1, 2, 7, 11, 12, 13, 61, 100, 1000, len(raw)):
        assert says(path, raw, range(size, len(raw), size)), size
    for cut in range(1, len(raw), 3):
        assert says(path, raw, [cut]), cut


def test_it_never_calls_sound_what_its_twin_finds_damaged(raw, in_memory):
    path, rng, sound = in_memory / f"{0:020}.log", random.Random(5), 0
    for _ in range(600):
        damaged = bytearray(raw)
        match rng.randrange(4):
            case 0 | 1:
                damaged[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            case 2:
                del damaged[rng.randrange(len(raw)) :]
            case 3:
                at = rng.randrange(len(raw))
                damaged[at : at + rng.randrange(200)] = b""
        cuts = sorted(rng.sample(range(1, max(len(damaged), 4)), 3)) if len(damaged) > 4 else []
        is_sound = says(path, bytes(damaged), cuts)
        assert is_sound == twin_says(path, bytes(damaged))
        sound += is_sound
    assert sound


def test_of_what_brokers_wrote_it_says_what_its_twin_says(in_memory):
    """Wrappers of v0 and v1 may need the slow twin; v2 never does."""
    checked = 0
    for case in golden_cases():
        for path in sorted(case.rglob("*.log")):
            raw = path.read_bytes()
            is_sound = says(path, raw, range(700, len(raw), 700))
            assert is_sound <= twin_says(in_memory / path.name, raw), path
            if raw[16:17] == b"\2":
                assert is_sound
                segment = Segment(path)
                starts = [batch.position for table in segment.tables() for batch in table][1:]
                segment.close()
                for position in starts[:: max(len(starts) // 5, 1)]:
                    start = max(position - 30, 0)
                    assert says(path, raw, [position + 5], check_from=position, start=start)
                    assert not says(path, raw[: position + 20], [], check_from=position, start=start)
                    checked += 1
    assert checked > 50


def test_a_run_checks_batches_without_reading_the_log_again(in_memory, monkeypatch):
    """Also of the log that grew, whose last piece is stored again, and with batches over several pieces."""
    monkeypatch.setattr(moments, "PIECE_BYTES", 1000)
    data, store = in_memory / "data", in_memory / "store"

    tables, read_again = Segment.tables, []

    def counted(self, *args, **named):
        if sys._getframe(1).f_globals["__name__"] == moments.__name__:      # not a search for the last batch
            read_again.append("checked")
        return tables(self, *args, **named)

    with seglog.open(data / "orders-0", config={"segment.bytes": 20_000}) as log:
        for n in range(40):
            log.append(b"v" * 100 * (n % 30))
        monkeypatch.setattr(Segment, "tables", counted)
        assert seglog.backup(data, store).damaged == {}
        for _ in range(3):
            log.append(b"more")
            run = seglog.backup(data, store)
            assert run.read_bytes > 0
            assert run.damaged == {}
    assert read_again == []
    seglog.restore(store, in_memory / "back")
    for path in (data / "orders-0").glob("*.log"):
        assert path.read_bytes() == (in_memory / "back/orders-0" / path.name).read_bytes()


def test_buffers_are_few_and_hold_a_piece_until_it_is_stored(in_memory, monkeypatch):
    monkeypatch.setattr(moments, "PIECE_BYTES", 500)
    taken, held = [], set()
    take, give_back = Buffers.take, Buffers.give_back

    def counted(self, size_bytes):
        view = take(self, size_bytes)
        assert id(view.obj) not in held
        held.add(id(view.obj))
        taken.append(view.obj)
        return view

    def given(self, view):
        if isinstance(view, memoryview):
            held.discard(id(view.obj))
        give_back(self, view)

    monkeypatch.setattr(Buffers, "take", counted)
    monkeypatch.setattr(Buffers, "give_back", given)
    with seglog.open(in_memory / "data/orders-0") as log:
        for n in range(400):
            log.append(b"%d" % n * 100)
    seglog.backup(in_memory / "data", in_memory / "store")
    assert not held
    assert len(taken) > 100
    assert len({id(one) for one in taken}) <= 9
    assert seglog.BackupStore(in_memory / "store").check(read_data=True).ok
