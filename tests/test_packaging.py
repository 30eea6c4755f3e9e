"""What pyproject.toml says twice agrees, and what it must not say is not there."""
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())


def names(requirements):
    return {requirement.split(";")[0].split(">")[0].split("<")[0].strip() for requirement in requirements}


def test_the_environment_builds_with_what_an_isolated_build_gets():
    assert PROJECT["dependency-groups"]["build"] == PROJECT["build-system"]["requires"]


def test_heavy_libraries_are_extras():
    assert not names(PROJECT["project"]["dependencies"]) & {"numpy", "pandas", "pyarrow", "pyspark"}


def test_witnesses_stay_in_the_tests():
    extras = dict(PROJECT["project"]["optional-dependencies"])
    assert names(extras.pop("witness")) == {"crc32c"}       # which operators may call, too: `verify --witness`
    required = names(PROJECT["project"]["dependencies"]).union(*(names(extra) for extra in extras.values()))
    assert not required & {"aiokafka", "kafka-python", "crc32c", "hypothesis", "pytest"}
