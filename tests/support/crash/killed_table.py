"""A process that writes a topic into a table: `python -m support.killed_table SOURCE DST FORMAT PARTITION_BY`.

Says "begun" once all libraries are imported and before it opens the table, and "done" at the end.
"""
import sys

import seglog


def main(source, dst, table_format, partition_by):
    seglog.scan(source).to_arrow()      # imports what a run needs
    if table_format == "delta":
        import deltalake  # noqa: F401
    elif table_format == "parquet":
        import pyarrow.parquet  # noqa: F401
    else:
        import pyiceberg.table  # noqa: F401
    print("begun", flush=True)
    seglog.write_table(
        source, dst, format=table_format, partition_by=partition_by.split(",") if partition_by else (),
        file_bytes=3_000,
    )
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
