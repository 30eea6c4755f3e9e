"""Keys and values as typed columns: the schemas, where they come from, and the decoders that follow them."""
