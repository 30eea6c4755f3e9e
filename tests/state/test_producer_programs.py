"""Programs of producers that Kafka 4.1.1 ran once: the same answers here, step by step, and the same left on disk."""
import pytest

from support.producer_programs import GOLDEN, ProducerLog, agree, read_golden

PROGRAMS = read_golden(GOLDEN)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_is_answered_as_kafka_answered_it(number, tmp_path):
    program, answers, disk = PROGRAMS[number]
    log = ProducerLog(tmp_path / "p-0")
    for step, kafkas in zip(program, answers, strict=True):
        mine = log.run(step)
        assert agree(mine, kafkas), f"{step}\n{mine}\n{kafkas}"
    assert log.close() == disk
