"""Bytes of a file that are changed one after the other."""
from seglog.format import names
from seglog.segment.transaction_index import ENTRY_SIZE


def changed_transaction_indexes(directory):
    """Yield once for each byte of the .txnindex files, with one of its bits flipped in the directory."""
    for path in sorted(directory.glob(f"*{names.TRANSACTION_INDEX_SUFFIX}")):
        right = path.read_bytes()
        for at in range(len(right)):
            raw = bytearray(right)
            raw[at] ^= 1 << at % 8
            path.write_bytes(raw)
            yield f"{path.name}, entry {at // ENTRY_SIZE}, byte {at % ENTRY_SIZE} ^ {1 << at % 8:#x}"
        path.write_bytes(right)
