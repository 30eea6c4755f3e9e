"""The loggers of the package: those of the standard library, named after its modules.

`logging` is not imported for them: a program that has not imported it has no handler either, so nobody would see the
message, and importing it takes longer than opening a log. The logger "seglog" gets a handler that does nothing, as a
library's should: otherwise Python would print warnings to stderr by itself.
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
            top.addHandler(logging.NullHandler())
        return logging.getLogger(self._name)
