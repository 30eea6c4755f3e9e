"""A topic as a pyarrow dataset: DuckDB passes it the columns and the filter of a query.

DuckDB asks the object's own class for a scanner, so our class can prune before anything is read. The class is created
with the first dataset, which imports pyarrow.
"""
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from seglog.frames.bounds import bounds_of_text
from seglog.frames.libraries import library
from seglog.late_import import late

if TYPE_CHECKING:
    from seglog.frames.rows import RowScan

TopicDataset = Any      # a pyarrow.dataset.Dataset


# What functions of pyarrow that are written in C++ say that they cannot open.
_NOWHERE = "/a seglog topic (call to_table or to_batches of its dataset, and use the result)"


def dataset_of(scan: "RowScan", condition: Any = None) -> TopicDataset:
    """See scan.TopicScan.dataset. `condition`: only the rows that satisfy this expression."""
    library("pyarrow.dataset")
    return _dataset_class()(scan, condition)


def _pruned(scan: "RowScan", columns: Any, condition: Any) -> "tuple[RowScan, list[str]]":
    """The scan narrowed by the filter, and the columns that the query and its filter need."""
    text = "" if condition is None else str(condition)
    bounds = bounds_of_text(text, {} if condition is None else _constants(condition))
    if columns is None:
        names = list(scan.columns)
    elif isinstance(columns, dict):         # names and expressions, which may need any column
        return scan._narrowed(bounds), list(scan.columns)
    else:
        names = list(dict.fromkeys(columns))
    # Columns that the text of the filter names, even in a constant: at worst one column too many is read.
    names += [name for name in scan.columns if name in text and name not in names]
    wanted = names or list(scan.columns[:1])
    return scan.select(wanted)._narrowed(bounds), wanted


def _constants(condition: Any) -> dict[str, object]:
    """{the constant as str(condition) shows it: the constant}, for text, and for bytes, which appear in hex. Constants
    that look alike are left out. They come from the pickled expression, the only form that tells text from bytes.
    """
    late("pyarrow")
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


class TopicScanner:
    """The methods of a pyarrow.dataset.Scanner, without pyarrow's own threads: rows are passed on as they come.

    A Scanner of pyarrow would drop the reader in a thread of its own, even after the query. If the interpreter ends
    then, the process aborts.
    """

    def __init__(self, scan: "RowScan", columns: Any = None, condition: Any = None) -> None:
        self._scan = scan
        self._columns = columns
        self._condition = condition

    @property
    def projected_schema(self) -> Any:
        pyarrow, schema = library("pyarrow"), self.dataset_schema
        if isinstance(self._columns, dict):
            return self._projected(pyarrow.Table.from_batches([], schema)).schema
        return schema if self._columns is None else pyarrow.schema([schema.field(name) for name in self._columns])

    @property
    def dataset_schema(self) -> Any:
        return library("pyarrow").schema(self._scan)

    def to_reader(self) -> Any:
        pyarrow = library("pyarrow")
        if self._columns is None and self._condition is None:
            return pyarrow.RecordBatchReader.from_stream(self._scan)
        return pyarrow.RecordBatchReader.from_batches(self.projected_schema, self._batches(pyarrow))

    def to_batches(self) -> Any:
        return iter(self.to_reader())

    def to_table(self) -> Any:
        return self.to_reader().read_all()

    def take(self, indices: Any) -> Any:
        return self.to_table().take(indices)

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

    def _batches(self, pyarrow: Any) -> Iterator[Any]:
        for rows in self._scan.batches():
            table = pyarrow.Table.from_batches([pyarrow.record_batch(rows)])
            for batch in (table if self._condition is None else table.filter(self._condition)).to_batches():
                if isinstance(self._columns, dict):
                    yield from self._projected(pyarrow.Table.from_batches([batch])).to_batches()
                else:
                    yield batch if self._columns is None else batch.select(self._columns)

    def _projected(self, table: Any) -> Any:
        """The columns that the query describes by expressions."""
        acero = library("pyarrow.acero")
        chosen = acero.ProjectNodeOptions(list(self._columns.values()), list(self._columns))
        return acero.Declaration.from_sequence([
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", chosen),
        ]).to_table(use_threads=False)


@cache
def _dataset_class() -> Any:
    pyarrow, dataset = library("pyarrow"), library("pyarrow.dataset")
    fs, ipc = library("pyarrow.fs").LocalFileSystem(), dataset.IpcFileFormat()

    def whole(topic: Any) -> Any:
        return dataset.dataset(topic.to_table()) if type(topic) is TopicDataset else topic

    # Functions in C++ do not ask this class, but read the dataset that __init__ of its base makes: one of a file that
    # does not exist, so that they fail and say why. (Without one, they end the process.)
    class TopicDataset(dataset.FileSystemDataset):      # type: ignore[misc, name-defined]
        """The rows of a topic; each scan reads the files as they are at that time."""

        def __init__(self, scan: "RowScan", condition: Any = None) -> None:
            nowhere = ipc.make_fragment(_NOWHERE, fs)
            super().__init__([nowhere], pyarrow.schema(scan), ipc, fs)
            self._scan = scan
            self._condition = condition

        @property
        def schema(self) -> Any:
            return pyarrow.schema(self._scan)

        @property
        def partition_expression(self) -> Any:
            return pyarrow.compute.scalar(True)

        def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:
            """A scanner; filters on offset, timestamp, partition and topic prune what is read."""
            condition = self._both(filter)
            scan, names = _pruned(self._scan, columns, condition)
            if columns is not None and not isinstance(columns, dict):
                columns = list(columns)
            return TopicScanner(scan, None if columns == names else columns, condition)

        def filter(self, expression: Any) -> Any:
            return TopicDataset(self._scan, self._both(expression))

        def sort_by(self, sorting: Any, **options: Any) -> Any:
            return whole(self).sort_by(sorting, **options)

        def join(self, right_dataset: Any, *keys: Any, **options: Any) -> Any:
            return whole(self).join(whole(right_dataset), *keys, **options)

        def join_asof(self, right_dataset: Any, *keys: Any, **options: Any) -> Any:
            return whole(self).join_asof(whole(right_dataset), *keys, **options)

        def get_fragments(self, filter: Any = None) -> Any:
            raise NotImplementedError("a topic has no fragments; read it in pieces with seglog.scan(...).parts()")

        def replace_schema(self, schema: Any) -> Any:
            raise NotImplementedError("a topic's schema is fixed; choose its columns with seglog.scan(columns=...)")

        def _both(self, condition: Any) -> Any:
            if condition is None or self._condition is None:
                return self._condition if condition is None else condition
            return self._condition & condition

        def __reduce__(self) -> Any:
            return dataset_of, (self._scan, self._condition)

        def __repr__(self) -> str:
            return f"<TopicDataset of {self._scan!r}>"

    return TopicDataset
