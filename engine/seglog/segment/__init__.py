"""One .log with its indexes: everything that a log and a ledger share."""
import logging

# Log messages of this room and those above go to the handlers that a program sets; without any, they are dropped.
logging.getLogger("seglog").addHandler(logging.NullHandler())
