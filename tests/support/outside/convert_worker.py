"""A process that converts a partition in place, from a shell's door, and perhaps takes it back.

    recording.run("support.outside.convert_worker", '{"root": "disk", "rounds": 2}')

Notes: convert, converted; rollback, restored; failed STATUS.
"""
import json
import sys

from support.command import seglog
from support.outside.notes import Notes


def run(root, rounds):
    note = Notes()
    partition, backup = f"{root}/logs/orders-0", f"{root}/backups"
    for _ in range(rounds):
        for said, done, flag in (("convert", "converted", "--in-place"), ("rollback", "restored", "--rollback")):
            note(said)
            status = seglog("convert", partition, flag, "--apply", "--backup", backup, status=None).exit_code
            if status:
                note("failed", status)
                return
            note(done)


def main():
    run(**json.loads(sys.argv[1]))
