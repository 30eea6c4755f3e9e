"""A dry run says what is there, what would come of it, and changes nothing."""
import random

import pytest

from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog.conversion import forecast as conversion_forecast
from seglog.conversion.directory import plan_conversion
from seglog.conversion.plan import FormatCount
from seglog.format.compression import Codec, compress
from support.conversion import config_of, converted, source_of, tree
from support.golden import golden_cases

CASES = [pytest.param(case, id=case.name) for case in golden_cases()]
OPTIONS = [{}, {"codec": "none"}, {"codec": "zstd"}, {"repack_bytes": 16384}, {"repack_bytes": 500, "codec": "gzip"}]


def v1(offset, value=b"v"):
    builder = MessageSetBuilder(1)
    builder.append(offset, 1000, None, value)
    return builder.payload()


def v1_gzip(offset, count, value=b"v"):
    builder = MessageSetBuilder(1, wrapped_from=offset)
    for i in range(count):
        builder.append(offset + i, 1000, None, value)
    return builder.wrap(compress(Codec.GZIP, 1, builder.payload()), Codec.GZIP)


def v2(offset, value=b"v"):
    builder = BatchBuilder(offset)
    builder.append(offset, 1000, None, value)
    return builder.finish()


def partition_of(directory, **segments):
    directory.mkdir(parents=True)
    for name, data in segments.items():
        (directory / f"{int(name[1:]):020d}.log").write_bytes(data)
    return directory


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_forecast_of_a_small_log_is_its_size(case, options, tmp_path):
    # Below a megabyte of compressed batches nothing is left to guess.
    source = source_of(case)
    before = tree(source)
    plan = plan_conversion(source, config=config_of(case), **options)
    assert tree(source) == before
    result = converted(source, tmp_path / source.name, config=config_of(case), **options)
    assert plan.target is None
    assert [s.forecast_bytes for s in plan.segments] == [s.size_bytes for s in result.segments]
    assert all(s.forecast_is_exact for s in plan.segments)
    assert plan.forecast_bytes == result.size_bytes
    assert result.plan.forecast_bytes is None


def test_formats_are_counted(tmp_path):
    bare, wrapped, batch = v1(0) + v1(1), v1_gzip(2, 5), v2(7)
    source = partition_of(tmp_path / "orders-0", s0=bare + wrapped + batch, s8=b"")
    plan = plan_conversion(source)
    first, second = plan.segments
    assert first.formats == (
        FormatCount(1, "none", 2, len(bare), 2),
        FormatCount(1, "gzip", 1, len(wrapped), None),
        FormatCount(2, "none", 1, len(batch), 1),
    )
    assert first.legacy_bytes == len(bare + wrapped)
    assert (first.base_offset, first.next_offset, first.size_bytes) == (0, 8, len(bare + wrapped + batch))
    assert (second.formats, second.next_offset, second.parts) == ((), 8, 1)
    assert (plan.size_bytes, plan.log_end_offset) == (first.size_bytes, 8)


def test_compressed_batches_are_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion_forecast, "SAMPLE_BYTES", 3000)
    noise = random.Random(7)
    data = b"".join(v1_gzip(i * 20, 20, noise.randbytes(20)) for i in range(2000))
    source = partition_of(tmp_path / "a" / "orders-0", s0=data)
    plan = plan_conversion(source)
    segment, = plan.segments
    assert not segment.forecast_is_exact
    result = converted(source, tmp_path / "b" / "orders-0")
    assert segment.forecast_bytes == pytest.approx(result.size_bytes, rel=0.05)
    assert segment.forecast_bytes != result.size_bytes


def test_splits_are_foretold(tmp_path):
    data = b"".join(v1(i) for i in range(100))
    source = partition_of(tmp_path / "a" / "orders-0", s0=data)
    config = {"segment.bytes": 1 << 10}
    plan = plan_conversion(source, config=config)
    result = converted(source, tmp_path / "b" / "orders-0", config=config)
    assert 1 < plan.segments[0].parts <= len(result.segments) <= plan.segments[0].parts + 1


def test_batches_above_max_message_bytes_are_foretold_and_said(tmp_path):
    # In v1 the two fit into what the topic allows, in v2 no more.
    source = partition_of(tmp_path / "a" / "orders-0", s0=v1(0, bytes(960)) + v1(1, bytes(960)) + v1(2))
    config = {"max.message.bytes": len(v1(0, bytes(960)))}
    plan = plan_conversion(source, config=config)
    result = converted(source, tmp_path / "b" / "orders-0", config=config)
    warning, = plan.warnings
    assert warning.startswith("2 batches of the result are larger than max.message.bytes (994)")
    assert result.warnings == (warning,)


def test_a_log_start_offset_above_the_first_segment_is_said(tmp_path):
    source = partition_of(tmp_path / "orders-0", s0=v1(0) + v1(1))
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 1\n")
    warning, = plan_conversion(source).warnings
    assert "below offset 1 were deleted" in warning


def test_repacking_is_said_to_concern_all_replicas(tmp_path):
    source = partition_of(tmp_path / "orders-0", s0=v1(0))
    warning, = plan_conversion(source, repack_bytes=16384).warnings
    assert "replace all of them together" in warning


def test_a_plan_is_data(tmp_path):
    plan = plan_conversion(partition_of(tmp_path / "orders-0", s0=v1(0)))
    assert plan == plan_conversion(tmp_path / "orders-0")
    with pytest.raises(AttributeError):
        plan.to = 1
