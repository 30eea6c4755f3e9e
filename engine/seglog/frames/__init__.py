"""Topics as tables: the files of partitions as Arrow record batches. See docs/tables.md."""
