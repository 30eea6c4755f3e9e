"""Selects the records that `seglog dump` shows by their contents: --key, --grep, --header."""
import re
from collections.abc import Sequence

import click

from seglog._kernels.record_batch import Record
from seglog.named_tuple import NamedTuple


class RecordFilter(NamedTuple):
    """Matches a record with one of the `keys` (if any are given), the pattern in its value, and all of the headers."""

    keys: frozenset[bytes]
    pattern: re.Pattern[bytes] | None
    headers: tuple[tuple[str, bytes | None], ...]      # a value of None matches any value

    @classmethod
    def of(cls, keys: Sequence[str], pattern: str | None, headers: Sequence[str]) -> "RecordFilter | None":
        """Make the filter; None if no option is given. Raises click.UsageError."""
        if not (keys or pattern is not None or headers):
            return None
        try:
            compiled = None if pattern is None else re.compile(pattern.encode())
        except re.error as error:
            raise click.UsageError(f"--grep: {error} in {pattern!r}") from None
        named = [header.partition("=") for header in headers]
        return cls(
            frozenset(key.encode() for key in keys), compiled,
            tuple((name, value.encode() if equals else None) for name, equals, value in named),
        )

    def matches(self, record: Record) -> bool:
        if self.keys and record.key not in self.keys:
            return False
        if self.pattern is not None:
            value = record.value
            if value is None or self.pattern.search(value) is None:
                return False
        return all(
            any(found == name and (value is None or given == value) for found, given in record.headers)
            for name, value in self.headers
        )
