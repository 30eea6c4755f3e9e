"""Look at one state again that violated: see tests/outside/README.md.

    python -m support.outside.reproduce DIRECTORY

DIRECTORY holds case.pickle and story.txt, as a test left them. Writes the state to DIRECTORY/state (in the place of an
older one), a copy of which is opened, and prints what the judge found and what is wrong about it.
"""
import json
import pickle
import shutil
import sys
import tempfile
from pathlib import Path

from support.outside.cuts import ask, show
from support.outside.disk import read_tree
from support.outside.fork_server import ForkServer
from support.outside.recording import Recording


def main(directory):
    directory = Path(directory).absolute()
    case, cut, seed = pickle.loads((directory / "case.pickle").read_bytes())
    shutil.rmtree(directory / "state", ignore_errors=True)
    witness = show(case, cut, seed, directory / "state")
    print(f"{case.name}: {cut} events, seed {seed}")
    print(f"the disk: {directory / 'state'}\nthe events: {directory / 'story.txt'}")
    with tempfile.TemporaryDirectory() as scratch, ForkServer(scratch) as server:
        recording = Recording.begin(Path(scratch) / "judge", server, read_tree(directory / "state"))
        facts = ask(case.judge, [witness.task(recording.disk) | {"name": ""}], recording)[0]
    print("found:", json.dumps(facts))
    for what in [*witness.check(facts), *witness.violations]:
        print("WRONG:", what)


if __name__ == "__main__":
    main(sys.argv[1])
