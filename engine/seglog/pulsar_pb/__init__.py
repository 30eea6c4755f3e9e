"""Message classes, written by tools/gen_pulsar_pb.py from proto/."""
