"""The tables in proto/kafka/ by the script that reads it."""

import importlib.util
import sys
from functools import cache
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "proto/gen_kafka_messages.py"


@cache
def generator():
    spec = importlib.util.spec_from_file_location("gen_kafka_messages", SCRIPT)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def table():
    return generator().parse_table(generator().TABLE.read_text())


@cache
def records_table():
    return generator().parse_table(generator().RECORDS_TABLE.read_text())
