"""Every level of the CRC kernels answers what zlib and the crc32c package answer."""
import os
import subprocess
import sys
import zlib

import crc32c as witness
import pytest

from seglog._kernels import crc

AROUND_THE_BLOCKS = [*range(1100), 3 * 1024 - 1, 3 * 1024, 3 * 1024 + 1, 3 * (1024 + 256) + 9, 65536, 100_001]
BYTES = bytes((i * 7 + (i >> 8) * 13 + 1) & 0xFF for i in range(100_100))

FUNCTIONS = [
    pytest.param(crc.crc32_at, zlib.crc32, id="crc32"),
    pytest.param(crc.crc32c_at, witness.crc32c, id="crc32c"),
]


def in_a_process_with(level):
    return subprocess.run(
        [sys.executable, "-c", "from seglog._kernels import crc; print(crc.level(), crc.crc32c(b'123456789'))"],
        env={**os.environ, "SEGLOG_CRC": level},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("ours", "theirs"), FUNCTIONS)
@pytest.mark.parametrize("level", crc.levels())
def test_every_length_agrees_with_the_witness(level, ours, theirs):
    for size in AROUND_THE_BLOCKS:
        assert ours(level, BYTES[:size]) == theirs(BYTES[:size]), size


@pytest.mark.parametrize(("ours", "theirs"), FUNCTIONS)
@pytest.mark.parametrize("level", crc.levels())
def test_every_alignment_agrees_with_the_witness(level, ours, theirs):
    held = memoryview(BYTES)
    for start in range(65):
        for size in (0, 1, 15, 16, 17, 63, 127, 128, 200, 255, 256, 257, 333, 767, 768, 1000, 5000):
            assert ours(level, held[start : start + size]) == theirs(held[start : start + size]), (start, size)


@pytest.mark.parametrize(("ours", "theirs"), FUNCTIONS)
@pytest.mark.parametrize("level", crc.levels())
def test_a_value_continues_an_earlier_one(level, ours, theirs):
    for cut in (*range(0, 600, 7), 12_288, 30_000):
        head, tail = BYTES[:cut], BYTES[cut : 2 * cut + 41]
        assert ours(level, tail, ours(level, head)) == theirs(head + tail), cut
        assert ours(level, tail, 0xFFFFFFFF) == theirs(tail, 0xFFFFFFFF), cut


@pytest.mark.parametrize("level", crc.levels())
def test_the_check_values_of_both_polynomials(level):
    assert crc.crc32_at(level, b"123456789") == 0xCBF43926
    assert crc.crc32c_at(level, b"123456789") == 0xE3069283


def test_a_flipped_bit_changes_the_value_at_every_level():
    whole = bytearray(BYTES[:4097])
    for level in crc.levels():
        for bit in range(0, len(whole) * 8, 61):
            whole[bit >> 3] ^= 1 << (bit & 7)
            assert crc.crc32c_at(level, whole) != witness.crc32c(BYTES[:4097])
            whole[bit >> 3] ^= 1 << (bit & 7)


def test_the_functions_without_a_level_use_the_chosen_one():
    assert crc.level() in crc.levels()
    assert crc.crc32(BYTES) == zlib.crc32(BYTES)
    assert crc.crc32c(BYTES) == witness.crc32c(BYTES)
    assert crc.crc32(bytearray(BYTES[:50]), 7) == zlib.crc32(BYTES[:50], 7)


@pytest.mark.parametrize("level", crc.levels())
def test_the_environment_forces_a_level(level):
    run = in_a_process_with(level)
    assert run.stdout.split() == [level, str(0xE3069283)], run.stderr


@pytest.mark.parametrize("level", [*sorted({"sse42", "avx512", "armv8"} - set(crc.levels())), "fastest"])
def test_forcing_a_level_that_the_machine_lacks_is_an_import_error(level):
    run = in_a_process_with(level)
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: SEGLOG_CRC={level}: this machine"), run.stderr
    assert last.endswith(f"only {', '.join(crc.levels())}")


def test_an_unknown_level_is_refused():
    with pytest.raises(ImportError, match="lacks this level"):
        crc.crc32_at("abacus", b"")


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_a_value_outside_32_bits_is_refused(value):
    with pytest.raises(OverflowError):
        crc.crc32(b"x", value)


def test_only_contiguous_buffers_are_taken():
    with pytest.raises(BufferError):
        crc.crc32c(memoryview(BYTES)[::2])
    with pytest.raises(TypeError):
        crc.crc32c("text")
