"""A topic for polars: as a frame, and as a source of lazy queries, to which polars passes columns and filters.

polars calls its interface for sources (`register_io_source`) and the form of its expressions unstable: only this module
uses them. Terms of a filter that are not understood prune nothing: polars applies the whole filter afterwards.
"""
import io
import json
from collections.abc import Iterator
from typing import Any

from seglog._kernels.arena import ArenaPool
from seglog._kernels.topic_rows import TopicRows
from seglog.frames.bounds import Bounds, flipped
from seglog.frames.libraries import library
from seglog.frames.part import KEPT, POOL
from seglog.frames.rows import RowScan
from seglog.frames.typed.typed_rows import TypedRows

# polars takes about 0.1 ms for each piece, whatever its size: with 8 MB instead of 2, an aggregate takes a sixth less.
WIDE = ArenaPool(8 << 20, 96 << 20)

_OPERATORS = {"Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">=", "Eq": "=="}
_BETWEEN = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}


def frame(scan: RowScan) -> Any:
    """See scan.TopicScan.to_polars."""
    polars = library("polars")
    frames = [_frame(polars, rows) for rows in scan._with_views().batches(KEPT)]
    return polars.concat(frames, rechunk=False) if frames else polars.DataFrame(schema=_schema(polars, scan))


def lazy(scan: RowScan) -> Any:
    """A polars.LazyFrame over the scan: columns, filters on offset, timestamp, partition and topic, and a limit on rows
    are pushed down into it."""
    polars = library("polars")
    sources = library("polars.io.plugins")

    def read(columns: list[str] | None, predicate: Any, limit: int | None, _: int | None) -> Iterator[Any]:
        asked = list(columns or scan.columns)
        needed = () if predicate is None else predicate.meta.root_names()
        more = [name for name in scan.columns if name in needed and name not in asked]
        wanted = scan._with_views().select(asked + more)
        # With both a limit and a filter, polars limits the rows before the filter: so none may be pruned here.
        if predicate is not None and limit is None:
            wanted = wanted._narrowed(bounds_of(predicate))
        left = limit
        for rows in wanted.batches(WIDE if limit is None else POOL, is_mapped=True):
            piece = _frame(polars, rows)
            if left is not None:
                piece = piece.head(left)
                left -= piece.height
            if predicate is not None:
                piece = piece.filter(predicate)
            # (`select` plans and runs a query, which takes as long as decoding half a piece.)
            yield piece if piece.width == len(asked) else piece.select(asked)
            if left == 0:
                return

    return sources.register_io_source(read, schema=_schema(polars, scan), is_pure=False)


def _frame(polars: Any, rows: TopicRows | TypedRows) -> Any:
    made = polars.DataFrame(rows)
    return made.with_columns(polars.col("topic").cast(polars.String)) if "topic" in made.columns else made


def _schema(polars: Any, scan: RowScan) -> dict[str, Any]:
    kinds = {
        "key": polars.String if scan._key_is_text else polars.Binary,
        "value": polars.String if scan._value_is_text else polars.Binary,
        "topic": polars.String, "partition": polars.Int32, "offset": polars.Int64,
        "timestamp": polars.Datetime("us", "UTC"), "timestampType": polars.Int32,
        "headers": polars.List(polars.Struct({"key": polars.String, "value": polars.Binary})),
    }
    typed = scan._typed_columns.intersection(scan.columns)
    if typed:
        pyarrow = library("pyarrow")
        empty = pyarrow.Table.from_batches([], pyarrow.schema(scan.select(sorted(typed))))
        schema = polars.from_arrow(empty).schema
        kinds.update({name: schema[name] for name in typed})
    return {name: kinds[name] for name in scan.columns}


# --- a filter of polars, by its JSON -------------------------------------------------------------------------------

def bounds_of(predicate: Any) -> Bounds:
    """The bounds that a polars expression sets on its rows."""
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:       # it contains a Python function, or this version of polars cannot serialize it
        return Bounds()
    return _read(tree, Bounds())


def _read(node: Any, bounds: Bounds) -> Bounds:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            return _read(right, _read(left, bounds))
        case {"BinaryExpr": {"left": {"Column": str(column)}, "op": str(op), "right": other}} if op in _OPERATORS:
            return bounds.compared(column, _OPERATORS[op], _constant(other))
        case {"BinaryExpr": {"left": other, "op": str(op), "right": {"Column": str(column)}}} if op in _OPERATORS:
            return bounds.compared(column, flipped(_OPERATORS[op]), _constant(other))
        case {"Function": {
            "input": [{"Column": str(column)}, low, high], "function": {"Boolean": {"IsBetween": {"closed": closed}}},
        }} if closed in _BETWEEN:
            from_, to = _BETWEEN[closed]
            return bounds.compared(column, from_, _constant(low)).compared(column, to, _constant(high))
        case {"Function": {"input": [{"Column": str(column)}, values], "function": {"Boolean": {"IsIn": _}}}}:
            constants = _constants(values)
            return bounds if constants is None else bounds.one_of(column, constants)
    return bounds


def _constants(node: Any) -> list[Any] | None:
    """The values of an expression without columns; None if it has columns, or cannot be computed."""
    text = json.dumps(node)
    if '"Column"' in text or '"Selector"' in text:
        return None
    polars = library("polars")
    try:
        found = polars.select(polars.Expr.deserialize(io.StringIO(text), format="json").alias("x"))["x"]
        if isinstance(found.dtype, polars.List | polars.Array):
            found = found.explode()
        if isinstance(found.dtype, polars.Datetime):
            if found.dtype.time_zone not in (None, "UTC"):
                found = found.dt.convert_time_zone("UTC")
            found = found.dt.cast_time_unit("us").cast(polars.Int64)
        return list(found.to_list())
    except Exception:       # polars may refuse it for any reason; a term that is not understood prunes nothing
        return None


def _constant(node: Any) -> object:
    constants = _constants(node)
    return constants[0] if constants is not None and len(constants) == 1 else None
