"""Message classes, written by tools/gen_wire.py from proto/."""
