"""The way into the program: `seglog`, `python -m seglog.tools`.

While the program loads, ^C ends it as it ends any process, by the signal and without a traceback; from then on the
commands catch it (cli.py).
"""
import signal


def main() -> None:
    # Else somebody wants ^C ignored: a shell's background job.
    minds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if minds:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    if minds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
