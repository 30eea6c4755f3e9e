"""The last offset of every key: KeyMap against a dict, and SipHash against the vectors that its authors published."""
import os
import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog import build_batch
from seglog._kernels.key_map import KeyMap, siphash
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, InvalidArgumentError
from seglog.format.compression import decompressor
from support.plain_format import batch_v2, message, record_v2

SECRET = bytes(range(16))

# SipHash of bytes(range(n)) under SECRET, by n: vectors.h of the authors' reference code (github.com/veorq/SipHash),
# each checked with `openssl mac SIPHASH` (OpenSSL 3.0): one copy of that file in circulation has 3f for 2f in the last.
# The one of 1-3 with 128 bits is from tests128.rs of the siphasher crate.
VECTORS_2_4_64 = {
    0: "310e0edd47db6f72", 1: "fd67dc93c539f874", 2: "5a4fa9d909806c0d", 7: "37d1018bf50002ab", 8: "6224939a79f5f593",
    63: "724506eb4c328a95",
}
VECTORS_2_4_128 = {
    0: "a3817f04ba25a8e66df67214c7550293", 1: "da87c1d86b99af44347659119b22fc45", 7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4", 15: "5493e99933b0a8117e08ec0f97cfc3d9",
    63: "5150d1772f50834a503e069a973fbd7c",
}

keys = st.binary(max_size=40)


def test_siphash_gives_the_published_vectors():
    for size, vector in VECTORS_2_4_64.items():
        assert siphash(bytes(range(size)), SECRET, rounds=2, last_rounds=4, digest_bytes=8).hex() == vector
    for size, vector in VECTORS_2_4_128.items():
        assert siphash(bytes(range(size)), SECRET, rounds=2, last_rounds=4).hex() == vector
    assert siphash(b"", SECRET).hex() == "e77ebcb22788a5befd62db6add303001"


def test_siphash_gives_the_example_of_the_paper():
    example = siphash(bytes(range(15)), SECRET, rounds=2, last_rounds=4, digest_bytes=8)
    assert int.from_bytes(example, "little") == 0xA129CA6149BE45E5


def plain_siphash_1_3(data, secret):
    """The paper's pseudocode, one round a word and three at the end, 128 bits."""
    mask = (1 << 64) - 1
    k0, k1 = struct.unpack("<QQ", secret)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotated(x, n):
        return (x << n | x >> (64 - n)) & mask

    def turn():
        v[0] = v[0] + v[1] & mask
        v[1] = rotated(v[1], 13) ^ v[0]
        v[0] = rotated(v[0], 32)
        v[2] = v[2] + v[3] & mask
        v[3] = rotated(v[3], 16) ^ v[2]
        v[0] = v[0] + v[3] & mask
        v[3] = rotated(v[3], 21) ^ v[0]
        v[2] = v[2] + v[1] & mask
        v[1] = rotated(v[1], 17) ^ v[2]
        v[2] = rotated(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        turn()
        v[0] ^= word
    v[2] ^= 0xEE
    for _ in range(3):
        turn()
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for _ in range(3):
        turn()
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


@given(st.binary(max_size=300), st.binary(min_size=16, max_size=16))
def test_siphash_is_what_the_paper_says(data, secret):
    assert siphash(data, secret) == plain_siphash_1_3(data, secret)


@given(st.lists(st.tuples(keys, st.integers(0, 2**63 - 2))), st.sampled_from([16 * 28, 4096, 1 << 20]))
def test_it_is_a_dict_of_the_highest_offsets_until_it_is_full(puts, max_bytes):
    model = {}
    found = KeyMap(max_bytes)
    for key, offset in puts:
        fits = key in model or len(model) < found.max_keys
        assert found.put(key, offset) == fits
        if fits:
            model[key] = max(offset, model.get(key, -1))
        assert found.is_full == (len(model) == found.max_keys)
    assert len(found) == len(model)
    assert {key: found.get(key) for key, _ in puts} == {key: model.get(key, -1) for key, _ in puts}
    assert found.get(b"a key of nobody") == -1


@pytest.mark.parametrize(("expected_keys", "max_bytes"), [(0, 1 << 20), (50_000, 1 << 20), (0, 9_000_000)])
def test_it_grows_to_its_bound_and_takes_32_bytes_a_key_at_most(expected_keys, max_bytes):
    """From 4 MiB on its memory is of another kind, with large pages."""
    found = KeyMap(max_bytes, expected_keys=expected_keys)
    count = 0
    while found.put(b"key %d" % count, count):
        count += 1
    assert count == found.max_keys
    assert found.nbytes <= max_bytes
    assert max_bytes / count <= 32
    assert all(found.get(b"key %d" % i) == i for i in range(count))
    assert found.put(b"key 7", count)       # one that is known is still moved
    assert found.get(b"key 7") == count


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc/self/statm on this system")
def test_a_large_map_takes_memory_as_it_is_used_and_gives_it_back():
    def pages():
        with open("/proc/self/statm") as statm:
            return [int(number) * os.sysconf("SC_PAGESIZE") for number in statm.read().split()[:2]]

    before = pages()
    for _ in range(5):
        found = KeyMap(1 << 30, expected_keys=30_000_000)
        assert found.put(b"key", 1)
        assert found.nbytes > 800 << 20
        assert pages()[1] - before[1] < 100 << 20
        del found
    assert all(after - was < 100 << 20 for was, after in zip(before, pages(), strict=True))


def test_a_map_that_grows_to_its_bound_takes_an_eighth_more_on_the_way():
    """Two tables are there while it grows: the last step must not be one from nearly the whole."""
    found, steps, count = KeyMap(5_000_000), [0], 0
    while found.put(b"%d" % count, count):
        count += 1
        if found.nbytes != steps[-1]:
            steps.append(found.nbytes)
    assert len(steps) > 3
    assert all(before + after <= 5_000_000 * 9 / 8 for before, after in pairwise(steps))
    assert all(found.get(b"%d" % n) == n for n in range(0, count, 97))


def records_of(rng, count, spread):
    for offset in range(count):
        key = None if rng.random() < 0.05 else b"%d" % rng.randrange(spread)
        yield offset, key, None if rng.random() < 0.1 else rng.randbytes(rng.randrange(60))


def batches_of(rng, records, codec):
    while records:
        n = rng.randrange(1, 90)
        part, records = records[:n], records[n:]
        yield build_batch([(key, value) for _, key, value in part], base_offset=part[0][0], codec=codec)


def table_of(raw):
    return scan(Window(raw), decompress=decompressor())


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("first_offset", [0, 1234])
def test_batches_are_taken_as_a_dict_takes_their_records(codec, first_offset):
    rng = random.Random(codec)
    records = list(records_of(rng, 5000, 700))
    table = table_of(b"".join(batches_of(rng, records, codec)))
    found = KeyMap(1 << 20)
    assert found.add_batches(table, first_offset=first_offset) == len(table)
    model = {key: offset for offset, key, _ in records if key is not None and offset >= first_offset}
    assert len(found) == len(model)
    assert {key: found.get(key) for key in model} == model


def test_messages_of_v0_and_v1_are_taken_one_by_one():
    raw = b"".join(message(i, b"%d" % (i % 30), b"v", magic=i % 2) for i in range(100))
    found = KeyMap(4096)
    table = table_of(raw)
    assert found.add_batches(table, with_positions=True) == len(table) == 100
    model = {b"%d" % (i % 30): i for i in range(100)}
    assert {key: found.get(key) for key in model} == model
    assert {key: found.position(key) for key in model} == {key: table[i].position for key, i in model.items()}


@pytest.mark.parametrize("batch_records", [1, 3, 40])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_full_map_names_the_first_batch_that_it_has_not_taken_whole(batch_records, codec):
    raw = b"".join(
        build_batch([(b"%d" % (first + i), b"") for i in range(batch_records)], base_offset=first, codec=codec)
        for first in range(0, 400, batch_records)
    )
    table = table_of(raw)
    found = KeyMap(200 * 28)
    stopped = found.add_batches(table)
    assert stopped == found.max_keys // batch_records
    assert found.is_full
    assert all(found.get(b"%d" % offset) == offset for offset in range(stopped * batch_records))


def test_records_that_cannot_be_are_named():
    good = build_batch([(b"k", b"v")], base_offset=0)
    bad = batch_v2(record_v2(0, 0, b"k", b"v")[:-1] + b"\x05", base_offset=1)
    with pytest.raises(CorruptRecordError) as refused:
        KeyMap().add_batches(table_of(good + bad))
    assert (refused.value.position, refused.value.offset) == (len(good), 1)


@given(st.sampled_from([0, 1]), st.sampled_from(["gzip", "lz4"]), st.integers(1, 5), st.integers(0, 40))
def test_a_wrapper_is_taken_only_where_its_messages_say(magic, codec, count, outer):
    """A wrapper of v1 carries its messages with it: it may only not begin within the batch before it."""
    before = build_batch([(b"before", b"v")] * 3, magic=magic, codec=codec, base_offset=4)
    some = [(b"%d" % n, b"v") for n in range(count)]
    wrapper = struct.pack(">q", outer) + build_batch(some, magic=magic, codec=codec, base_offset=12)[8:]
    found = KeyMap(4096)
    first = outer - count + 1 if magic and outer else 12 if not magic else 0
    is_good = first > 6 and (magic == 1 or outer == 11 + count)
    if is_good:
        assert found.add_batches(table_of(before + wrapper)) == 2
        assert [found.get(b"%d" % n) for n in range(count)] == list(range(first, first + count))
    else:
        with pytest.raises(CorruptRecordError, match="offset") as refused:
            found.add_batches(table_of(before + wrapper))
        assert refused.value.position == len(before)


def test_fewer_bits_of_identity_make_keys_collide():
    found = KeyMap(1 << 16, identity_bits=3, secret=SECRET)
    for i in range(100):
        assert found.put(b"%d" % i, i)
    assert len(found) == 8
    assert KeyMap(1 << 16, secret=SECRET).get(b"1") == -1


def test_every_map_has_a_secret_of_its_own():
    first, second = KeyMap(1 << 16, identity_bits=16), KeyMap(1 << 16, identity_bits=16)
    for found in (first, second):
        for i in range(2000):
            found.put(b"%d" % i, i)
    assert [first.get(b"%d" % i) for i in range(2000)] != [second.get(b"%d" % i) for i in range(2000)]


@pytest.mark.parametrize("settings", [
    {"max_bytes": 100}, {"load_factor": 0.0}, {"load_factor": 1.5}, {"expected_keys": -1}, {"secret": b"short"},
    {"identity_bits": 0}, {"identity_bits": 129},
])
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(InvalidArgumentError):
        KeyMap(**settings)
