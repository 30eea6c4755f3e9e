"""One .log with its indexes: everything that a log and a ledger share."""
import logging

# What the rooms from here up have to say goes to the handlers that a program sets, and nowhere where it sets none.
logging.getLogger("seglog").addHandler(logging.NullHandler())
