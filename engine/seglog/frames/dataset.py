"""A topic as a pyarrow dataset: DuckDB passes it the columns and the filter of a query.

DuckDB asks the object's own class for a scanner, so our class can prune before anything is read. The class is created
with the first dataset, which imports pyarrow.
"""
from functools import cache
from typing import TYPE_CHECKING, Any

from seglog.frames.bounds import bounds_of_text
from seglog.frames.libraries import library

if TYPE_CHECKING:
    from seglog.frames.rows import RowScan

TopicDataset = Any      # a pyarrow.dataset.Dataset


def dataset_of(scan: "RowScan") -> TopicDataset:
    """See scan.TopicScan.dataset."""
    library("pyarrow.dataset")
    return _dataset_class()(scan)


def _pruned(scan: "RowScan", columns: Any, condition: Any) -> "tuple[RowScan, list[str]]":
    """The scan narrowed by the filter, and the columns that the query and its filter need."""
    text = "" if condition is None else str(condition)
    bounds = bounds_of_text(text, {} if condition is None else _constants(condition))
    if columns is None:
        names = list(scan.columns)
    elif isinstance(columns, dict):         # names and expressions, which may need any column
        return scan.narrowed(bounds), list(scan.columns)
    else:
        names = list(columns)
    # Columns that the text of the filter names, even in a constant: at worst one column too many is read.
    names += [name for name in scan.columns if name in text and name not in names]
    wanted = names or list(scan.columns[:1])
    return scan.select(wanted).narrowed(bounds), wanted


def _constants(condition: Any) -> dict[str, object]:
    """{the constant as str(condition) shows it: the constant}, for text, and for bytes, which appear in hex. Constants
    that look alike are left out. They come from the pickled expression, the only form that tells text from bytes.
    """
    import pyarrow  # type: ignore[import-untyped]

    shown: dict[str, object] = {}
    try:
        _, (pickled,) = condition.__reduce__()
        columns = pyarrow.ipc.open_file(pickled).read_all().columns
    except pyarrow.ArrowException:      # a function that pyarrow cannot pickle
        return shown
    for column in columns:
        constant = None if pyarrow.types.is_nested(column.type) else column[0].as_py()
        if isinstance(constant, str | bytes):
            name = constant if isinstance(constant, str) else constant.hex().upper()
            shown[name] = constant if shown.get(name, constant) == constant else None
    return shown


class PlainScanner:
    """The methods of a pyarrow.dataset.Scanner, without pyarrow's own threads: rows are passed on as they come."""

    def __init__(self, scan: "RowScan") -> None:
        self._scan = scan

    @property
    def projected_schema(self) -> Any:
        return library("pyarrow").schema(self._scan)

    dataset_schema = projected_schema

    def to_reader(self) -> Any:
        return library("pyarrow").RecordBatchReader.from_stream(self._scan)

    def to_batches(self) -> Any:
        return iter(self.to_reader())

    def to_table(self) -> Any:
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> Any:
        pyarrow = library("pyarrow")
        kept, left = [], num_rows
        for batch in self.to_reader():
            kept.append(batch.slice(0, left))
            left -= kept[-1].num_rows
            if left <= 0:
                break
        return pyarrow.Table.from_batches(kept, self.projected_schema)

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self.to_reader())


@cache
def _dataset_class() -> Any:
    pyarrow, dataset = library("pyarrow"), library("pyarrow.dataset")

    class TopicDataset(dataset.Dataset):    # type: ignore[misc, name-defined]
        """The rows of a topic; each scan reads the files as they are at that time."""

        def __init__(self, scan: "RowScan") -> None:
            self._scan = scan

        @property
        def schema(self) -> Any:
            return pyarrow.schema(self._scan)

        @property
        def partition_expression(self) -> Any:
            return pyarrow.compute.scalar(True)

        def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:
            """A scanner; filters on offset, timestamp, partition and topic prune what is read."""
            scan, names = _pruned(self._scan, columns, filter)
            if filter is None and (columns is None or list(columns) == names):
                return PlainScanner(scan)
            return dataset.Scanner.from_batches(scan.to_reader(), columns=columns, filter=filter, **options)

        def get_fragments(self, filter: Any = None) -> Any:
            raise NotImplementedError("a topic has no fragments; read it in pieces with seglog.scan(...).parts()")

        def replace_schema(self, schema: Any) -> Any:
            raise NotImplementedError("a topic's schema is fixed; choose its columns with seglog.scan(columns=...)")

        def __reduce__(self) -> Any:
            return dataset_of, (self._scan,)

        def __repr__(self) -> str:
            return f"<TopicDataset of {self._scan!r}>"

    return TopicDataset
