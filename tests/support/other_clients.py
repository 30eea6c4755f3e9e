"""Kafka's batches as the clients of others read them, record by record."""
import warnings

from aiokafka.record.memory_records import MemoryRecords as AioKafkaRecords


def read_by_aiokafka(data):
    yield from _records_of(AioKafkaRecords(bytes(data)))


def read_by_kafka_python(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # its schemas are loaded by a deprecated function
        from kafka.record.memory_records import MemoryRecords
    yield from _records_of(MemoryRecords(bytes(data)))


def _records_of(batches):
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        yield from batch
