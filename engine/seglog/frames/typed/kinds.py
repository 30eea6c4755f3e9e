"""The words of `decode=` that name typed columns. Apart from what decodes them, which takes long to import."""

# (As a plain word in `decode`, "json" is text.)
KINDS = ("avro", "protobuf")
