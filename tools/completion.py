"""`seglog completion`: print the script that completes commands, options and paths in a shell."""
import click
from click.shell_completion import get_completion_class

from .cli import Command, cli

_VARIABLE = "_SEGLOG_COMPLETE"


@click.command(cls=Command, only_reads=True)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script with which SHELL completes `seglog` commands, options and paths.

    \b
    bash:  seglog completion bash >> ~/.bash_completion
    zsh:   seglog completion zsh > DIR/_seglog, with DIR in $fpath
    fish:  seglog completion fish > ~/.config/fish/completions/seglog.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "seglog", _VARIABLE).source())
