"""Topics as tables: the files of partitions as Arrow record batches, for whatever takes these. See docs/tables.md."""
