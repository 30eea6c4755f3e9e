"""One partition directory."""
import logging

# What this room has to say goes to the handlers that a program sets, and nowhere where it sets none.
logging.getLogger("seglog").addHandler(logging.NullHandler())
