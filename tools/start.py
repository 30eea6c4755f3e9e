"""The entry point of the program: `seglog`, `python -m seglog.tools`.

While the program loads, ^C ends it like any process, by the signal and without a traceback; after that, the commands
catch it (cli.py).
"""
import gc
import signal
import sys

from seglog._version import __version__


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]) and _wrote(f"seglog {__version__}\n"):
        return
    # A shell starts background jobs with ^C ignored; keep it ignored then.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What is imported stays: looking for garbage in it takes a tenth of the start-up time.
    gc.disable()
    from .cli import main as run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _wrote(text: str) -> bool:
    """Write to stdout without loading the command line. False if that fails: the command line says why."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, AttributeError):       # stdout is None if the shell closed it
        return False
    return True
