"""Message classes, written by proto/gen_pulsar_pb.py from proto/."""
