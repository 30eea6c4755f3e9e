"""The loggers of the package: those of the standard library, named after its modules.

The logger "seglog" gets a handler that does nothing with warnings, as a library's should: otherwise Python would print
them to stderr by itself. Errors are printed so, by logging.lastResort, if the program has no handler: a job that failed
in a program that does not configure `logging` is not to be lost without a word.

`logging` is not imported for them: importing it takes longer than opening a log. Whoever reports an error of the
user's own code, that nobody gets otherwise, imports it before (`late("logging")`).
"""
import sys

TYPE_CHECKING = False       # not typing.TYPE_CHECKING: see _public
if TYPE_CHECKING:
    import logging


class Logger:
    """A logger of the standard library, found when there is a message. The methods are those of logging.Logger."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, message: str, *args: object) -> None:
        logger = self._logger()
        if logger is not None:
            logger.info(message, *args, stacklevel=2)

    def warning(self, message: str, *args: object) -> None:
        logger = self._logger()
        if logger is not None:
            logger.warning(message, *args, stacklevel=2)

    def error(self, message: str, *args: object, exc_info: bool | BaseException | None = None) -> None:
        logger = self._logger()
        if logger is not None:
            logger.error(message, *args, exc_info=exc_info, stacklevel=2)

    def exception(self, message: str, *args: object) -> None:
        logger = self._logger()
        if logger is not None:
            logger.exception(message, *args, stacklevel=2)

    def _logger(self) -> "logging.Logger | None":
        if "logging" not in sys.modules:
            return None
        import logging

        top = logging.getLogger("seglog")
        if not top.handlers:
            top.addHandler(_last_handler())
        return logging.getLogger(self._name)


def _last_handler() -> "logging.Handler":
    """A handler that passes errors on that no other one gets."""
    import logging

    class Last(logging.NullHandler):
        def handle(self, record: logging.LogRecord) -> bool:
            if record.levelno >= logging.ERROR and logging.lastResort is not None and not self._is_heard(record.name):
                logging.lastResort.handle(record)
            return True

        def _is_heard(self, name: str) -> bool:
            found: logging.Logger | None = logging.getLogger(name)
            while found is not None:
                if any(handler is not self for handler in found.handlers):
                    return True
                found = found.parent if found.propagate else None
            return False

    return Last()
