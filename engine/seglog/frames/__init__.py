"""Topics as tables: files of partitions as Arrow record batches. See docs/tables.md."""
