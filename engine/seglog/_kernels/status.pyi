from enum import IntEnum

class Status(IntEnum):
    OK = 0
    SHORT = -1
    BAD_VARINT = -2
    BAD_SIZE = -3
    BAD_MAGIC = -4
    BAD_CRC = -5
    BAD_COUNT = -6
    BAD_KEY_SIZE = -7
    BAD_VALUE_SIZE = -8
    BAD_HEADER = -9
    BAD_CODEC = -10
    BAD_NESTING = -11
    TRAILING_BYTES = -12
    OFFSET_BACK = -13
    OFFSET_RANGE = -14
    NOT_SORTED = -15
    NO_SPACE = -16
    NO_MEMORY = -17
    ZEROS = -18
    LIMIT = -19
    BAD_COMPRESSED = -20
    BAD_FIELD = -21
    OFFSET_AHEAD = -22
    NO_MESSAGES = -23
    BAD_TAG = -24

def words(status: int) -> str: ...
