"""`seglog` on the command line."""
import click

from seglog._version import __version__


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Read, verify and convert Kafka partition directories."""
