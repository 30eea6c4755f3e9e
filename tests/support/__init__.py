"""What the tests of several rooms share. The folders order the files, the modules stand side by side:
`from support.faultfs import RecordingFs`, whichever folder it lies in.

    crash/      disks that lose what was not synced, processes that are killed
    hostile/    bytes, names and servers that lie, and whoever is fed them
    servers/    real ones and doubles of them: Kafka, HDFS, S3, Spark, an object store in a directory
    models/     obvious twins of what is tested, and the random programs that run both
    golden/     what real systems wrote, and what is made for a test
    wire/       both ends of Kafka's protocol, for tests of the server
    outside/    the harness that shares no code with the engine: tests/outside/README.md
"""
from pathlib import Path

__path__ += sorted(str(folder) for folder in Path(__file__).parent.iterdir() if folder.is_dir())
