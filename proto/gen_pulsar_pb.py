"""Write engine/seglog/pulsar_pb/ from proto/: python proto/gen_pulsar_pb.py; needs grpcio-tools.

The output is committed, so that neither a build nor an installation needs a schema compiler. Generated code runs with
the protobuf release that it was generated for and with later ones, so use the oldest supported release:
`pip install --group pulsar_pb` installs it, in a separate environment.
"""
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PROTO = TOP / "proto/pulsar"
PULSAR_PB = TOP / "engine/seglog/pulsar_pb"


def command(target: Path) -> list[str]:
    """Return the compiler's arguments that write a module and its .pyi for each schema into `target`."""
    schemas = sorted(path.name for path in PROTO.glob("*.proto"))
    out = [f"--python_out={target}", f"--pyi_out={target}"]
    return [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}", *out, *schemas]


def main() -> None:
    subprocess.run(command(PULSAR_PB), check=True)


if __name__ == "__main__":
    main()
