"""A partition directory as its readers see it: lookup, reader, partition, fetch, followers, cursors."""
