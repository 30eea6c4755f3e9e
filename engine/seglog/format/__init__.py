"""Records and batches of each format version, compression, names: bytes in, bytes out, no files."""
