"""What a log dir says of itself: meta.properties, and the mark of a clean shutdown.

docs/formats/checkpoints.md. Read only: both belong to the broker.
Sources: MetaProperties, CleanShutdownFileHandler, java.util.Properties.
"""
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from seglog.errors import CorruptCheckpointError
from seglog.fs.mapping import read_file
from seglog.state.text_files import parse_int

# --- meta.properties -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Whose log dir it is. Version 0 is ZooKeeper's (broker.id), 1 KRaft's (node.id)."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None        # 3.7 and newer (KIP-858)

    @classmethod
    def parse(cls, raw: bytes, *, file: str | os.PathLike[str] | None = None) -> Self:
        """From the bytes of the file. Raises CorruptCheckpointError."""
        lines = _lines(raw.decode("latin-1"))
        found = {name: (value, number) for number, name, value in lines}

        def number_of(*names: str) -> int | None:
            for name in names:
                if name in found:
                    value, line = found[name]
                    return parse_int(value, file, line)
            return None

        version = number_of("version")
        if version not in (0, 1):
            raise CorruptCheckpointError(f"version {version} of meta.properties, which has 0 and 1", file=file)
        return cls(
            version=version,
            cluster_id=found.get("cluster.id", (None, 0))[0],
            node_id=number_of("node.id", "broker.id"),
            directory_id=found.get("directory.id", (None, 0))[0],
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.parse(read_file(path), file=path)


_PROPERTY = re.compile(
    r"[ \t\f]*(?P<name>(?:[^\\ \t\f=:#!]|\\.)(?:[^\\ \t\f=:]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)"
)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<char>.))")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, name, value) of a Java properties file, as Properties.store writes it: comments, escapes.

    Lines that a backslash continues are not joined; store() makes none.
    """
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        found = _PROPERTY.fullmatch(line)
        if found is not None:
            yield number, _plain(found["name"]), _plain(found["value"])


def _plain(escaped: str) -> str:
    return _ESCAPE.sub(
        lambda e: chr(int(e["code"], 16)) if e["code"] else _ESCAPED.get(e["char"], e["char"]), escaped
    )


# --- the mark of a clean shutdown ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """The mark is that the file is there: a broker that finds it trusts logs and indexes, and removes it.

    Empty up to 3.6; since 3.7 (KIP-966) it holds the broker's epoch, None where that is not to be read.
    """

    broker_epoch: int | None = None

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Content that does not parse is no error: Kafka believes the mark all the same."""
        try:
            epoch = json.loads(raw)["brokerEpoch"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return cls()
        return cls(epoch) if isinstance(epoch, int) and not isinstance(epoch, bool) else cls()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises FileNotFoundError: the shutdown was not clean."""
        return cls.parse(read_file(path))

    def to_bytes(self) -> bytes:
        """The bytes of the file: as 3.7 and newer write it, or empty."""
        if self.broker_epoch is None:
            return b""
        return json.dumps({"version": 0, "brokerEpoch": self.broker_epoch}, separators=(",", ":")).encode()
