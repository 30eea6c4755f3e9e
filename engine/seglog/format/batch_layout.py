"""Where the fields of a batch's header are: docs/formats/record_batch.md and message.md.

For code that reads a field of a batch without parsing it. Kernels have the same names in cext/records/batch_header.pxd;
tests/format/test_batch_layout.py compares the two, and both with what the kernels write and parse. The witness
(format.plain_records) has its own on purpose: it shares nothing with the code that it checks.
"""
# All formats; the offset is at 0.
SIZE_POS = 8                    # four bytes: how many follow them
LOG_OVERHEAD = 12               # offset and size, which `size` does not count
MAGIC_POS = 16

# v2: a batch. Its CRC covers everything from the attributes on.
LEADER_EPOCH_POS = 12
CRC_POS = 17
ATTRIBUTES_POS = 21             # two bytes
LOW_ATTRIBUTES_POS = 22         # the one of them that has the bits below
LAST_OFFSET_DELTA_POS = 23
BASE_TIMESTAMP_POS = 27
MAX_TIMESTAMP_POS = 35
PRODUCER_ID_POS = 43
PRODUCER_EPOCH_POS = 51
BASE_SEQUENCE_POS = 53
COUNT_POS = 57
V2_HEADER_SIZE = 61

# v0, v1 and tagged messages. The CRC covers everything from the magic on.
MESSAGE_CRC_POS = 12
MESSAGE_ATTRIBUTES_POS = 17     # one byte
MESSAGE_TIMESTAMP_POS = 18      # v1

# Bits of the attributes.
CODEC_MASK, TRANSACTIONAL_BIT, CONTROL_BIT = 0x07, 0x10, 0x20
CODEC_LZ4, CODEC_ZSTD = 3, 4
